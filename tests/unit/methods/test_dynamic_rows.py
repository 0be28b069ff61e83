"""What MoD-D, D-LLM and SkipGPT share: batches, padding, replay, resume, what a folder keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from methods import load_method, load_model, skipgpt
from methods.base import Fitted, Request
from methods.core.model.backbone import attention, layers, load_backbone
from methods.core.model.card import read_card
from methods.core.model.checkpoint import describe, save
from methods.core.routing.routed import router_of
from tests import steps
from tests.toys.models import make_model, wrap
from tests.toys.routed import (
    IDS,
    LISTS_LAYERS,
    VARIANTS,
    build_variant,
    fit,
    shake_variant,
    training_context,
)
from tests.toys.tasks import make_tasks
from tests.toys.training import interrupt_and_follow, same_bits, slow_clock
from workflows.evaluation.harness import CountingLM
from workflows.evaluation.models import harness_arguments, load_any
from workflows.evaluation.score import score
from workflows.evaluation.tasklist import parse_tasks

ALL = pytest.mark.parametrize("variant", VARIANTS)
TRAINED = pytest.mark.parametrize(
    "variant",
    [
        "skipgpt-rt", "skipgpt-joint", "d-llm", "d-llm-skipgpt", "mod-d", "flexidepth", "diffskip",
        "mindskip-block",
    ],
)  # fmt: skip
LENGTHS = (11, 4, 8, 1)


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def padded(side: str) -> tuple[Tensor, Tensor]:
    """Sequences of four lengths in one batch, ids and mask; pads are a real word."""
    ids, mask = torch.full((4, 13), 9), torch.zeros(4, 13, dtype=torch.int64)
    for row, length in enumerate(LENGTHS):
        place = slice(13 - length, 13) if side == "left" else slice(0, length)
        ids[row, place], mask[row, place] = IDS[row, :length], 1
    return ids, mask


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@ALL
@torch.no_grad()
def test_batches_and_pads_change_no_route(variant: str, kind: str) -> None:
    """Each sequence alone, in a batch, padded left and right; double precision."""
    # The weights that scale the modules of these rows are float32.
    single = variant.startswith(("mod-d", "flexidepth", "diffskip", "hero"))
    near = {"rtol": 0, "atol": 1e-5 if single else 1e-11}
    model = shake_variant(variant, kind, torch.float64)
    alone = [
        model.model(IDS[row : row + 1, :length], use_cache=False)
        for row, length in enumerate(LENGTHS)
    ]
    share = torch.cat([output.executed.flatten() for output in alone]).float().mean()
    assert 0.2 < share < 0.8
    together = model.model(IDS, use_cache=False)
    assert torch.equal(together.executed[:1], alone[0].executed)
    torch.testing.assert_close(together.last_hidden_state[:1], alone[0].last_hidden_state, **near)
    for side in ("left", "right"):
        ids, mask = padded(side)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        output = model.model(ids, attention_mask=mask, position_ids=positions, use_cache=False)
        for row, expected in enumerate(alone):
            real = mask[row].bool()
            assert torch.equal(output.executed[row][:, real], expected.executed[0])
            torch.testing.assert_close(
                output.last_hidden_state[row, real], expected.last_hidden_state[0], **near
            )


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        ("skipgpt-rt", "qwen2"),
        ("mindskip-block", "qwen2"),
        ("flexidepth", "qwen2"),
        ("d-llm", "llama"),
    ],
)
def test_a_static_cache_of_transformers_writes_the_same(variant: str, kind: str) -> None:
    """It comes with masks made for attention, one for each kind of layers."""
    model = shake_variant(variant, kind)
    ids, mask = padded("left")
    options = {"attention_mask": mask, "max_new_tokens": 4, "pad_token_id": 9}
    written = model.generate(ids, **options)
    assert torch.equal(model.generate(ids, cache_implementation="static", **options), written)


@pytest.mark.parametrize(
    "variant", ["skipgpt-rt", "skipgpt-rt-mlp", "skipgpt-joint", "mod-d", "mod-d-topk"]
)
@torch.no_grad()
def test_the_ffn_router_does_not_see_attention(variant: str) -> None:
    """What changes in a layer's attention reaches routers of later layers only."""
    model = shake_variant(variant)
    before = model.model(IDS, use_cache=False).executed
    layers(model)[2].self_attn.o_proj.weight.mul_(-3.0)
    after = model.model(IDS, use_cache=False).executed
    upto = sum(unit.layer <= 2 for unit in model.model.router.units)
    assert torch.equal(before[:, :upto], after[:, :upto])
    assert not torch.equal(before[:, upto:], after[:, upto:])


