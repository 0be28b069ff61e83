"""Frames as people read them: cells of text with marks, one table for CSV's every line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workflows.demo.presets import PRESETS
from workflows.evaluation.tasklist import PERPLEXITY
from workflows.records.record import Protocol
from workflows.stats.lines import Panel
from workflows.stats.paired import LEVEL
from workflows.stats.ranking import Mark, marks
from workflows.stats.resample import RESAMPLES, RETAIN

WORDS = frozenset(
    {
        "Backbone",
        "Match",
        "Mode",
        "Row",
        "Note",
        "Missed",
        "Device",
        "Fitted under",
        "torch reports",
    }
)
MARKED = (
    "Bold: best of its target; underlined: second; ≈: the 95 % interval of the difference to the "
    "best reaches zero. References do not compete."
)
DEFINED = (
    "Retain: mean over tasks of score over the reference's score. Skip: share of the dense "
    "parameters that do not run, mean over scored tokens."
)
SKIPS = (
    "On prompts: skip on prompt tokens. Deciding: skip on the tokens whose output is scored "
    "(answers, generated tokens), mean over the tasks of the Retain. Net: skip minus the "
    "parameters that the method adds (router, adapters, LoRA), a shared router counted once."
)
SPEEDS = "Prefill, Decode: speed over dense, measured side by side; above 1 is faster."
FLOOR = "It is the floor of the dense model: routed rows, with gates at thresholds, may move more."
LEAST = f"≤: {RESAMPLES:,} resamples tell no smaller p."
MATCHES: Mapping[Protocol, str] = {
    "pooled": "Match pooled: the mean skip over all scored tokens meets the budget.",
    "split": "Match split: skip on prompt tokens and on answer tokens meets the budget apart.",
}


class Cell(NamedTuple):
    """Text and how it is set."""

    text: str
    mark: Mark = Mark()


@dataclass(frozen=True)
class Table:
    """What is printed.

    Args:
        name: Stem of its files.
        title: Over it.
        columns: Heads.
        lines: Cells, as many per line as there are columns.
        words: Names of the columns that hold words.
        note: Below it.
        match: The protocol of its lines; empty where they are of all.
        ids: What each line is called (:func:`line_id`); empty where lines are no rows at a target.
        groups: Column -> the group of columns that it is shown with; none is always shown.
    """

    name: str
    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    words: Collection[str] = ()
    note: str = ""
    match: str = ""
    ids: Sequence[str] = ()
    groups: Mapping[str, str] = field(default_factory=dict)


def line_id(told: Mapping[Any, Any]) -> str:
    """What a line of a frame is called on a page: ``backbone/row/target/match``."""
    parts = [number(told["target"], "{:g}"), number(told["match"], "{}")]
    return "/".join([told["backbone"], told["row"], *parts]).replace("–", "")


@dataclass
class Builder:
    """Collects columns of equal length."""

    columns: dict[str, list[Cell]] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    group: str = ""

    def add(self, name: str, texts: Sequence[Any], found: Sequence[Mark] | None = None) -> None:
        """One column of texts, with marks where they are given, in the group at hand."""
        given = found or [Mark()] * len(texts)
        self.columns[name] = [Cell(str(t), m) for t, m in zip(texts, given, strict=True)]
        self.groups |= {name: self.group} if self.group else {}

    def lead(self, frame: pd.DataFrame) -> None:
        """The columns that name a line."""
        self.ids = [line_id(told) for told in frame.to_dict("records")]
        if frame["backbone"].nunique() > 1:
            self.add("Backbone", frame["backbone"].tolist())
        self.add("Row", frame["title"].tolist())
        self.add("Target", [number(value, "{:g}") for value in frame["target"]])
        if frame["match"].nunique() > 1:
            self.add("Match", [number(value, "{}") for value in frame["match"]])

    def skips(self, frame: pd.DataFrame, deviations: bool = False) -> None:
        """Skip on prompt and on answer tokens."""
        for head, name in (("On prompts", "skip_prompt"), ("On answers", "skip_answer")):
            spread = frame[f"{name}_std"] if deviations else [None] * len(frame)
            self.add(head, [plus(v, s) for v, s in zip(frame[name], spread, strict=True)])

    def numbers(self, frame: pd.DataFrame, named: Mapping[str, tuple[str, str]]) -> None:
        """Head -> (column, form) of plain numbers."""
        for name, (column, form) in named.items():
            self.add(name, [number(value, form) for value in frame[column]])

    def table(self, name: str, title: str, note: str) -> Table:
        """What was collected."""
        lines = list(zip(*self.columns.values(), strict=True))
        return Table(
            name, title, list(self.columns), lines, WORDS, note, ids=self.ids, groups=self.groups
        )


def number(value: Any, form: str = "{:.2f}") -> str:
    """A dash where there is no number."""
    return "–" if value is None or pd.isna(value) else form.format(value)


def plus(value: float | None, deviation: float | None) -> str:
    """``26.00 ± 1.41``, without the deviation where there is none."""
    text = number(value)
    return text if deviation is None or pd.isna(deviation) else f"{text} ± {deviation:.2f}"


def span(low: float | None, high: float | None, form: str = "{:.1f}") -> str:
    """``1.0 to 2.0``."""
    return "–" if low is None or pd.isna(low) else f"{number(low, form)} to {number(high, form)}"


def spans(frame: pd.DataFrame, low: str, high: str, form: str = "{:.1f}") -> list[str]:
    """The intervals of two columns."""
    return [span(a, b, form) for a, b in zip(frame[low], frame[high], strict=True)]


def p_texts(frame: pd.DataFrame, name: str) -> list[str]:
    """The values of a column of p, ≤ where resamples could tell none smaller.

    Holm's correction multiplies the least p of a target by its rows; what it leaves equal to that
    is no better known.
    """
    # Between the least of bootstrap, 2 / (B + 1), and the next.
    least = frame["test"].eq("bootstrap") & (frame["p"] < 3 / (RESAMPLES + 1))
    bound = frame[name].where(least).groupby([frame["backbone"], frame["target"]], dropna=False)
    signs = np.where(frame[name] <= bound.transform("max"), "≤ ", "")
    return [sign + number(p, "{:.4f}") for sign, p in zip(signs, frame[name], strict=True)]


def task_name(task: str) -> str:
    """``demo_two_hop`` -> ``two hop``."""
    world, _, kind = task.partition("_")
    return (kind if world in PRESETS else task).replace("_", " ")


def short_name(column: str) -> str:
    """``demo_facts:acc`` -> ``facts acc``."""
    task, metric = column.rsplit(":", 1)
    label = task_name(task)
    # A perplexity is told apart from other perplexities by the name behind its colon.
    return label if label.split(":")[0] == metric == PERPLEXITY else f"{label} {metric}"


def seeds_note(suite: str) -> str:
    """What Between seeds is, and of which suite."""
    return (
        f"Between seeds: deviation of the Retain over the seeds of {suite}, for rows that ran one "
        "seed here."
    )


def notes(frame: pd.DataFrame) -> list[str]:
    """What a reader must know of each line of a retain frame, other rows of its weights last."""
    both = frame[["note", "same_weights"]].fillna("").to_numpy().tolist()
    words = [
        (note, f"same weights as {same.replace('; ', ', ')}" if same else "") for note, same in both
    ]
    return ["; ".join(filter(None, told)) for told in words]


def retain_table(frame: pd.DataFrame, panels: Sequence[Panel], seeds_of: str = "") -> Table:
    """The main table of one protocol's panels, one line per line of the frame."""
    found = [marks(panel) for panel in panels]
    order = [(n, line.name) for n, panel in enumerate(panels) for line in panel.lines]

    def marked(measure: str) -> list[Mark]:
        return [found[n].get((name, measure), Mark()) for n, name in order]

    made = Builder()
    made.lead(frame)
    skips = [plus(v, s) for v, s in zip(frame["skip"], frame["skip_std"], strict=True)]
    kept = [plus(v, s) for v, s in zip(frame["retain"], frame["retain_std"], strict=True)]
    made.add("Skip", skips)
    made.skips(frame)
    made.numbers(frame, {"Net": ("skip_net", "{:.2f}")})
    made.add("Retain", kept, marked(RETAIN))
    note = f"{DEFINED} {SKIPS} {MARKED}"
    if frame["seed_std"].notna().any():
        made.numbers(frame, {"Between seeds": ("seed_std", "± {:.2f}")})
        note += f" {seeds_note(seeds_of)}"
    made.add("95 % interval", spans(frame, "retain_low", "retain_high"))
    if frame[["prefill", "decode"]].notna().any(axis=None):
        named = {"Prefill": ("prefill", "{:.2f}"), "Decode": ("decode", "{:.2f}")}
        made.numbers(frame, named)
        note += f" {SPEEDS}"
    # Before the tasks: where a table is cut, its scores may go, the caveats may not.
    made.add("Note", notes(frame))
    for column in (name for name in frame.columns if ":" in name):
        values = [number(value) for value in frame[column]]
        made.add(short_name(column), values, marked(column.rsplit(":", 1)[0]))
    return made.table("retain", "Retain and scores", note)


