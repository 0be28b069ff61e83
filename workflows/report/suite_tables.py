"""A table of every frame of a suite: its columns, its words and its note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from workflows.records.record import Protocol
from workflows.report.display import (
    Builder,
    Table,
    has,
    number,
    p_texts,
    short_name,
    spans,
    task_name,
)
from workflows.stats.distances import SCALES
from workflows.stats.lines import LINE_KEYS, Panel
from workflows.stats.measures import ABOVE, MEASURES
from workflows.stats.paired import LEVEL
from workflows.stats.ranking import ABOVE_COLUMNS, RETAIN_COLUMNS, Mark, marks
from workflows.stats.resample import RESAMPLES, RETAIN

MARKED = (
    "Bold: best of its target; underlined: second; ≈: the 95 % interval of the difference to the "
    "best reaches zero. Rows that skip nothing have no rank."
)
DEFINED = (
    "Retain: mean over tasks of score over the reference's score. Skip: share of the dense "
    "parameters that do not run, mean over scored tokens."
)
BESIDE = (
    "Above chance: mean of (score - chance) / (reference - chance) over the tasks in which the "
    "reference leads chance by more than two standard errors; 0 is a guess. In resamples that lead "
    "counts at least a quarter of what it is on all items. Flips: items that are "
    "right here and wrong in the reference, or the other way round. Changed: items with another "
    "chosen answer, of tasks in which one is chosen. Both are means over tasks."
)
DISTANT = (
    "KL: Kullback-Leibler divergence of the next-token distributions from the dense model's, nats "
    "per token, mean over the tokens of texts that nothing was fitted or calibrated on; a note "
    "says what a row skips there if it is far from the budget. Agreement: share of tokens for "
    "which both have the same likeliest next token. KL on answers, Agreement on answers: the same "
    "on the answer tokens of these texts."
)
DEVIATION = "±: standard deviation over the seeds of a row."
SKIPS = (
    "On prompts: skip on prompt tokens. On answers: skip on answer tokens, whose output is scored, "
    "mean over the tasks of the Retain. Skip weighs each token alike, On answers each task, so "
    "Skip may lie outside the two. Net: skip minus the parameters that the method adds "
    "(router, adapters, LoRA); a shared router counts once."
)
SPEEDS = "Prefill, Decode: speed over dense, measured side by side; above 1 is faster."
FLOOR = (
    "This is the floor of the dense model. Routed rows may change more, because a gate may cross "
    "its threshold."
)
LEAST = f"≤: {RESAMPLES:,} resamples give no smaller p."
MATCHES: Mapping[Protocol, str] = {
    "pooled": "Match pooled: the mean skip over all scored tokens meets the budget.",
    "split": "Match split: skip on prompt tokens and skip on answer tokens each meet the budget.",
}
CLOCK = (
    "A skip rate is no speed-up. Speed: time of the dense model over time of the row, the median "
    "of pairs with its 95 % interval; above 1 is faster. Both run in turn in one process, on "
    "texts of the suite, with LoRA folded into the matrices; of a row with several seeds the first "
    "is timed. Bound: the speed that the row's own "
    "decisions would allow if only work took time (multiplications of a prompt, bytes read for a "
    "new token). Timed bound: dense is also timed without the sublayers that may be skipped; from "
    "this follows the speed if what the row skips took no time, and all else as long as in dense. "
    "Share of the saving: time saved over what the timed bound saves, or the bound where there is "
    "no timed one; above 100 by noise, a dash where the row is slower than dense. "
    "Training: forward "
    "and backward pass of one update, over those of LoRA on every linear layer; without a bound."
)


def definitions(frame: pd.DataFrame) -> list[str]:
    """What the columns of a retain frame mean, as far as it has them."""
    beside = any(has(frame, name) for name in ("above_chance", "flips", "changed"))
    words = [DEFINED, *[BESIDE] * beside, *[DISTANT] * has(frame, "kl")]
    return [*words, *[DEVIATION] * has(frame, "retain_std")]


def seeds_note(suite: str) -> str:
    """What the column Between seeds means, and which suite it comes from."""
    return (
        f"Between seeds: deviation of the Retain over the seeds of {suite}, for rows that ran one "
        "seed here."
    )


def notes(frame: pd.DataFrame) -> list[str]:
    """The note of each line of a retain frame, rows with the same weights last."""
    both = frame[["note", "same_weights"]].fillna("").to_numpy().tolist()
    words = [
        (note, f"same weights as {same.replace('; ', ', ')}" if same else "") for note, same in both
    ]
    return ["; ".join(filter(None, pair)) for pair in words]


def retain_table(frame: pd.DataFrame, panels: Sequence[Panel], seeds_of: str = "") -> Table:
    """The main table of one protocol's panels, one line per line of the frame."""
    marks_of = [marks(panel) for panel in panels]
    order = [(n, line.name) for n, panel in enumerate(panels) for line in panel.lines]

    def column_marks(measure: str) -> list[Mark]:
        return [marks_of[n].get((name, measure), Mark()) for n, name in order]

    builder = Builder()
    builder.lead(frame)
    builder.seeds(frame)
    builder.spread(frame, "Skip", "skip")
    builder.skips(frame)
    builder.numbers(frame, {"Net": ("skip_net", "{:.2f}")})
    builder.spread(frame, "Retain", "retain", column_marks(RETAIN))
    note = " ".join([*definitions(frame), SKIPS, MARKED])
    if frame["seed_std"].notna().any():
        builder.numbers(frame, {"Between seeds": ("seed_std", "± {:.2f}")})
        note += f" {seeds_note(seeds_of)}"
    builder.add("95 % interval", spans(frame, "retain_low", "retain_high"))
    builder.beside(frame)
    if frame[["prefill", "decode"]].notna().any(axis=None):
        heads = {"Prefill": ("prefill", "{:.2f}"), "Decode": ("decode", "{:.2f}")}
        builder.numbers(frame, heads)
        note += f" {SPEEDS}"
    # Before the tasks: a reader who cuts the table may lose scores, but not the notes.
    builder.add("Note", notes(frame))
    for column in (name for name in frame.columns if ":" in name):
        values = [number(value) for value in frame[column]]
        builder.add(short_name(column), values, column_marks(column.rsplit(":", 1)[0]))
    return builder.table("retain", "Retain and scores", note)


