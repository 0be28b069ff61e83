"""Show what a number is made of: `python -m workflows.steps.explain --suite demo --row hero ...`.

Prints the record, the score of the task, the items won and lost against the reference row, and the
commands that reproduce the number.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from methods.core.budget import check_budget
from workflows.records.archive import ITEMS
from workflows.records.parts import Score
from workflows.records.record import Record
from workflows.report.repeat import RepeatCommands
from workflows.report.results import Results, read_results
from workflows.runtime.program import run, step_parser
from workflows.stats.budget import prompt_skip, task_mean
from workflows.stats.distances import KL
from workflows.stats.lines import Line, Panel, headline_items
from workflows.stats.sampling import interval
from workflows.stats.versus import differences_of

# Of a score -> in words.
SPLITS = {
    "test": "the split that the task scores",
    "validation": "validation split",
    "text": "all of the text",
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--suite", required=True, help="name of the suite")
    parser.add_argument("--row", required=True, help="as the tables name it")
    parser.add_argument(
        "--budget", help="fraction, such as 0.25; default: none, for rows without one"
    )
    parser.add_argument("--match", help="pooled or split; default: the suite's only one")
    parser.add_argument("--task", required=True, help="of the suite")
    parser.add_argument("--seed", type=int, help="default: the row's first")
    parser.add_argument("--backbone", help="its name; default: the suite's only one")
    parser.add_argument("--results", type=Path, metavar="DIR", help="default: results/SUITE")
    return parser.parse_args()


def main() -> None:
    """Find the number and print where it comes from."""
    args = arguments()
    results = read_results(args.results or Path("results") / args.suite)
    panel = find_panel(results, args.backbone, args.match, args.row)
    line = find_line(panel, args.row, None if args.budget is None else check_budget(args.budget))
    record = find_record(line, args.seed)
    score = find_score(record, args.task)
    file = results.files[results.records.index(record)]
    parts = {
        "number": number_text(line, record, score),
        "record": results.name_of(file),
        **run_texts(panel, record, score),
        **fidelity_texts(panel, line, record),
        **difference_texts(panel, line, args.task, results.settings["focus"]),
        **item_texts(results, panel, file, score),
        **RepeatCommands.of(results).of_file(file),
    }
    width = max(14, *(len(name) + 1 for name in parts))
    for name, text in parts.items():
        wrapped = textwrap.wrap(text, 92, break_long_words=False, break_on_hyphens=False)
        lines = [text] if name.startswith("command") else wrapped
        print(f"{name:<{width}}" + f"\n{'':<{width}}".join(lines))


def find_panel(results: Results, backbone: str | None, match: str | None, row: str) -> Panel:
    """The lines of a backbone under a protocol; either may be None if there is only one.

    A row without a protocol is the same under all.
    """
    panels = _matching_panels(
        results.panels, "--backbone", backbone, lambda panel: panel.reference.backbone
    )
    runs = [line.first for line in panels[0].lines if line.row == row]
    if match is None and runs and all(run.match is None for run in runs):
        return panels[0]
    return _matching_panels(panels, "--match", match, lambda panel: panel.match)[0]


def _matching_panels(
    panels: Sequence[Panel], option: str, value: str | None, name: Callable[[Panel], str]
) -> list[Panel]:
    """The panels whose name is ``value``; None: the only name.

    Raises:
        ValueError: The name is unknown, or it is None and there are several.
    """
    values = list(dict.fromkeys(map(name, panels)))
    match = values[0] if value is None and len(values) == 1 else value
    if match not in values:
        raise ValueError(f"{option} must be one of: {', '.join(values)}")
    return [panel for panel in panels if name(panel) == match]


def find_line(panel: Panel, row: str, budget: float | None) -> Line:
    """A row at a budget.

    Raises:
        ValueError: The folder has none, or it is not applicable.
    """
    lines = [line for line in panel.lines if line.row == row]
    if not lines:
        rows = dict.fromkeys(line.row for line in panel.lines)
        raise ValueError(f"no record of row '{row}' (rows: {', '.join(rows)})")
    for line in lines:
        if line.budget == budget:
            if not line.done:
                raise ValueError(f"row '{row}' is not applicable: {line.first.reason}")
            return line
    budgets = ["none" if line.budget is None else f"{line.budget:g}" for line in lines]
    place = "without a budget" if budget is None else f"at budget {budget:g}"
    raise ValueError(f"no record of row '{row}' {place} (budgets: {', '.join(budgets)})")


def find_record(line: Line, seed: int | None) -> Record:
    """The run of a seed, or the first.

    Raises:
        ValueError: No run has this seed.
    """
    for record in line.records:
        if seed is None or record.seed == seed:
            return record
    seeds = ", ".join(str(record.seed) for record in line.records)
    raise ValueError(f"row '{line.row}' has no run of seed {seed} (seeds: {seeds})")


def find_score(record: Record, task: str) -> Score:
    """The headline score of a task.

    Raises:
        ValueError: The task was not scored.
    """
    scores = record.headlines
    if task not in scores:
        raise ValueError(f"task '{task}' was not scored (tasks: {', '.join(scores)})")
    return scores[task]


def number_text(line: Line, record: Record, score: Score) -> str:
    """The number in words."""
    match = "" if record.match is None else f"match {record.match}, "
    where = f"{line.name} on {line.backbone}, {match}seed {record.seed}, {score.task}"
    if score.k is None:
        return f"{where}: {score.metric} {score.value:.4f} over {score.n}"
    return f"{where}: {score.k} of {score.n} ({100 * score.value:.2f} % {score.metric})"


def run_texts(panel: Panel, record: Record, score: Score) -> dict[str, str]:
    """How the run was scored, what it skipped, with which code."""
    skip = score.rates["all"]
    kinds = {
        "prompt tokens": prompt_skip(record),
        "answer tokens (mean over tasks)": task_mean(record, panel.retain_tasks, "answer"),
    }
    skips = [f"{100 * s:.2f} % on {kind}" for kind, s in kinds.items() if s is not None]
    versions = record.versions
    commit_state = "not committed" if record.dirty else "committed"
    code, fit_code = record.code, record.fit_code or {}
    hashes = [f"{part} {digest}" for part, digest in code.items()]
    hashes += [
        f"{part} {digest} when fitted"
        for part, digest in fit_code.items()
        if digest != code.get(part)
    ]
    return {
        "scored": (
            f"{SPLITS[score.split]}, {score.shots} shots, filter {score.filter}, task "
            f"version {score.version}, prompts {score.prompt_hash}, batch size "
            f"{record.evaluation.batch_size} on {record.evaluation.device}"
        ),
        "skipped": (
            f"{100 * skip.skip:.2f} % of the dense parameters over {skip.tokens:,} tokens of "
            f"this task, {100 * record.rates['all'].skip:.2f} % over the tokens of all tasks: "
            f"{', '.join(skips)}"
        ),
        "code": (
            f"commit {str(record.commit)[:12]}, {commit_state}; {', '.join(hashes)}; "
            f"lm_eval {versions.get('lm_eval')}, torch {versions.get('torch')}"
        ),
    }


def fidelity_texts(panel: Panel, line: Line, record: Record) -> dict[str, str]:
    """How far the run lies from the dense model; nothing where it was not compared on texts."""
    if record.fidelity is None:
        return {}
    names = {"all": ("tokens", KL), "answer": ("answer tokens", f"{KL}_answer")}
    clauses = []
    for kind, distance in record.fidelity.distances.items():
        tokens, measure = names[kind]
        # The tables leave out a line of which only some seeds were compared.
        whole = panel.distances[measure].get(line.name)
        spread = ""
        if whole is not None:
            low, high = interval(whole.draws)
            spread = f" (95 % over all seeds: {low:.4f} to {high:.4f})"
        clauses.append(
            f"KL {distance.mean_kl:.4f} nats{spread}, top-1 "
            f"agreement {100 * distance.mean_agreement:.2f} %, skip {100 * distance.skip:.2f} % "
            f"over {sum(distance.tokens):,} {tokens}"
        )
    of = f"of {len(record.fidelity.distances['all'].tokens):,} texts"
    return {"from dense": f"{'; '.join(clauses)} {of}"}


def difference_texts(panel: Panel, line: Line, task: str, focus: str | None) -> dict[str, str]:
    """The differences of this row on this task from the reference and from the row in focus."""
    differences = differences_of(line, panel, focus)
    texts = {}
    for cells in differences[differences["measure"] == task].to_dict("records"):
        at = "" if pd.isna(cells["target"]) else f" at {cells['target']:g} %"
        texts[f"minus {cells['against']}{at}"] = (
            f"{cells['difference']:+.2f} points (95 %: {cells['low']:+.2f} to {cells['high']:+.2f})"
            f" over all seeds, {cells['test']} p = {cells['p']:.2g}, {cells['p_holm']:.2g} after "
            "Holm's correction"
        )
    return texts


def item_texts(results: Results, panel: Panel, file: Path, score: Score) -> dict[str, str]:
    """Numbers of the items that only this run, or only the reference, has right."""
    reference = results.files[results.records.index(panel.reference.first)]
    if reference == file or not score.higher_is_better:
        return {}
    (items, mine), (_, theirs) = (
        headline_items(pd.read_parquet(f.with_suffix(f".{ITEMS}")), score)
        for f in (file, reference)
    )
    gain = mine - theirs
    gains, losses = items[np.flatnonzero(gain > 0)], items[np.flatnonzero(gain < 0)]
    row = panel.reference.row
    return {
        f"won {len(gains)}": f"from {row}, items {' '.join(map(str, gains)) or 'none'}",
        f"lost {len(losses)}": f"to {row}, items {' '.join(map(str, losses)) or 'none'}",
    }


if __name__ == "__main__":
    run(main)
