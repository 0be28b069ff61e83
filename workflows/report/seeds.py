"""Deviation between seeds of trained rows, shown with suites that run one seed.

It comes from a published suite with several seeds, whose folder is an option of the steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from methods.core.jsonfile import read_json
from workflows import ROOT
from workflows.records.record import Record
from workflows.report.published import REFERENCE, SOURCE

HEADLINE = REFERENCE / "headline"
KEYS = ["backbone", "target", "match", "row"]


class SeedSpread(NamedTuple):
    """The deviations of a published suite.

    Args:
        name: Its folder, for people.
        retain: Its retain frame; the deviation is in ``retain_std``.
        updates: Updates of its trained rows; None where its source does not say.
    """

    name: str
    retain: pd.DataFrame
    updates: int | None

    def label(self, settings: Mapping[str, Any]) -> str:
        """``reports/reference/headline (1,500 updates there, 600 here)``.

        Args:
            settings: Of the suite that is shown, as in source.json.
        """
        here = settings.get("training", {}).get("updates")
        if self.updates and here and self.updates != here:
            return f"{self.name} ({self.updates:,} updates there, {here:,} here)"
        return self.name


def add_spread_argument(parser: argparse.ArgumentParser) -> None:
    """The option that names the folder."""
    parser.add_argument(
        "--between-seeds", type=Path, metavar="DIR",
        help="a published suite of several seeds, which says how far seeds lie apart for rows that "
        "ran one (default: reports/reference/headline of a checkout)",
    )  # fmt: skip


def read_spread(folder: Path | None) -> SeedSpread | None:
    """The deviations of the suite in a folder.

    Args:
        folder: None for that of the checkout.

    Returns:
        None outside a checkout, where no folder is given.

    Raises:
        ValueError: The named folder holds no published suite.
    """
    if folder is None and not HEADLINE.is_dir():
        return None
    folder = HEADLINE if folder is None else folder
    settings, file = read_json(folder / SOURCE), folder / "retain.csv"
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    own = folder.resolve()
    name = own.relative_to(ROOT) if own.is_relative_to(ROOT) else folder
    return SeedSpread(
        name.as_posix(), pd.read_csv(file), settings.get("training", {}).get("updates")
    )


def with_seed_deviation(
    retain: pd.DataFrame, records: Sequence[Record], spread: SeedSpread | None
) -> pd.DataFrame:
    """The retain frame with ``seed_std``, in points, for trained rows that ran one seed.

    Where no deviation is known the note says so.
    """
    trained_rows = {
        (record.backbone.name, record.row)
        for record in records
        if record.fit is not None and record.fit.trained_parameters
    }
    published = retain.head(0) if spread is None else spread.retain
    there = retain[KEYS].merge(published[[*KEYS, "retain_std"]], on=KEYS, how="left")["retain_std"]
    deviations, notes = [], []
    for line, deviation in zip(retain.to_dict("records"), there, strict=True):
        alone = line["seeds"] == 1 and (line["backbone"], line["row"]) in trained_rows
        silent = ["between seeds: not known"] if alone and pd.isna(deviation) else []
        deviations.append(deviation if alone else None)
        notes.append("; ".join(filter(None, [line["note"], *silent])))
    return retain.assign(seed_std=pd.Series(deviations, dtype=float), note=notes)
