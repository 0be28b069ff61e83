"""The card of a fitted model, on disk and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from methods.core.model.card import CARD, BackboneCard, Card, FitCard, read_card, write_card

BACKBONE = BackboneCard(
    path="/b", relative_path="../b", revision=None, hash="a" * 16, parameters=100, layers=6,
    dtype="float32", config={"model_type": "llama"},
)  # fmt: skip
PLAIN = Card(
    row="shortgpt", params={"layers": 2}, budget=0.25, match=None, seed=1, backbone=BACKBONE,
    structure={"removed_layers": [3, 4]}, fit={"seconds": 1.5},
    provenance={"commit": None, "dirty": False}, weights_hash="f" * 16,
)  # fmt: skip
START = FitCard(row="dense", params={}, seed=2, backbone=BACKBONE, structure={})


@pytest.mark.parametrize(
    "card",
    [
        PLAIN,
        replace(PLAIN, start=START),
        replace(PLAIN, structure=None, fit=None, provenance={}, weights_hash=None,
                not_applicable="too small", start=replace(START, structure=None)),
    ],
)  # fmt: skip
def test_a_card_survives_the_disk(card: Card, tmp_path: Path) -> None:
    write_card(tmp_path, card)
    assert read_card(tmp_path) == card


def test_keys_stand_in_the_order_of_a_fit(tmp_path: Path) -> None:
    write_card(tmp_path, PLAIN)
    assert list(json.loads((tmp_path / CARD).read_text())) == [
        "format", "row", "params", "budget", "match", "seed", "start", "backbone", "fit", "commit",
        "dirty", "structure", "weights_hash",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 9, "has format 9, this version reads format 1"),
        ("row", None, "'row' is None, a value of another type"),
        ("backbone", {"path": "/b"}, "backbone lacks 'relative_path'"),
        ("budget", "x", "'budget' is 'x', a value of another type"),
        ("start", {"row": "dense"}, "lacks 'params'"),
    ],
)
def test_a_damaged_card_is_refused(key: str, value: Any, message: str, tmp_path: Path) -> None:
    write_card(tmp_path, PLAIN)
    content = json.loads((tmp_path / CARD).read_text()) | {key: value}
    (tmp_path / CARD).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_card(tmp_path)


def test_a_card_without_a_structure_needs_a_reason(tmp_path: Path) -> None:
    write_card(tmp_path, replace(PLAIN, structure=None))
    with pytest.raises(ValueError, match="lacks 'structure'"):
        read_card(tmp_path)