def rank_table(frame: pd.DataFrame) -> Table:
    """Ranks by Retain, and by Above chance where there is one, with their intervals."""
    builder = Builder()
    builder.lead(frame)
    _add_ranks(builder, frame, "Retain", RETAIN_COLUMNS, "")
    more = ""
    if frame[ABOVE].notna().any():
        _add_ranks(builder, frame, "Above chance", ABOVE_COLUMNS, " above chance")
        builder.add("Overtakes", [text.replace("; ", ", ") or "–" for text in frame["overtakes"]])
        more = (
            " Above chance in a head: by that measure. Overtakes: rows that lead this one by "
            "Retain and that it leads by Above chance, where both 95 % intervals leave out zero."
        )
    note = (
        "Ranks among the rows of one target. Is first: share of resamples in which a row leads. "
        "Differs from the best: the 95 % interval of its distance to the best leaves out zero, not "
        "corrected for the number of rows. Of one seed: one of the two rows ran one seed, and "
        "another seed of it may change the answer."
    )
    return builder.table("ranks", "Ranks", note + more)


def _add_ranks(
    builder: Builder, frame: pd.DataFrame, head: str, names: Mapping[str, str], end: str
) -> None:
    """Value, rank and distance to the best by one measure; ``end`` closes the heads but the first.

    Args:
        names: What a column says -> its name, as in ranking.py.
    """
    spread = [(names[f"{name}_low"], names[f"{name}_high"]) for name in ("rank", "behind")]
    heads = {head: (names["value"], "{:.2f}"), f"Rank{end}": (names["rank"], "{:.0f}")}
    builder.numbers(frame, heads)
    builder.add(f"Rank{end}, 95 % interval", spans(frame, *spread[0], "{:.0f}"))
    heads = {
        f"Is first{end} (%)": (names["first"], "{:.1f}"),
        f"Behind the best{end}": (names["behind"], "{:.2f}"),
    }
    builder.numbers(frame, heads)
    builder.add(f"95 % interval{end}", spans(frame, *spread[1]))
    answer = [names[name] for name in ("behind", "tied", "one_seed")]
    answers = [
        "–" if behind == 0 or pd.isna(behind) else "not shown" if tied
        else "yes, of one seed" if one_seed else "yes"
        for behind, tied, one_seed in frame[answer].to_numpy()
    ]  # fmt: skip
    builder.add(f"Differs from the best{end}", answers)


