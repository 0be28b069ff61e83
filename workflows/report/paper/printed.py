"""The tables of the HeRo paper as printed, and what their benchmarks, backbones and rows are here.

hero_tables.csv holds one line per printed number, in percent, with the deviation over three seeds
where one is printed. Its column ``split`` is not printed: on which split of ARC a score lies (a
whole number k of its n items gives it), where both fit that of the row's other score, else test;
empty where neither fits. rows.yaml says which rows of ours stand for a method of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml

HERE = Path(__file__).parent
KEYS = ["table", "backbone", "target_budget"]
MAIN, SWEEP, ABLATION = "main_results", "alpha_sweep", "core_ablation"
MEMORY = "hero_llama31_memory_ablation"
TITLES = {
    MAIN: "Main results",
    SWEEP: "Sweep of alpha",
    ABLATION: "Component ablation",
    MEMORY: "Width of the memory",
}
# The row that is 100 % in a table's Retain.
REFERENCES = {MAIN: "Dense", SWEEP: "HeRo alpha_t=1e-3", ABLATION: "HeRo", MEMORY: "HeRo d_m=64"}
SKIP, RETAIN, AVERAGE = "param_skip", "retain", "avg_acc"
# Ours: of the benchmarks that have one split.
WITHOUT_ARC = "retain_without_arc"
HALF = 0.005  # half a unit of the last printed digit of every score
# Seeds of a number with a deviation (the paper's 42, 43 and 44).
SEEDS = 3
SHAPE_OF = {
    "Llama-3.1-8B": "llama31_8b", "Llama-2-7B": "llama2_7b", "Llama-2-13B": "llama2_13b",
}  # fmt: skip

PARAMETERS = {
    "Llama-3.1-8B": 8_030_261_248, "Llama-2-7B": 6_738_415_616, "Llama-2-13B": 13_015_864_320,
}  # fmt: skip


class Split(NamedTuple):
    """A split that a benchmark may be scored on.

    Args:
        items: Their number.
        tasks: Tasks of a suite that score it.
    """

    items: int
    tasks: tuple[str, ...]


# By the name that a column of the paper has; ARC alone has two splits with answers.
BENCHMARKS: dict[str, dict[str, Split]] = {
    "OBQA (acc_norm)": {"test": Split(500, ("openbookqa",))},
    "PIQA (acc)": {"validation": Split(1838, ("piqa",))},
    "BoolQ (acc)": {"validation": Split(3270, ("boolq",))},
    "ARC-E (acc)": {
        "test": Split(2376, ("arc_easy",)),
        "validation": Split(570, ("arc_easy_validation",)),
    },
    "ARC-C (acc)": {
        "test": Split(1172, ("arc_challenge",)),
        "validation": Split(299, ("arc_challenge_validation",)),
    },
    "WinoG (acc)": {"validation": Split(1267, ("winogrande",))},
    "HellaS (acc_norm)": {"validation": Split(10042, ("hellaswag",))},
    "GSM8K (exact_match)": {"test": Split(1319, ("gsm8k_llama",))},
    "HumanEval (pass@1)": {"test": Split(164, ("code_humaneval_instruct", "code_humaneval"))},
}
# Demonstrations, as the paper states them.
SHOTS = dict.fromkeys(BENCHMARKS, 0) | {
    "ARC-E (acc)": 25, "ARC-C (acc)": 25, "WinoG (acc)": 5, "HellaS (acc_norm)": 5,
    "GSM8K (exact_match)": 8,
}  # fmt: skip
# Choices of an item; suites count those of their items. ARC has a few of three or five, which move
# its chance by less than 0.0005. What is not here is written, not chosen.
CHOICES = {
    "OBQA (acc_norm)": 4, "PIQA (acc)": 2, "BoolQ (acc)": 2, "ARC-E (acc)": 4, "ARC-C (acc)": 4,
    "WinoG (acc)": 2, "HellaS (acc_norm)": 4,
}  # fmt: skip
SEVEN = [name for name in BENCHMARKS if not name.startswith(("GSM8K", "HumanEval"))]
ARC = [name for name, splits in BENCHMARKS.items() if len(splits) > 1]


class Group(NamedTuple):
    """A table of the paper on one backbone at one target.

    Args:
        table: The paper's label of the table.
        backbone: As the paper names it.
        target: As printed, such as ``25%``.
    """

    table: str
    backbone: str
    target: str

    @property
    def labels(self) -> dict[str, str]:
        """The columns of ``KEYS`` that name it in a frame."""
        return dict(zip(KEYS, self, strict=True))

    @property
    def percent(self) -> float:
        """The target in percent."""
        return float(self.target.removesuffix("%"))

    @property
    def name(self) -> str:
        """For files and headings of a page."""
        return f"{self.table}_{SHAPE_OF[self.backbone]}_{self.percent:g}"

    @property
    def title(self) -> str:
        """What a reader sees."""
        return f"{TITLES[self.table]}, {self.backbone} at {self.percent:g} %"


@dataclass(frozen=True)
class Family:
    """Rows of ours for the methods of a table.

    Args:
        name: ``matched`` rows meet the target, ``published`` ones have the paper's own settings.
        rows: Method -> names of our rows; a method may have several.
    """

    name: str
    rows: Mapping[str, tuple[str, ...]]


@cache
def printed_frame() -> pd.DataFrame:
    """Every printed number.

    Returns:
        Columns of ``KEYS``, method, metric, value and std (percent), split (of ARC), half (half a
        unit of the last printed digit).
    """
    frame = pd.read_csv(HERE / "hero_tables.csv", dtype=str)
    digits = frame["value"].str.partition(".")[2].str.len()
    numbers = {name: frame[name].astype(float) for name in ("value", "std")}
    return frame.assign(**numbers, half=0.5 * 10.0**-digits)


@cache
def groups() -> list[Group]:
    """The tables in the paper's order."""
    return [Group(*key) for key in printed_frame()[KEYS].drop_duplicates().to_numpy()]


