"""The hash by which rows that hold the same weights are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from methods import load_method
from methods.base import Fitted, Request
from methods.core.backbone import load_backbone
from methods.core.checkpoint import describe, save
from methods.core.pretrained import read_card

RANDOM = {"layers": [3, 4, 5], "seed": 1, "skipped_units": 1.5}


def weights(row: str, structure: dict[str, Any], llama: Path, folder: Path) -> str:
    """Of a row that is built by a structure, without a fit."""
    backbone, method = load_backbone(llama), load_method(row)
    card = describe(row, method, backbone, Request(None, 1, folder), folder)
    folder.mkdir()
    fitted = Fitted(method.build(backbone, structure), structure, {})
    save(folder, method, fitted, card, None)
    return str(read_card(folder)["weights_hash"])


def test_rows_that_remove_the_same_layers_hold_the_same_weights(
    llama: Path, tmp_path: Path
) -> None:
    cut = {"removed_layers": [2, 3]}
    rows = ("shortgpt", "shortened-ppl", "shortened-taylor")
    assert len({weights(row, cut, llama, tmp_path / row) for row in rows}) == 1
    other = weights("shortgpt", {"removed_layers": [2, 4]}, llama, tmp_path / "other")
    assert other != weights("shortgpt", cut, llama, tmp_path / "again")


def test_routed_rows_are_told_apart_by_what_routes_them(llama: Path, tmp_path: Path) -> None:
    hero = {"layers": [3, 4, 5], "seed": 1, "threshold": 0.5}
    first = weights("hero", hero, llama, tmp_path / "hero")
    assert weights("hero", hero, llama, tmp_path / "again") == first
    others = {
        "threshold": ("hero", hero | {"threshold": 0.4}),
        "trained": ("hero", hero | {"seed": 2}),
        "dense": ("dense", {}),
        "random": ("random-skip", RANDOM),
        "random otherwise": ("random-skip", RANDOM | {"seed": 2}),
    }
    found = [weights(*given, llama, tmp_path / name) for name, given in others.items()]
    assert len({first, *found}) == 1 + len(others)