def difference_table(frame: pd.DataFrame, against: str, title: str) -> Table:
    """Every row minus one opponent, called ``title``: Retain with its interval, then tasks."""
    part = frame[frame["against"] == against]
    main = part[part["measure"] == RETAIN].reset_index(drop=True)
    builder = Builder()
    builder.lead(main)
    builder.numbers(main, {"Retain": ("difference", "{:+.2f}")})
    builder.add("95 % interval", spans(main, "low", "high", "{:+.1f}"))
    builder.add("p (Holm)", p_texts(main, "p_holm"))
    builder.add("Items needed", [number(n, "{:,.0f}") for n in main["items_needed"]])
    _add_beside(builder, main, part)
    add_tasks(builder, main, part, "p_holm")
    note = (
        f"Points, row minus {title}. *: p below 5 % after Holm's correction over the rows of the "
        "target, not over the tasks (tasks of two single runs: exact McNemar test; else bootstrap "
        f"over items, and over seeds where a row has several). {LEAST} Items needed: to find a "
        "difference of one point of Retain in four of five cases, if only the items varied."
        + " KL: nats per token, over resampled texts."
        * ("KL" in builder.columns)
    )
    return builder.table(f"differences_{against}", f"Differences from {title}", note)


def _add_beside(builder: Builder, main: pd.DataFrame, frame: pd.DataFrame) -> None:
    """Add the differences by Above chance and by KL that there are, each with its interval."""
    heads = {
        ABOVE: ("Above chance", "{:+.1f}"), "kl": ("KL", "{:+.3f}"),
        "kl_answer": ("KL on answers", "{:+.3f}"),
    }  # fmt: skip
    for measure in (name for name in heads if (frame["measure"] == name).any()):
        head, form = heads[measure]
        same = main[LINE_KEYS].merge(frame[frame["measure"] == measure], on=LINE_KEYS, how="left")
        builder.numbers(same, {head: ("difference", form)})
        builder.add(f"{head}, 95 % interval", spans(same, "low", "high", form))


def score_table(frame: pd.DataFrame, titles: Mapping[str, str]) -> Table:
    """Items solved of all items, by the headline metric: one line per run."""
    part = frame[frame["primary"] & frame["k"].notna()]
    keys = ["backbone", "row", "target", "match", "seed"]
    runs = part[keys].drop_duplicates().reset_index(drop=True)
    lead = runs.assign(title=[titles[row] for row in runs["row"]], target=100 * runs["target"])
    builder = Builder()
    builder.lead(lead)
    builder.add("Seed", runs["seed"].tolist())
    for task in dict.fromkeys(part["task"]):
        same = runs.merge(part[part["task"] == task], on=keys, how="left")
        texts = [
            "–" if pd.isna(k) else f"{k}/{n:.0f}" for k, n in zip(same["k"], same["n"], strict=True)
        ]
        builder.add(task_name(task), texts)
    return builder.table("scores", "Items solved", "k of n items, one line per run.")


def budget_table(frame: pd.DataFrame) -> Table:
    """Target and realised skip: by kind of token, net, by the authors' measure, its spread."""
    builder = Builder()
    builder.lead(frame)
    builder.spread(frame, "Realised", "skip")
    builder.skips(frame, deviations=True)
    heads = {
        "Net": "skip_net", "Authors' measure": "skip_authors", "Spread over tokens": "token_std",
        "Likelihood": "skip_likelihood", "Generated": "skip_generated",
    }  # fmt: skip
    builder.numbers(frame, {name: (column, "{:.2f}") for name, column in heads.items()})
    heads = {"On texts": "skip_texts", "On their answers": "skip_texts_answer"}
    present = {head: (name, "{:.2f}") for head, name in heads.items() if has(frame, name)}
    builder.numbers(frame, present)
    builder.add("Missed", frame["missed"].tolist())
    note = (
        "Percent of the dense parameters. Authors' measure: as the row's authors count skip. "
        "Spread: standard deviation over scored tokens. Likelihood, Generated: skip on the tokens "
        "of tasks that are scored by likelihood, and of those in which the model writes. "
        "Missed: runs more than one point off the target (split: answer tokens, all tokens and "
        f"the mean over tasks one, prompts three). {SKIPS}"
    )
    note += " On texts: on the texts on which KL was measured." * bool(present)
    return builder.table("budgets", "Budgets", note)


