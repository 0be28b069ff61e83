"""One FFN and a training step on the clock: what is timed, and the bounds beside it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from methods import load_method
from methods.core.data import Document
from methods.core.model.backbone import count
from methods.core.model.shapes import ATTENTION, FFN
from methods.core.routing import layer
from methods.core.routing.routed import router_of
from methods.core.training.documents import document_mask
from methods.core.training.packing import lay_out
from tests.toys.models import make_model, wrap
from tests.unit.timing.test_work import BENCH, hero
from workflows.timing import modes
from workflows.timing.inference import Texts
from workflows.timing.modes import _training_step, _with_lora, time_ffn, time_training


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("projections", "adapted"), [((*ATTENTION, *FFN), range(6)), (FFN, range(3, 6))]
)
def test_lora_is_timed_on_the_weights_of_the_routed_model(
    projections: tuple[str, ...], adapted: range, tied: bool
) -> None:
    dense = make_model("llama", hidden_size=64, tie_word_embeddings=tied)
    structure = {"layers": [3, 4, 5], "seed": 0, "threshold": 0.5}
    model: Any = load_method("hero").build(wrap(dense), structure)
    lora = _with_lora(model, projections, adapted)
    held = {parameter.data_ptr() for parameter in model.parameters()}
    trained = set()
    for name, parameter in lora.named_parameters():
        assert (parameter.data_ptr() in held) != parameter.requires_grad
        if parameter.requires_grad:
            _, _, layer, _, projection, *_ = name.split(".")
            trained.add((int(layer), projection))
    assert trained == set(product(adapted, projections))
    ids = Texts.random(60).rows(2, 8)
    with torch.no_grad():
        expected = make_model("llama", hidden_size=64, tie_word_embeddings=tied)(ids)
        torch.testing.assert_close(lora(ids).logits, expected.logits)
    _training_step(lora, ids, {})
    assert all((p.grad is not None) == p.requires_grad for p in lora.parameters())


def test_a_training_step_has_the_mask_of_the_trainer() -> None:
    model, masks = hero(), list[Tensor]()
    hook = model.model.register_forward_pre_hook(
        lambda _, __, given: masks.append(given["attention_mask"]), with_kwargs=True
    )
    _training_step(model, Texts.random(60).rows(2, 16), {})
    hook.remove()
    document = Document(list(range(4)), 0)
    assert torch.equal(
        masks[0], document_mask(lay_out([document] * 8, 16, 1.0).positions, torch.float32)
    )


def test_a_block_is_timed_as_a_layer_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, plain = list[int](), layer.dispatch

    def counted(rows: Tensor, execute: Tensor, *others: Any) -> Tensor:
        calls.append(int(execute.sum()))
        return plain(rows, execute, *others)

    monkeypatch.setattr(layer, "dispatch", counted)
    model = hero()
    lines, router = time_ffn(model, 0.25, BENCH), router_of(model)
    assert router is not None
    assert len(calls) == 2 * BENCH.turns
    (real,) = {1 - ran / 2048 for ran in calls}
    bound = 1 - real + real * count(router.alternative(0)) / router.units[0].parameters
    for line in lines:
        assert (line["bypass"], line["bound"]) == (real, pytest.approx(bound))


def test_a_block_has_gradients_in_its_backward_case_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen, plain = hero(), list[tuple[bool, bool]](), modes.add_ffn
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def noted(base: Tensor, *others: Any) -> Tensor:
        left = any(tensor.grad is not None for tensor in (base, *trained))
        seen.append((torch.is_grad_enabled(), left))
        return plain(base, *others)

    monkeypatch.setattr(modes, "add_ffn", noted)
    time_ffn(model, 0.25, BENCH)
    assert seen == [(False, False)] * BENCH.turns + [(True, False)] * BENCH.turns


@pytest.mark.parametrize("recompute", [False, True])
def test_a_line_of_training_says_what_was_measured(recompute: bool) -> None:
    model = hero()
    line, short = (
        time_training(model, (2, 8), 0.5, recompute, BENCH, ffns) for ffns in (False, True)
    )
    assert (line["mode"], short["mode"]) == ("training", "training-ffn")
    assert line["case"] == "2x8" + " recomputed" * recompute
    assert len(line["raw"]) == 2
    assert line["tokens_per_second"] == pytest.approx(16 / line["seconds"][50])
    # Gradients of LoRA reach every layer, or the upper three of six alone.
    assert 0 < line["bound"] < 0.8 * short["bound"]
    assert not model.model.checkpointing