def rank_table(frame: pd.DataFrame) -> Table:
    """Ranks by Retain with their intervals."""
    made = Builder()
    made.lead(frame)
    made.numbers(frame, {"Retain": ("retain", "{:.2f}"), "Rank": ("rank", "{:d}")})
    made.add("95 % interval of the rank", spans(frame, "rank_low", "rank_high", "{:d}"))
    made.numbers(
        frame, {"Is first (%)": ("first", "{:.1f}"), "Behind the best": ("behind", "{:.2f}")}
    )
    made.add("95 % interval", spans(frame, "behind_low", "behind_high"))
    told = [
        "–" if behind == 0 else "no" if tied else "yes, of one seed" if one_seed else "yes"
        for behind, tied, one_seed in frame[["behind", "tied", "one_seed"]].to_numpy()
    ]
    made.add("Differs from the best", told)
    note = (
        "Ranks among the rows of one target. Is first: share of resamples in which a row leads. "
        "Differs from the best: the 95 % interval of the points behind it leaves out zero; of one "
        "seed: by the items alone, and another seed may undo it."
    )
    return made.table("ranks", "Ranks", note)


def difference_table(frame: pd.DataFrame, against: str, title: str) -> Table:
    """Every row against one opponent, its title given: Retain with its interval, then tasks."""
    part = frame[frame["against"] == against]
    main = part[part["measure"] == RETAIN].reset_index(drop=True)
    made = Builder()
    made.lead(main)
    made.numbers(main, {"Retain": ("difference", "{:+.2f}")})
    made.add("95 % interval", spans(main, "low", "high", "{:+.1f}"))
    made.add("p (Holm)", p_texts(main, "p_holm"))
    made.add("Items needed", [number(n, "{:,.0f}") for n in main["items_needed"]])
    add_tasks(made, main, part, "p_holm")
    note = (
        f"Points, row minus {title}. *: p below 5 % after Holm's correction over the rows of the "
        "target, not over the tasks (tasks of two single runs: exact McNemar test; else bootstrap "
        f"over items and, of rows with several, seeds). {LEAST} Items needed: to see one point of "
        "Retain in four of five cases, were items alone at chance."
    )
    return made.table(f"differences_{against}", f"Differences from {title}", note)