def cost_table(frame: pd.DataFrame) -> Table:
    """What training and scoring took."""
    builder = Builder()
    builder.lead(frame)
    heads = {
        "Trained parameters": ("trained_parameters", "{:,}"),
        "Training tokens": ("training_tokens", "{:,}"),
        "Fit (s)": ("fit_seconds", "{:,.1f}"),
        "Fit (MB)": ("fit_memory_mb", "{:,.0f}"),
        "Scored tokens": ("scored_tokens", "{:,.0f}"),
        "Scoring (s)": ("scoring_seconds", "{:,.1f}"),
        "Scoring (MB)": ("scoring_memory_mb", "{:,.0f}"),
    }
    if has(frame, "fidelity_seconds"):
        heads["KL (s)"] = ("fidelity_seconds", "{:,.1f}")
    builder.numbers(frame, heads)
    builder.add("Device", frame["device"].tolist())
    note = "Means over seeds. Times are of machines with other work on them: no benchmark."
    note += " KL: after scoring, with loading the dense model." * ("KL (s)" in heads)
    return builder.table("costs", "Cost", note)


def noise_table(frame: pd.DataFrame) -> Table:
    """The reference at other batch sizes."""
    builder = Builder()
    if frame["backbone"].nunique() > 1:
        builder.add("Backbone", frame["backbone"].tolist())
    builder.add("Row", frame["row"].tolist())
    heads = {
        "Batch size": ("batch_size", "{:d}"), "Against": ("against", "{:d}"),
        "Items": ("items", "{:,d}"), "Changed": ("changed", "{:,d}"),
        "Retain": ("retain", "{:.2f}"), "Largest change of a task": ("largest", "{:.2f}"),
    }  # fmt: skip
    builder.numbers(frame, heads)
    note = (
        "The reference, scored again at another batch size. Smaller differences mean nothing. "
        f"{FLOOR}"
    )
    return builder.table("noise", "Noise floor", note)


def add_tasks(builder: Builder, main: pd.DataFrame, frame: pd.DataFrame, p: str) -> None:
    """Differences of every task beside the lines of ``main``; * where ``p`` is below 5 %."""
    others = {RETAIN, *MEASURES, *SCALES}
    for task in (name for name in dict.fromkeys(frame["measure"]) if name not in others):
        same = main[LINE_KEYS].merge(frame[frame["measure"] == task], on=LINE_KEYS, how="left")
        stars = ["*" if value < LEVEL else "" for value in same[p]]
        texts = [number(value, "{:+.1f}") for value in same["difference"]]
        builder.add(task_name(task), [text + star for text, star in zip(texts, stars, strict=True)])


def speed_table(frame: pd.DataFrame) -> Table:
    """Speed beside its bound."""
    builder = Builder()
    builder.lead(frame)
    builder.add("Mode", frame["mode"].tolist())
    builder.add("Case", [case.replace("x", " x ") for case in frame["case"]])
    builder.numbers(
        frame, {"Units skipped (%)": ("bypass", "{:.1f}"), "Speed": ("speed", "{:.2f}")}
    )
    builder.add("95 % interval", spans(frame, "speed_low", "speed_high", "{:.2f}"))
    builder.numbers(frame, {"Bound": ("bound", "{:.2f}"), "Timed bound": ("timed_bound", "{:.2f}")})
    faster = frame["realised"].where(frame["realised"] >= 0)
    builder.add("Share of the saving (%)", [number(value, "{:.0f}") for value in faster])
    return builder.table("speeds", "Speed", CLOCK)