def of_group(frame: pd.DataFrame, group: Group) -> pd.DataFrame:
    """The lines of a frame that are of one table."""
    return frame[(frame[KEYS] == list(group)).all(axis=1)]


@cache
def numbers_of(group: Group) -> dict[str, dict[str, float]]:
    """Method -> metric -> printed number, both in the paper's order."""
    numbers: dict[str, dict[str, float]] = {}
    for line in of_group(printed_frame(), group).to_dict("records"):
        numbers.setdefault(line["method"], {})[line["metric"]] = line["value"]
    return numbers


@cache
def split_of(group: Group, method: str, name: str) -> str | None:
    """The split that a printed score is of; None where it fits none or is not printed."""
    if name not in ARC:
        return next(iter(BENCHMARKS[name]))
    own = of_group(printed_frame(), group)
    own = own[(own["method"] == method) & (own["metric"] == name)]
    return next(iter(own["split"].dropna()), None)


def chance_of(name: str) -> float:
    """Score of a guess on a benchmark, a fraction; 0 where text is written."""
    return 1 / CHOICES[name] if name in CHOICES else 0.0


def benchmarks_of(group: Group) -> list[str]:
    """The columns of a table that are scores; the memory's table averages the seven."""
    metrics = numbers_of(group)[REFERENCES[group.table]]
    return [name for name in metrics if name in BENCHMARKS] or list(SEVEN)


@cache
def families(group: Group) -> list[Family]:
    """Our rows for a table's methods."""
    entries = yaml.safe_load((HERE / "rows.yaml").read_text(encoding="utf-8"))[group.table]
    entries = entries.get(group.target, entries)
    families_of = []
    for name, rows in entries.items():
        several = {m: (r,) if isinstance(r, str) else tuple(r) for m, r in rows.items()}
        own = {m: several[m] for m in numbers_of(group) if m in several}
        families_of.append(Family(name, own))
    return families_of


def backbone_of(parameters: int) -> str | None:
    """Which of the paper's backbones has so many parameters; None where none has.

    The paper names no revision, and its text and tables differ on whether Llama-3.1-8B is the
    instruct model, so that the count is all there is to go by.
    """
    return next((name for name, number in PARAMETERS.items() if number == parameters), None)
