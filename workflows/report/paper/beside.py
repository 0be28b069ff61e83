"""Every number of the paper's tables beside ours, on the paper's backbones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from workflows.report.paper.printed import (
    ARC,
    AVERAGE,
    BENCHMARKS,
    HALF,
    REFERENCES,
    RETAIN,
    SHOTS,
    SKIP,
    WITHOUT_ARC,
    Family,
    Group,
    backbone_of,
    benchmarks_of,
    families,
    groups,
    numbers_of,
    of_group,
    printed_frame,
    split_of,
)
from workflows.report.paper.verdict import CANNOT, Ours, Paper, verdict
from workflows.stats.budget import TOLERANCE
from workflows.stats.lines import Line, Panel
from workflows.stats.resample import mean_of_tasks
from workflows.stats.retain import retain
from workflows.stats.sampling import Sample, interval

COLUMNS = [
    "backbone", "match", "table", "paper_backbone", "target", "family", "method", "row", "seeds",
    "measure", "paper", "paper_std", "ours", "difference", "low", "high", "verdict", "why",
]  # fmt: skip


def known_backbones(panels: Sequence[Panel]) -> dict[str, str]:
    """Backbone of ours -> the paper's name of it, where it is one of the paper's."""
    sizes = {p.reference.backbone: p.reference.first.backbone.parameters for p in panels}
    names = {name: backbone_of(parameters) for name, parameters in sizes.items()}
    return {name: paper for name, paper in names.items() if paper is not None}


def value_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """One line per printed number and row of ours that stands for its method.

    Of a suite that ran both protocols of matching the pooled one counts, which is the paper's.

    Returns:
        The columns of ``COLUMNS``: numbers in percent, difference = ours - paper, low and high
        the 95 % interval of ours; ours is empty where it is missing, and why says so. No line on
        a backbone that is none of the paper's.
    """
    names = known_backbones(panels)
    panel_of = {panel.reference.backbone: panel for panel in reversed(panels)}
    lines = [
        line
        for name, paper in names.items()
        for group in groups()
        if group.backbone == paper
        for family in families(group)
        for line in Beside(panel_of[name], group, family).lines()
    ]
    frame = pd.DataFrame(lines, columns=COLUMNS)
    numbers = ["paper", "paper_std", "ours", "difference", "low", "high"]
    return frame.assign(**{name: frame[name].astype(float).round(4) for name in numbers})


@dataclass(frozen=True)
class Beside:
    """A table of the paper and a panel of ours, with the rows of one family.

    Args:
        panel: Ours.
        group: The paper's.
        family: Which of our rows stand for its methods.
    """

    panel: Panel
    group: Group
    family: Family

    def lines(self) -> Iterator[dict[str, Any]]:
        """Of the frame, in the paper's order."""
        for method, rows in self.family.rows.items():
            lines = [(row, line) for row in rows if (line := self.line_of(row)) is not None]
            absent: list[tuple[str, Line | None]] = [(" or ".join(rows), None)]
            for row, line in lines or absent:
                for measure, paper in self.measures(method).items():
                    yield self.labels(method, row, line) | self.comparison(
                        method, measure, paper, line
                    )

    def labels(self, method: str, row: str, line: Line | None) -> dict[str, Any]:
        """What names a line of the frame."""
        return {
            "backbone": self.panel.reference.backbone,
            "match": self.panel.match,
            "table": self.group.table,
            "paper_backbone": self.group.backbone,
            "target": self.group.percent,
            "family": self.family.name,
            "method": method,
            "row": row,
            "seeds": len(line.records) if line else 0,
        }

    def line_of(self, row: str) -> Line | None:
        """Our line of a row: at the table's target, or without one where nothing was matched."""
        targets = [None] if self.family.name == "published" else [None, self.group.percent / 100]
        lines = [line for line in self.panel.lines if line.row == row]
        return next((line for line in lines if line.budget in targets), None)

    @cached_property
    def reference(self) -> Line | None:
        """Our line for the row that is 100 % in this table."""
        rows = self.family.rows.get(REFERENCES[self.group.table], ("dense",))
        lines = [line for row in rows if (line := self.line_of(row)) is not None and line.done]
        return lines[0] if lines else None

    def measures(self, method: str) -> dict[str, Paper]:
        """What is printed of a method, and its Retain without ARC; no Retain of the reference."""
        own = of_group(printed_frame(), self.group)
        measures = {
            line["metric"]: Paper(
                line["value"], line["half"], None if pd.isna(line["std"]) else line["std"]
            )
            for line in own[own["method"] == method].to_dict("records")
        }
        if method == REFERENCES[self.group.table]:
            del measures[RETAIN]
        elif set(ARC) <= set(numbers_of(self.group)[method]):
            # The deviation of the whole Retain stands for its own, which is not printed.
            measures[WITHOUT_ARC] = Paper(*without_arc(self.group, method), measures[RETAIN].std)
        return measures

    def comparison(
        self, method: str, measure: str, paper: Paper, line: Line | None
    ) -> dict[str, Any]:
        """Our number with its interval, and the verdict."""
        columns = {"measure": measure, "paper": paper.value, "paper_std": paper.std}
        if line is None:
            return columns | {"verdict": CANNOT, "why": "no record"}
        if not line.done:
            return columns | {"verdict": CANNOT, "why": f"not applicable: {line.first.reason}"}
        ours = self.ours(method, measure, line)
        if isinstance(ours, str):
            return columns | {"verdict": CANNOT, "why": ours}
        why = self.obstacle(method, measure, line)
        word, reason = (CANNOT, why) if why else self.judgement(measure, paper, ours, line)
        return columns | {
            "ours": ours.value,
            "difference": ours.value - paper.value,
            "low": ours.low,
            "high": ours.high,
            "verdict": word,
            "why": reason,
        }

    def judgement(self, measure: str, paper: Paper, ours: Ours, line: Line) -> tuple[str, str]:
        """The verdict. A skip that was steered to a budget agrees within the suite's tolerance."""
        if measure != SKIP:
            return verdict(paper, ours)
        steered = line.budget is not None
        half = max(paper.half, 100 * TOLERANCE) if steered else paper.half
        word, why = verdict(paper._replace(half=half), ours)
        authors = 100 * sum(record.skip_authors for record in line.records) / len(line.records)
        if not why and word != "agrees" and abs(authors - paper.value) <= paper.half:
            why = f"by its authors' measure it skips {authors:.2f} %"
        return word, why

    def ours(self, method: str, measure: str, line: Line) -> Ours | str:
        """Our number, or why there is none."""
        if measure == SKIP:
            return skip_of(line)
        samples = self.panel.samples
        if measure in BENCHMARKS:
            task = self.task_of(method, measure)
            return _ours(samples[task][line.name], line) if task else f"{measure} is not scored"
        names = [
            name for name in benchmarks_of(self.group) if measure != WITHOUT_ARC or name not in ARC
        ]
        tasks = [self.standard_task(name) for name in names]
        missing = [name for name, task in zip(names, tasks, strict=True) if task is None]
        if missing:
            return f"{', '.join(missing)} is not scored"
        whole = [task for task in tasks if task is not None]
        if measure == AVERAGE:
            return _ours(mean_of_tasks(samples, line.name, whole), line)
        if self.reference is None:
            return f"no record of the row that is 100 % here ({REFERENCES[self.group.table]})"
        return _ours(mean_of_tasks(samples, line.name, whole, self.reference.name), line)

    def obstacle(self, method: str, measure: str, line: Line) -> str:
        """Why a number that exists cannot be compared; empty if it can."""
        if measure == SKIP:
            return ""
        if line.first.match == "split":
            return "match split: the paper matches pooled tokens"
        own, theirs = skip_of(line).value, numbers_of(self.group)[method][SKIP]
        if line.budget is not None and abs(own - theirs) > 100 * TOLERANCE:
            return f"budget: skips {own:.1f} %, the paper's row {theirs:.1f} %"
        if measure in BENCHMARKS:
            return self.other_items(method, measure, self.task_of(method, measure), line)
        names = [n for n in benchmarks_of(self.group) if measure != WITHOUT_ARC or n not in ARC]
        rows = [method] if measure == AVERAGE else [method, REFERENCES[self.group.table]]
        reasons = [
            self.other_items(row, name, self.standard_task(name), line)
            for name in names
            for row in rows
        ]
        return "; ".join(dict.fromkeys(reason for reason in reasons if reason))

    def other_items(self, method: str, name: str, task: str | None, line: Line) -> str:
        """How a score differs from the paper's in items, metric or demonstrations; else empty."""
        split = split_of(self.group, method, name)
        short = name.split(" ")[0]
        if split is None and name not in numbers_of(self.group)[method]:
            return f"split: the paper prints no {short} of {method}"
        own = next(s for s, of in BENCHMARKS[name].items() if task in of.tasks)
        if split is None:
            return f"split: the paper's {short} of {method} fits none"
        if split != own:
            return f"split: the paper's {short} of {method} is of {split}, ours of {own}"
        score = line.first.headlines[str(task)]
        items, metric = BENCHMARKS[name][own].items, name.split("(")[1].rstrip(")")
        if score.n != items:
            return f"limit: {short} on {score.n:,} of {items:,} items"
        if score.metric != metric:
            return f"metric: {short} by {score.metric}"
        if score.shots != SHOTS[name]:
            return f"shots: {short} with {score.shots}, the paper's with {SHOTS[name]}"
        return ""

    def task_of(self, method: str, name: str) -> str | None:
        """Our task on the split of a printed score, else on the one of our Retain; None if none."""
        split = BENCHMARKS[name].get(split_of(self.group, method, name) or "")
        tasks = [task for task in split.tasks if task in self.panel.samples] if split else []
        return tasks[0] if tasks else self.standard_task(name)

    def standard_task(self, name: str) -> str | None:
        """Our task for a benchmark: the one of our Retain, else any that was scored."""
        tasks = [task for split in BENCHMARKS[name].values() for task in split.tasks]
        own = [task for task in tasks if task in self.panel.retain_tasks]
        return next((task for task in (*own, *tasks) if task in self.panel.samples), None)


