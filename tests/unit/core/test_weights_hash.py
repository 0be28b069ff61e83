"""The hash by which rows that hold the same weights are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from methods import load_method, load_model
from methods.base import Fitted, Request
from methods.core.model.backbone import load_backbone
from methods.core.model.card import read_card
from methods.core.model.checkpoint import describe, open_backbone, save
from methods.core.model.folder import hash_folder

RANDOM = {"layers": [3, 4, 5], "seed": 1, "skipped_units": 1.5}


def weights(row: str, structure: dict[str, Any], llama: Path, folder: Path) -> str:
    """Of a row that is built by a structure, without a fit."""
    backbone, method = load_backbone(llama), load_method(row)
    card = describe(row, method, backbone, Request(None, 1, folder), folder)
    folder.mkdir()
    fitted = Fitted(method.build(backbone, structure), structure, {})
    save(folder, method, fitted, card, None)
    return str(read_card(folder).weights_hash)


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


@pytest.mark.parametrize(
    ("row", "structure"), [("shortgpt", {"removed_layers": [2, 3]}), ("random-skip", RANDOM)]
)
def test_a_changed_model_is_saved_with_the_hash_of_its_weights(
    row: str, structure: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    before = weights(row, structure, llama, tmp_path / "first")
    model = load_model(tmp_path / "first")
    model.save_pretrained(tmp_path / "unchanged")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.fill_(0.1)
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    load_model(tmp_path / "merged").save_pretrained(tmp_path / "again")
    names = ("unchanged", "merged", "again")
    unchanged, merged, again = (read_card(tmp_path / name).weights_hash for name in names)
    assert merged == again
    assert merged not in (before, unchanged)
    if row == "shortgpt":
        assert unchanged == before
        assert merged == hash_folder(tmp_path / "merged")


def test_a_fit_starts_from_no_files_that_were_changed_in_place(llama: Path, tmp_path: Path) -> None:
    weights("shortgpt", {"removed_layers": [2, 3]}, llama, tmp_path / "row")
    assert open_backbone(tmp_path / "row").layer_count == 4
    file = tmp_path / "row/model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] *= 2
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="not those that its skipbench.json was written for"):
        open_backbone(tmp_path / "row")