@pytest.mark.parametrize("variant", ["skipgpt-rt", "skipgpt-rt-mlp", "skipgpt-joint", "d-llm"])
def test_gradients_of_the_two_biases_are_opposite(variant: str) -> None:
    """D-LLM's gradient comes through attention as well."""
    model = shake_variant(variant)
    states = model.model(IDS, use_cache=False, context=training_context()).last_hidden_state
    states.square().mean().backward()
    for router in model.model.router.routers:
        bias = router.bias if isinstance(router, nn.Linear) else router[-1].bias
        assert bias.grad[0] != 0
        assert float(bias.grad.sum()) == pytest.approx(0, abs=1e-6 * float(bias.grad[0].abs()))


@pytest.mark.parametrize("variant", ["skipgpt-joint", "mod-d", "hero+lora"])
def test_lora_beside_a_router_is_scaled_by_two(variant: str) -> None:
    assert attention(layers(build_variant(variant))[0]).q_proj.scaling == {"default": 2.0}


@TRAINED
def test_noise_is_the_same_in_the_replay_of_a_checkpoint(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    real = make_model

    def counting() -> Any:
        model = real()
        head = model.model.layers[3].self_attn.k_proj
        head.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
        return model

    monkeypatch.setattr("tests.toys.routed.make_model", counting)
    found = []
    for on in (False, True):
        calls.clear()
        fitted = fit(variant, tmp_path / str(on), micro_tokens=40, checkpointing=on)
        found.append((trained(fitted.model), fitted.structure, fitted.decisions))
        assert sum(calls) == 6 * 2 * (2 if on else 1), "recomputed in every backward pass"
    same_bits(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


@TRAINED
def test_killed_and_resumed_equals_undisturbed(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock(monkeypatch)
    whole = fit(variant, tmp_path / "whole", snapshot_minutes=3)
    updates = interrupt_and_follow(
        monkeypatch, 4, lambda: fit(variant, tmp_path / "parts", snapshot_minutes=3)
    )
    temperatures: list[float] = []
    sampled = skipgpt.sample_gates
    monkeypatch.setattr(
        skipgpt, "sample_gates", lambda d, n, t: temperatures.append(t) or sampled(d, n, t)
    )
    resumed = fit(variant, tmp_path / "parts", snapshot_minutes=3)
    assert updates == [3, 4, 5]
    if variant.startswith("skipgpt"):
        expected = [5 - 4 * n / 6 for n in updates]
        assert sorted(set(temperatures), reverse=True) == pytest.approx(expected)
    same_bits(trained(whole.model), trained(resumed.model))
    assert resumed.decisions == whole.decisions
    assert resumed.structure == whole.structure


@pytest.mark.parametrize("variant", ["mod-d", "d-llm"])
def test_a_snapshot_of_another_target_is_left_alone(variant: str, tmp_path: Path) -> None:
    fit(variant, tmp_path / "used", 0.2, updates=2)
    again = fit(variant, tmp_path / "used", 0.3, updates=2)
    anew = fit(variant, tmp_path / "new", 0.3, updates=2)
    same_bits(trained(again.model), trained(anew.model))
    assert again.decisions == anew.decisions


@TRAINED
def test_training_moves_every_router(variant: str, tmp_path: Path) -> None:
    method = load_method(*VARIANTS[variant])
    start: dict[str, Any] = {"seed": 5, "threshold": 0.5, "capacity": 0.7, "levels": None}
    if VARIANTS[variant][0] in LISTS_LAYERS:
        start |= {"layers": [3, 4, 5]}
    before = trained(method.build(wrap(make_model()), start))
    after = trained(fit(variant, tmp_path).model)
    # Adapters learn once a token skips.
    moving = [name for name in before if "adapters" not in name]
    still = {name for name in moving if torch.equal(before[name], after[name])}
    assert not still


def saved(variant: str, levels: Any, backbone: Path, out: Path) -> nn.Module:
    """A model with untrained routers, in the folder ``out`` as the fit step writes it."""
    row, params = VARIANTS[variant]
    structure: dict[str, Any] = {"seed": 7, "threshold": 0.37}
    if row == "mod-d":
        structure |= {"capacity": 0.61, "levels": levels}
    if row in LISTS_LAYERS:
        structure |= {"layers": [1, 2, 3]}
    method, wrapped = load_method(row, params), load_backbone(backbone)
    card = describe(row, method, wrapped, Request(0.25, 7, out.parent), out)
    model = method.build(wrapped, structure).eval()
    out.mkdir()
    save(out, method, Fitted(model, structure, {}), card, None)
    assert read_card(out).structure == structure
    return model


@ALL
def test_a_folder_keeps_threshold_levels_and_capacity(
    variant: str, llama: Path, tmp_path: Path
) -> None:
    levels = None if variant.endswith("topk") else [[0.1 * n, 1.0 + n] for n in range(8)]
    model = saved(variant, levels, llama, tmp_path / "made")
    loaded = load_model(tmp_path / "made")
    kept, was = router_of(loaded), router_of(model)
    for name in ("threshold", "levels", "capacity", "seed"):
        assert getattr(kept, name, None) == getattr(was, name, None)
    assert kept.threshold == 0.37
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize(("variant", "batchable"), [("mod-d", True), ("mod-d-topk", False)])
def test_texts_that_compete_with_pads_are_scored_as_alone(
    variant: str, batchable: bool, llama: Path, tmp_path: Path
) -> None:
    saved(variant, [[0.0, 1.0]] * 8 if batchable else None, llama, tmp_path / "made")
    tasks = make_tasks(tmp_path / "tasks", items=12)
    parts = harness_arguments(load_any(tmp_path / "made", None, "cpu"))
    assert parts["batchable"] == batchable

    def rates(batch_size: int, may_pad: bool) -> list[Any]:
        lm = CountingLM(**parts | {"batchable": may_pad}, batch_size=batch_size, max_length=None)
        scored = score(lm, parse_tasks("toy_choice,toy_write"), [tasks])
        return [[part["value"], part["rates"]["all"]["skip"]] for part in scored.scores]

    alone = rates(1, True)
    assert rates(8, batchable) == alone
    assert (rates(8, True) == alone) == batchable
    steps.call(
        "score", "--model", tmp_path / "made", "--tasks", "toy_choice,toy_write", "--task-dir",
        tasks, "--batch-size", 8, "--device", "cpu", "--out", tmp_path / "record.json",
    )  # fmt: skip
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["evaluation"]["equal_lengths"] != batchable
    assert [[part["value"], part["rates"]["all"]["skip"]] for part in record["scores"]] == alone


@pytest.mark.parametrize(
    ("row", "params"),
    [("hero", {"candidates": "all-but-first", "alpha": 1e-3}), ("d-llm", {}), ("mod-d", {})],
)
def test_a_backbone_without_a_layer_to_route_is_told(
    row: str, params: dict[str, Any], tmp_path: Path
) -> None:
    budget = None if params else 0.25
    dense = wrap(make_model(num_hidden_layers=1))
    reason = load_method(row, params).skip_reason(dense, Request(budget, 1, tmp_path))
    assert reason is not None and "none of the 1 layers" in reason
