"""The training loop under every trained row: what may not change its numbers, and what must."""

from __future__ import annotations

import math
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn
from tqdm import tqdm

from methods.core.data import Document
from methods.core.model.backbone import layers
from methods.core.training.loop import Trainer, thin
from methods.core.training.packing import document_batches, lay_out
from methods.core.training.params import TrainingParams
from tests.toys.models import make_model
from tests.toys.texts import documents
from tests.toys.training import (
    build_row,
    one_update,
    same_bits,
    same_gradients,
    trainer_for,
    values,
)

ROWS = pytest.mark.parametrize("row", ["hero", "lora"])


@ROWS
def test_packed_equals_one_document_per_row(row: str, tmp_path: Path) -> None:
    found = []
    for length in (0, 25, 60):
        trainer = trainer_for(row, tmp_path / str(length), updates=1, row_length=length)
        found.append(one_update(trainer))
    batch = next(document_batches([len(d.ids) for d in trainer.documents], 60, 5))
    shapes = [
        lay_out([trainer.documents[n] for n in batch], length, 1.0).ids.shape
        for length in (0, 25, 60)
    ]
    assert len(shapes) == len({shape[0] for shape in shapes}) == 3, "packing had nothing to do"
    for entry, gradients in found[1:]:
        for key in {"loss", "penalty", "norm"} & entry.keys():
            assert entry[key] == pytest.approx(found[0][0][key], rel=1e-5)
        assert entry.get("skip") == found[0][0].get("skip")
        assert ("skip" in entry) == (row == "hero")
        same_gradients(found[0][1], gradients, 1e-5)


@ROWS
def test_accumulation_gives_the_same_update(row: str, tmp_path: Path) -> None:
    found, after, passes = [], [], list[int]()
    for most in (0, 40, 20):
        changes = {"updates": 1, "row_length": 20, "micro_tokens": most}
        trainer = trainer_for(row, tmp_path / str(most), **changes)
        batch = next(document_batches([len(d.ids) for d in trainer.documents], 60, 5))
        passes.append(len(trainer._micro_batches([trainer.documents[n] for n in batch])))
        found.append(one_update(trainer))
        after.append(values(trainer))
    assert passes == [1, 2, 4]
    for (entry, gradients), weights in zip(found[1:], after[1:], strict=True):
        for key, tolerance in {"loss": 1e-6, "penalty": 1e-6, "skip": 1e-12}.items():
            if key in entry:
                assert entry[key] == pytest.approx(found[0][0][key], rel=tolerance)
        same_gradients(found[0][1], gradients, 1e-6)
        for name, weight in weights.items():
            # Adam's first step has the size of the learning rate however small the gradient is, so
            # that a gradient which is all rounding moves its weight anywhere.
            real = found[0][1][name].abs() > 1e-5
            torch.testing.assert_close(weight[real], after[0][name][real], rtol=0, atol=1e-6)


@ROWS
def test_checkpointing_changes_no_bit(row: str, tmp_path: Path) -> None:
    plain, recomputed = (
        trainer_for(row, tmp_path / str(on), updates=3, checkpointing=on) for on in (False, True)
    )
    calls: list[int] = []
    layers(recomputed.model)[3].self_attn.register_forward_hook(lambda *_: calls.append(1))
    assert plain.run() == recomputed.run()
    assert len(calls) == 6, "the layer ran once more in each of three backward passes"
    same_bits(values(plain), values(recomputed))


def test_only_what_asks_for_a_gradient_changes(tmp_path: Path) -> None:
    trainer = trainer_for("hero", tmp_path)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.run()
    changed = {
        name for name, value in trainer.model.state_dict().items() if not torch.equal(
            value, before[name]
        )
    }  # fmt: skip
    assert changed
    assert all(name.startswith("model.router.") for name in changed)
    frozen = set(before) - changed
    # Of the router nothing stands still: eta holds one number per block, most of them move.
    assert not any(name.startswith("model.router.") for name in frozen)
    dense = make_model().state_dict()
    assert all(torch.equal(before[name], dense[name]) for name in dense)


@ROWS
@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_gradient_graph_below_the_first_trained_layer(
    row: str, checkpointing: bool, tmp_path: Path
) -> None:
    trainer = trainer_for(row, tmp_path, updates=1, checkpointing=checkpointing)
    first = 2 if row == "hero" else 3
    asking: dict[int, bool] = {}
    for number, layer in enumerate(layers(trainer.model)):
        layer.input_layernorm.register_forward_pre_hook(
            lambda _, args, number=number: asking.update({number: args[0].requires_grad})
        )
    trainer.run()
    assert asking == {number: number > first for number in range(6)}


@ROWS
def test_a_16_bit_backbone_is_trained_through_32_bit_weights(row: str, tmp_path: Path) -> None:
    model = build_row(row, torch.bfloat16)
    trainer = trainer_for(row, tmp_path, model=model, learning_rate=1e-6, updates=2)
    before = values(trainer)
    assert {value.dtype for value in before.values()} == {torch.float32}
    trainer.run()
    # Steps of 1e-6 are below the grain of 16 bits.
    moved = [
        name for name, value in values(trainer).items() if not torch.equal(value, before[name])
    ]
    assert len(moved) == len(before)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters() if not p.requires_grad)
    with torch.no_grad():
        assert model(torch.tensor([[1, 2, 3]])).logits.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("schedule", "later"),
    [
        ("cosine", {2: 1.0, 4: 0.5 + 0.5 * math.sqrt(0.5), 6: 0.5, 8: 0.5 - 0.5 * math.sqrt(0.5)}),
        ("linear", {2: 1.0, 4: 0.75, 6: 0.5, 9: 0.125}),
        ("constant", {2: 1.0, 4: 1.0, 9: 1.0}),
    ],
)
def test_learning_rate_by_hand(schedule: str, later: dict[int, float], tmp_path: Path) -> None:
    # Ten updates, two of them warm-up: a half and the whole rate, then eight steps down to 0.
    trainer = trainer_for("hero", tmp_path, updates=10, warmup=0.2, schedule=schedule)
    seen: list[set[float]] = []
    trainer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append({group["lr"] for group in optimizer.param_groups})
    )
    trainer.run()
    rates = [rate.pop() / 3e-3 for rate in seen]
    assert len(rates) == 10
    assert rates[:2] == pytest.approx([0.5, 1.0])
    assert {n: rates[n] for n in later} == pytest.approx(later)