def without_arc(group: Group, method: str) -> tuple[float, float]:
    """Retain over the benchmarks that have one split, from the printed scores.

    Returns:
        It and the most that rounding makes of it, both in percent.
    """
    rows = [numbers_of(group)[row] for row in (method, REFERENCES[group.table])]
    left = [name for name in benchmarks_of(group) if name not in ARC]
    own, base = ({name: row[name] for name in left} for row in rows)
    errors = [HALF * (1 + own[name] / base[name]) / base[name] for name in left]
    return 100 * float(retain(own, base)), 100 * float(np.mean(errors))


def skip_of(line: Line) -> Ours:
    """Realised skip in percent; its interval covers seeds only (Student's t)."""
    skips = pd.Series([100 * record.rates["all"].skip for record in line.records])
    value, runs = float(skips.mean()), len(skips)
    std = float(skips.std(ddof=1)) if runs > 1 else None
    wide = 0.0 if std is None else float(stats.t.ppf(0.975, runs - 1)) * std / sqrt(runs)
    return Ours(value, value - wide, value + wide, runs, std, line.first.stochastic)


def _ours(sample: Sample, line: Line) -> Ours:
    low, high = interval(sample.draws)
    std = None if sample.std is None else 100 * sample.std
    return Ours(
        100 * sample.value, 100 * low, 100 * high, len(line.records), std,
        line.first.stochastic,
    )  # fmt: skip
