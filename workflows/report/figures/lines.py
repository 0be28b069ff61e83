"""Lines of frames: their names, and splitting what is too many for one figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workflows.stats.lines import LINE_KEYS

ORDER = ("match", "target", "part")
VARIANTS = "variants"
# At most so many sheets of one figure.
SHEETS = 8


class Sheet(NamedTuple):
    """One figure of several: the part of the lines in it, and its number in this part, from 0."""

    part: tuple[str, ...]
    number: int
    lines: pd.DataFrame

    @property
    def suffix(self) -> str:
        """What its name ends with, unless it is the first of all."""
        return "_".join(filter(None, [*self.part, str(1 + self.number) if self.number else ""]))


def line_names(lines: pd.DataFrame) -> list[str]:
    """Title of each line, with what tells lines of one title apart: target, protocol, backbone."""
    several = {name: lines[name].nunique() > 1 for name in ("backbone", "match", "target")}
    names = []
    for line in lines.to_dict("records"):
        name = f"{line['backbone']}: " * several["backbone"] + str(line["title"])
        # A reference skips nothing; it has a target where a row with one is subtracted from it.
        beside = "against " if line["kind"] == "reference" else ""
        if not pd.isna(line["target"]) and several["target"]:
            name += f", {beside}{line['target']:g} %"
        if not pd.isna(line["match"]) and several["match"]:
            name += f", {line['match']}"
        names.append(name)
    return names


def of_run(frame: pd.DataFrame, run: Mapping[Any, Any]) -> pd.DataFrame:
    """The part of a frame that has the ``LINE_KEYS`` of one line."""
    for key in LINE_KEYS:
        frame = frame[frame[key].isna() if pd.isna(run[key]) else frame[key] == run[key]]
    return frame


def panel_title(lines: pd.DataFrame, whole: pd.DataFrame) -> str:
    """What tells the lines of a panel from those of the whole figure; empty if nothing does."""
    words = []
    for name, form in (("backbone", "{}"), ("match", "match {}"), ("target", "{:g} %")):
        if whole[name].nunique() > 1 and lines[name].nunique() == 1:
            words.append(form.format(lines[name].dropna().iloc[0]))
    return ", ".join(words)


def with_part(lines: pd.DataFrame, methods: Mapping[str, str]) -> pd.DataFrame:
    """The lines with ``family`` (the row of their method) and ``part``: main or variants."""
    family = lines["row"].map(lambda row: methods.get(row, row))
    return lines.assign(family=family, part=np.where(lines["row"] == family, "", VARIANTS))


def parts(lines: pd.DataFrame, most: int) -> dict[str, pd.DataFrame]:
    """Suffix of a figure's name -> its lines.

    Lines are split by protocol, then by target, then into main rows and variants, until no part
    has more than ``most`` lines. Parts that are still longer are cut into several sheets. The first
    sheet has no suffix. Lines without a protocol (``match`` empty) and references (no target) are
    in every part that has other lines. Of more than ``SHEETS`` sheets those of variants are left
    out; if there are still too many, all but the first of each part.
    """
    parts_of: dict[tuple[str, ...], pd.DataFrame] = {(): lines}
    for column in ORDER:
        if max(len(part) for part in parts_of.values()) <= most or column not in lines:
            break
        parts_of = {
            (*name, label): own
            for name, part in parts_of.items()
            for label, own in _split(part, column).items()
            if _skips(own).any() or not _skips(lines).any()
        }
    sheets = [
        Sheet(name, start // most, part[start : start + most])
        for name, part in parts_of.items()
        for start in range(0, len(part), most)
    ]
    if len(sheets) > SHEETS:
        main = [sheet for sheet in sheets if not (sheet.lines["part"] == VARIANTS).all()]
        sheets = main or sheets
    if len(sheets) > SHEETS:
        sheets = [sheet for sheet in sheets if sheet.number == 0]
    return {
        f"_{sheet.suffix}" if place else "": sheet.lines.reset_index(drop=True)
        for place, sheet in enumerate(sheets)
    }


def _split(lines: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    """The lines by value of a column; lines without a value are in every part."""
    common = lines[column].isna()
    if column == "target":
        common &= ~_skips(lines)
    values = list(dict.fromkeys(lines[~common][column].dropna()))
    free = [None] if lines[~common][column].isna().any() else []
    if len(values) + len(free) < 2:
        return {"": lines}
    return {
        _label(value): lines[common | _same(lines[column], value)] for value in [*values, *free]
    }


def _skips(lines: pd.DataFrame) -> pd.Series[Any]:
    """Which lines are not references without a target."""
    return (lines["kind"] != "reference") | lines["target"].notna()


def _same(column: pd.Series[Any], value: Any) -> pd.Series[Any]:
    return column.isna() if value is None else column == value


def _label(value: Any) -> str:
    if value is None:
        return "free"
    return value if isinstance(value, str) else f"b{value:g}"
