"""Deviation between seeds of rows that train or draw, shown with suites that run one seed.

It comes from a published suite with several seeds, whose folder is an option of the steps.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from methods.core.jsonfile import read_json
from workflows import ROOT
from workflows.records.record import Record
from workflows.report.published import REFERENCE, SOURCE
from workflows.stats.lines import LINE_KEYS

HEADLINE = REFERENCE / "headline"


class SeedSpread(NamedTuple):
    """The deviations of a published suite.

    Args:
        name: Its folder, for people.
        retain: Its retain frame; the deviation is in ``retain_std``.
        source: Its source.json: tasks of the Retain, digests of fits, training.
    """

    name: str
    retain: pd.DataFrame
    source: Mapping[str, Any]

    def of(self, fits: Mapping[str, str], tasks: Sequence[str]) -> dict[str, float]:
        """Name of a line -> its deviation, where it was fitted and is scored alike there.

        Args:
            fits: See :func:`fits`.
            tasks: Of the Retain.
        """
        if set(tasks) != set(self.source["retain_tasks"]):
            return {}
        there = self.source.get("fits", {})
        names = [
            _name(*(line[key] for key in LINE_KEYS)) for line in self.retain.to_dict("records")
        ]
        return {
            name: deviation
            for name, deviation in zip(names, self.retain["retain_std"], strict=True)
            if name in fits and there.get(name) == fits[name] and not pd.isna(deviation)
        }

    def label(self, settings: Mapping[str, Any]) -> str:
        """``reports/reference/headline (1,500 updates there, 600 here)``.

        Args:
            settings: Of the suite that is shown, as in source.json.
        """
        here, there = (each.get("training", {}).get("updates") for each in (settings, self.source))
        if there and here and there != here:
            return f"{self.name} ({there:,} updates there, {here:,} here)"
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
    file = folder / "retain.csv"
    if not (folder / SOURCE).is_file() or not file.is_file():
        raise ValueError(f"{folder} is no published suite (skipbench publish makes one)")
    settings = read_json(folder / SOURCE)
    own = folder.resolve()
    name = own.relative_to(ROOT) if own.is_relative_to(ROOT) else folder
    return SeedSpread(name.as_posix(), pd.read_csv(file), settings)


def fits(records: Sequence[Record]) -> dict[str, str]:
    """Name of a line -> digest of backbone and params; the number of updates may differ."""
    digests = {}
    for record in records:
        params = {name: value for name, value in record.params.items() if name != "updates"}
        start = [] if record.start is None else [dict(record.start.params)]
        text = json.dumps([record.backbone.hash, params, *start], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        target = None if record.budget is None else 100 * record.budget
        # A row without a protocol is a line of the tables of both.
        for match in [record.match] if record.match else ("pooled", "split"):
            digests[_name(record.backbone.name, target, match, record.row)] = digest
    return digests


def with_seed_deviation(
    retain: pd.DataFrame,
    records: Sequence[Record],
    tasks: Sequence[str],
    spread: SeedSpread | None,
) -> pd.DataFrame:
    """The retain frame with ``seed_std``, in points, for rows that train or draw and ran one seed.

    A deviation counts if it is of the same backbone, params and tasks of the Retain. Where none is
    known the note says so.
    """
    of_seeds = {(record.backbone.name, record.row) for record in records if record.stochastic}
    known = {} if spread is None else spread.of(fits(records), tasks)
    deviations, notes = [], []
    for line in retain.to_dict("records"):
        deviation = known.get(_name(*(line[key] for key in LINE_KEYS)))
        scored = line["seeds"] == 1 and pd.notna(line["retain"])
        alone = scored and (line["backbone"], line["row"]) in of_seeds
        silent = ["between seeds: not known"] if alone and deviation is None else []
        deviations.append(deviation if alone else None)
        notes.append("; ".join(filter(None, [line["note"], *silent])))
    return retain.assign(seed_std=pd.Series(deviations, dtype=float), note=notes)


def _name(backbone: str, target: float | None, match: str, row: str) -> str:
    """``demo/25/pooled/hero``."""
    percent = "-" if target is None or pd.isna(target) else f"{target:g}"
    return f"{backbone}/{percent}/{match}/{row}"