def score_table(frame: pd.DataFrame, titles: Mapping[str, str]) -> Table:
    """Items solved of items asked: one line per run, headline metrics only."""
    part = frame[frame["primary"] & frame["k"].notna()]
    keys = ["backbone", "row", "target", "match", "seed"]
    runs = part[keys].drop_duplicates().reset_index(drop=True)
    lead = runs.assign(title=[titles[row] for row in runs["row"]], target=100 * runs["target"])
    made = Builder()
    made.lead(lead)
    made.add("Seed", runs["seed"].tolist())
    for task in dict.fromkeys(part["task"]):
        same = runs.merge(part[part["task"] == task], on=keys, how="left")
        texts = [
            "–" if pd.isna(k) else f"{k}/{n:.0f}" for k, n in zip(same["k"], same["n"], strict=True)
        ]
        made.add(task_name(task), texts)
    return made.table("scores", "Items solved", "k of n items, one line per run.")


def budget_table(frame: pd.DataFrame) -> Table:
    """Asked, realised, by kind of token, net, the authors' measure, spread over tokens."""
    made = Builder()
    made.lead(frame)
    skips = [plus(v, s) for v, s in zip(frame["skip"], frame["skip_std"], strict=True)]
    made.add("Realised", skips)
    made.skips(frame, deviations=True)
    named = {
        "Net": "skip_net", "Authors' measure": "skip_authors", "Spread over tokens": "token_std",
        "Likelihood": "skip_likelihood", "Generated": "skip_generated",
    }  # fmt: skip
    made.numbers(frame, {name: (column, "{:.2f}") for name, column in named.items()})
    made.add("Missed", frame["missed"].tolist())
    note = (
        "Percent of the dense parameters. Spread: standard deviation over scored tokens. "
        "Missed: runs more than one point off the target (split: answer tokens one, prompts "
        f"three). {SKIPS}"
    )
    return made.table("budgets", "Budgets", note)


