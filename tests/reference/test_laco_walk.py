"""LaCo's walk against the notebook's: whole copies of the model, one sentence at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from methods.core.model.backbone import attention, decoder, layers
from tests.unit.methods.test_laco import BOTH, TEXTS, WALKS, fit, make

MATRICES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def notebook_merge(base: nn.Module, others: list[nn.Module], merge: str) -> None:
    """In place. Reference is the authors' loop, which reads the base it has just changed."""
    for name in MATRICES:
        for kind in ("weight", "bias"):
            target = getattr(base.get_submodule(name), kind)
            if target is None:
                continue
            untouched = target.data.clone()
            for other in others:
                weight = getattr(other.get_submodule(name), kind).data
                base_now = target.data if merge == "reference" else untouched
                target.data = target.data + (weight - base_now)


def slow_similarity(dense: PreTrainedModel, trial: PreTrainedModel, texts: Any) -> float:
    values = []
    for ids in texts:
        with torch.no_grad():
            a, b = (
                decoder(model)(torch.tensor([ids])).last_hidden_state.double().flatten()
                for model in (dense, trial)
            )
        values.append(float(a @ b / (a.norm() * b.norm())))
    return sum(values) / len(values)


def slow_walk(
    dense: PreTrainedModel, texts: Any, settings: dict[str, Any], merge: str, clamp: bool
) -> tuple[list[tuple[int, float, bool]], PreTrainedModel]:
    """The notebook: whole copies, one sentence at a time, no target."""
    present = copy.deepcopy(dense)
    width, interval = settings["C"], settings["I"]
    layer, trials = settings["H"] - width, []
    while layer >= settings["Lw"]:
        trial = copy.deepcopy(present)
        m = min(width - 1, len(layers(trial)) - layer - 1)
        merged = list(layers(trial))[layer + 1 : layer + 1 + m]
        notebook_merge(layers(trial)[layer], merged, merge)
        del layers(trial)[layer + 1 : layer + 1 + m]
        trial.config.num_hidden_layers = len(layers(trial))
        for index, block in enumerate(layers(trial)):
            attention(block).layer_idx = index
        similarity = slow_similarity(dense, trial, texts)
        accepted = similarity > settings["T"]
        trials.append((layer, similarity, accepted))
        if not accepted:
            layer -= 1
            continue
        present = trial
        layer -= interval
        if clamp:
            layer = min(layer, len(layers(present)) - width)
        elif layer >= len(layers(present)):
            layer = len(layers(present)) - 1 - width
    return trials, present


@BOTH
@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("settings", WALKS)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_the_walk_equals_the_slow_one(
    kind: str, settings: dict[str, Any], clamp: bool, merge: str
) -> None:
    model = make(8, kind)
    trials, expected = slow_walk(model, TEXTS, settings, merge, clamp)
    fitted = fit(model, merge=merge, clamp=clamp, **settings)
    found = fitted.decisions["merges"]
    assert [row["layer"] for row in found] == [layer for layer, _, _ in trials]
    assert [row["accepted"] for row in found] == [accepted for _, _, accepted in trials]
    assert [row["similarity"] for row in found] == pytest.approx(
        [similarity for _, similarity, _ in trials], abs=1e-5
    )
    ids = torch.tensor([TEXTS[0]])
    with torch.no_grad():
        torch.testing.assert_close(fitted.model(ids).logits, expected(ids).logits)


def test_some_walk_accepts_and_rejects() -> None:
    """The comparison above must not be one of walks that take all or nothing."""
    mixed = 0
    for settings in WALKS:
        trials, _ = slow_walk(make(), TEXTS, settings, "reference", False)
        mixed += len({accepted for _, _, accepted in trials}) == 2
    assert mixed >= 3