def test_lora_learns_at_its_own_rate(tmp_path: Path) -> None:
    # Adam's first step moves every weight by its learning rate, whatever the gradient.
    fixed = {"updates": 1, "warmup": 0.0, "schedule": "constant", "weight_decay": 0.0}
    model = build_row("skipgpt-joint", rank=4)
    trainer = trainer_for("skipgpt-joint", tmp_path, model=model, lora_rate=0.1, **fixed)
    before = values(trainer)
    trainer.run()
    moved = {n: float((values(trainer)[n] - before[n]).abs().max()) for n in before}
    lora = {name for name in moved if "lora_" in name}
    routers = {name for name in moved if ".router." in name}
    assert lora | routers == moved.keys()
    assert [moved[name] for name in lora] == pytest.approx([3e-4] * len(lora), rel=1e-2)
    assert [moved[name] for name in routers] == pytest.approx([3e-3] * len(routers), rel=1e-2)


def test_weight_decay_takes_matrices_only(tmp_path: Path) -> None:
    trainer = trainer_for("hero", tmp_path, updates=1, weight_decay=0.5, warmup=0.0)
    for adapter in trainer.model.model.router.adapters:
        nn.init.zeros_(adapter.up.weight)
    before = values(trainer)
    trainer.run()
    name = "model.router.adapters.0.down.weight"
    # Behind a zero matrix there is no gradient: decay alone, of lr * 0.5.
    torch.testing.assert_close(trainer.parameters[name], before[name] * (1 - 3e-3 * 0.5))
    # eta_1 is never read and no matrix.
    assert trainer.parameters["model.router.eta"][0] == before["model.router.eta"][0]
    assert bool(
        (trainer.parameters["model.router.eta"][1:-1] != before["model.router.eta"][1:-1]).any()
    )


def test_clipping_bounds_the_norm_and_the_log_keeps_the_raw_one(tmp_path: Path) -> None:
    trainer = trainer_for("hero", tmp_path, updates=1, clip=0.01)
    entry, gradients = one_update(trainer)
    norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)
    assert entry["norm"] > 0.1


def test_thinned_log_keeps_the_ends() -> None:
    log = [{"update": n} for n in range(1000)]
    short = thin(log)
    assert short[0] == log[0]
    assert short[-1] == log[-1]
    assert 150 < len(short) <= 210
    assert thin(log[:7]) == log[:7]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("updates", 0),
        ("micro_tokens", -1),
        ("row_length", -5),
        ("weight_decay", -0.1),
        ("snapshot_minutes", -1.0),
        ("learning_rate", 0.0),
        ("lora_rate", 0.0),
        ("warmup", 1.5),
        ("clip", -1.0),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        TrainingParams(**{name: value})


def test_nothing_to_train_is_an_error(tmp_path: Path) -> None:
    model = make_model().requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        Trainer(model, TrainingParams(), documents(), 1, tmp_path)


@pytest.mark.parametrize(
    ("row", "match", "shown"),
    [
        ("lora", "pooled", ["loss"]),
        ("hero", "pooled", ["loss", "skip", "alpha"]),
        (
            "hero",
            "split",
            ["loss", "skip_prompt", "alpha_prompt", "skip_answer", "alpha_answer"],
        ),
    ],
)
def test_a_fit_shows_how_it_goes(
    row: str,
    match: str,
    shown: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [
        Document(d.ids, d.prompt, "task", ((len(d.ids) - 2, len(d.ids)),)) for d in documents()
    ]
    trainer = trainer_for(row, tmp_path, texts, match=match, updates=3)
    told: list[tqdm] = []
    note = Trainer._note
    monkeypatch.setattr(
        Trainer, "_note", lambda *told_of: (note(*told_of), told.append(told_of[-1]))
    )
    last = trainer.run()[-1]
    fields = dict(part.split("=") for part in told[-1].postfix.split(", "))
    assert list(fields) == [*shown, "tokens/s"]
    for name in shown:
        assert float(fields[name]) == pytest.approx(last[name], abs=5e-4)
    lengths = [len(d.ids) for d in trainer.documents]
    used = sum(lengths[n] for batch in islice(document_batches(lengths, 60, 5), 3) for n in batch)
    assert trainer.tokens == used
    # Finished updates, the time they took and the time that is left.
    assert re.search(r"training: 100%.* 3/3 \[\d\d:\d\d<00:00", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"attention_dropout": 0.5}),
        ("phi3", {"attention_dropout": 0.5, "resid_pdrop": 0.5}),
        ("seed_oss", {"attention_dropout": 0.5, "residual_dropout": 0.5}),
    ],
)
@torch.no_grad()
def test_dropout_of_the_backbone_is_off(
    kind: str, changes: dict[str, float], tmp_path: Path
) -> None:
    model, ids = make_model(kind, **changes), torch.arange(12)[None]
    expected = model(ids).logits
    assert not torch.equal(model.train()(ids).logits, expected)
    trainer_for("lora", tmp_path, model=model)
    assert torch.equal(model.train()(ids).logits, expected)