def cost_table(frame: pd.DataFrame) -> Table:
    """What training and scoring took."""
    made = Builder()
    made.lead(frame)
    named = {
        "Trained parameters": ("trained_parameters", "{:,}"),
        "Training tokens": ("training_tokens", "{:,}"),
        "Fit (s)": ("fit_seconds", "{:,.1f}"),
        "Fit (MB)": ("fit_memory_mb", "{:,.0f}"),
        "Scored tokens": ("scored_tokens", "{:,.0f}"),
        "Scoring (s)": ("scoring_seconds", "{:,.1f}"),
        "Scoring (MB)": ("scoring_memory_mb", "{:,.0f}"),
    }
    made.numbers(frame, named)
    made.add("Device", frame["device"].tolist())
    note = "Means over seeds. Seconds of one machine under its load of the day, no benchmark."
    return made.table("costs", "Cost", note)


def noise_table(frame: pd.DataFrame) -> Table:
    """The reference at other batch sizes."""
    made = Builder()
    if frame["backbone"].nunique() > 1:
        made.add("Backbone", frame["backbone"].tolist())
    made.add("Row", frame["row"].tolist())
    named = {
        "Batch size": ("batch_size", "{:d}"), "Against": ("against", "{:d}"),
        "Items": ("items", "{:,d}"), "Changed": ("changed", "{:,d}"),
        "Retain": ("retain", "{:.2f}"), "Largest change of a task": ("largest", "{:.2f}"),
    }  # fmt: skip
    made.numbers(frame, named)
    note = (
        "The reference again at another batch size: differences below this are no differences. "
        f"{FLOOR}"
    )
    return made.table("noise", "Noise floor", note)


def comparison_table(frame: pd.DataFrame, agreed: pd.DataFrame, folders: Sequence[str]) -> Table:
    """Two folders side by side: Retain of both, the differences of every task, what is equal."""
    main = frame[frame["measure"] == RETAIN].reset_index(drop=True)
    made = Builder()
    made.lead(main)
    for side in "ab":
        made.numbers(main, {f"Retain {side.upper()}": (side, "{:.2f}")})
        made.add(f"95 % interval {side.upper()}", spans(main, f"{side}_low", f"{side}_high"))
    made.numbers(main, {"B - A": ("difference", "{:+.2f}")})
    made.add("95 % interval", spans(main, "low", "high", "{:+.2f}"))
    made.add("p", p_texts(main, "p"))
    add_tasks(made, main, frame, "p")
    note = (
        f"A: {folders[0]}, B: {folders[1]}, match {' and '.join(frame['match'].unique())}. Task "
        "columns: points, B minus A; *: p below 5 % (single runs, which know the items alone: "
        "exact McNemar test; several seeds: bootstrap over items and seeds; not corrected). "
        + f"{LEAST} "
        + " ".join(_agreement_sentences(agreed))
    )
    return made.table("compare", "Two folders", note)


def _agreement_sentences(frame: pd.DataFrame) -> list[str]:
    return [
        f"Of {found['runs']} runs of {found['rows']} rows in both, {found['weights']} have the "
        f"same weights, {found['items']} every item scored alike; Retain differs by up "
        f"to {found['retain']:.2f} points."
        for found in frame.to_dict("records")
    ]


def add_tasks(made: Builder, main: pd.DataFrame, frame: pd.DataFrame, p: str) -> None:
    """Differences of every task beside the lines of ``main``; * where ``p`` is below 5 %."""
    keys = ["backbone", "target", "match", "row"]
    for task in (name for name in dict.fromkeys(frame["measure"]) if name != RETAIN):
        same = main[keys].merge(frame[frame["measure"] == task], on=keys, how="left")
        stars = ["*" if value < LEVEL else "" for value in same[p]]
        texts = [number(value, "{:+.1f}") for value in same["difference"]]
        made.add(task_name(task), [text + star for text, star in zip(texts, stars, strict=True)])
