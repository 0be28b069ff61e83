"""LoRA: what it may change, what it costs, and that it skips nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from methods import load_method, load_model
from methods.base import Fitted, Request
from methods.core.data import Document
from methods.core.model.backbone import count, decoder, layers, load_backbone
from methods.core.model.checkpoint import describe, save
from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.steering import FixedWeight, Term
from methods.core.training.loop import Trainer
from methods.core.training.lora import fold_lora, lora_sizes, nearest_ranks
from methods.core.training.objective import Routing
from methods.core.training.params import TrainingParams
from tests.near import assert_near
from tests.toys.models import cast, make_model, wrap
from tests.toys.training import hero_penalty

IDS = torch.randint(0, 60, (3, 9), generator=torch.Generator().manual_seed(2))
# Toy: D 32, keys and values 16 wide, FFN 64. One projection costs rank * (in + out).
ATTENTION = (32 + 32) + (32 + 16) + (32 + 16) + (32 + 32)
FFN = 3 * (32 + 64)
COUNTS = {
    "mlp_candidates": 3 * FFN,
    "attn_all": 6 * ATTENTION,
    "qv_all": 6 * (64 + 48),
    "mlp_all": 6 * FFN,
    "all": 6 * (ATTENTION + FFN),
}


def built(seed: int = 1, dense: nn.Module | None = None, **params: Any) -> nn.Module:
    model = make_model() if dense is None else dense
    backbone = wrap(model)
    return load_method("lora", {"rank": 2} | params).build(backbone, {"seed": seed})


def adapters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def shake(model: nn.Module) -> None:
    rng = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in adapters(model).values():
            noise = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            parameter += 0.1 * noise.to(parameter.dtype)


@pytest.mark.parametrize("modules", COUNTS)
def test_a_new_model_gives_the_dense_logits_bit_for_bit(modules: str) -> None:
    """Property 1."""
    model = built(modules=modules)
    assert all(bool((p == 0).all()) for n, p in adapters(model).items() if "lora_B" in n)
    assert all(bool((p != 0).all()) for n, p in adapters(model).items() if "lora_A" in n)
    assert torch.equal(model(IDS).logits, make_model()(IDS).logits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("alpha", [None, 4])
def test_folded_equals_unfolded(dtype: torch.dtype, alpha: int | None) -> None:
    """Property 2."""
    model = cast(built(modules="all", alpha=alpha), dtype)
    shake(model)
    unmerged = model(IDS).logits
    folded = copy.deepcopy(model)
    fold_lora(folded)
    assert not any(isinstance(module, LoraLayer) for module in folded.modules())
    assert count(folded) == count(make_model())
    projection = model.model.layers[5].mlp.gate_proj
    product = projection.lora_B["default"].weight @ projection.lora_A["default"].weight
    # Scale alpha / rank: 1 by default, 2 with alpha 4.
    torch.testing.assert_close(
        folded.model.layers[5].mlp.gate_proj.weight,
        projection.get_base_layer().weight + (1 if alpha is None else 2) * product,
    )
    assert_near(folded(IDS).logits, unmerged)
    assert (unmerged - cast(make_model(), dtype)(IDS).logits).abs().max() > 0.1


@pytest.mark.parametrize("rank", [2, 5])
@pytest.mark.parametrize("modules", COUNTS)
def test_trained_count_by_hand(modules: str, rank: int) -> None:
    """Property 3, first part; tests/unit/methods/test_hero_counts.py has the true shapes."""
    model = built(modules=modules, rank=rank)
    assert sum(p.numel() for p in adapters(model).values()) == rank * COUNTS[modules]
    assert all("lora_" in name for name in adapters(model))


def ranks(model: nn.Module) -> dict[str, int]:
    """Name of each matrix -> rank of its LoRA."""
    found = {n: m for n, m in model.named_modules() if isinstance(m, LoraLayer)}
    assert {m.scaling["default"] for m in found.values()} == {1.0}
    return {name: m.r["default"] for name, m in found.items()}


@pytest.mark.parametrize("parameters", [6 * 512, 7000, 7010, 4 * 6 * 512 - 1])
def test_ranks_follow_from_a_number_of_parameters(parameters: int) -> None:
    chosen = ranks(built(modules="all", rank=None, parameters=parameters))
    names = [
        f"model.layers.{layer}.{part}.{name}_proj"
        for layer in range(6)
        for part, several in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down")))
        for name in several
    ]
    sizes = [64, 48, 48, 64, 96, 96, 96] * 6
    totals = {
        (r, k): r * sum(sizes) + sum(sizes[len(sizes) - k :])
        for r in range(1, 9)
        for k in range(len(sizes))
    }
    low, wider = min(totals, key=lambda each: abs(totals[each] - parameters))
    expected = [low] * (len(sizes) - wider) + [low + 1] * wider
    assert chosen == dict(zip(names, expected, strict=True))


def test_layers_of_different_widths_share_a_number_of_parameters() -> None:
    model: Any = make_model()
    structure = {"dropped_heads": [[0]] * 3 + [[]] * 3, "dropped_channels": [[n] for n in range(6)]}
    narrow = load_method("flap").build(wrap(model), structure | {"biases": True})
    sizes = lora_sizes(model, ("q_proj", "o_proj", "up_proj"), [4, 0])
    assert list(sizes.values()) == [48, 48, 95, 64, 64, 95]
    assert [name.split(".")[2] for name in sizes] == ["0"] * 3 + ["4"] * 3
    healed = built(dense=narrow, modules="all", rank=None, parameters=9000)
    assert abs(sum(p.numel() for p in adapters(healed).values()) - 9000) <= 48
    assert set(ranks(healed).values()) == {3, 4}


def test_a_number_of_parameters_out_of_reach_is_refused() -> None:
    with pytest.raises(ValueError, match=r"param 'parameters' is 3000; .* trains 3072 at the near"):
        built(modules="all", rank=None, parameters=3000)
    with pytest.raises(
        ValueError, match=r"on these 2 matrices trains 500 .*, and 200 at the least"
    ):
        nearest_ranks({"a": 100, "b": 100}, 549)
    with pytest.raises(ValueError, match="have none of its matrices"):
        nearest_ranks({}, 549)
    with pytest.raises(ValueError, match=r"'rank' \(2\) and 'parameters' \(9\) exclude each other"):
        built(parameters=9)


def documents() -> list[Document]:
    rng = torch.Generator().manual_seed(8)
    return [Document(torch.randint(0, 60, (9,), generator=rng).tolist(), 0) for _ in range(20)]


PARAMS = TrainingParams(updates=3, batch_tokens=50, learning_rate=1e-2, row_length=20)


def test_training_changes_adapters_and_nothing_else(tmp_path: Path) -> None:
    """Property 3, second part."""
    model = built()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    Trainer(model, PARAMS, documents(), 1, tmp_path).run()
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == set(adapters(model))


def test_layers_outside_the_candidates_have_no_lora_tensors() -> None:
    """Property 4."""
    names = list(adapters(built(modules="mlp_candidates")))
    assert {int(name.split(".")[2]) for name in names} == {3, 4, 5}
    assert {name.split(".")[4] for name in names} == {"gate_proj", "up_proj", "down_proj"}
    assert {int(name.split(".")[2]) for name in adapters(built(modules="mlp_all"))} == set(range(6))


@pytest.mark.parametrize("modules", ["mlp_candidates", "all"])
def test_skip_is_zero_and_net_skip_charges_the_adapters(modules: str) -> None:
    """Property 5."""
    dense = count(make_model())
    model = built(modules=modules)
    tally = Tally(Ledger.of(model, dense, 6))
    tally.add(None, 10)
    rates = tally.rates()
    assert rates.skip == 0.0
    assert rates.skip_net == pytest.approx(-2 * COUNTS[modules] / dense, rel=1e-12)
    assert rates.skip_net < 0


def first_batch(trainer: Trainer) -> Tensor:
    seen: list[Tensor] = []
    decoder(trainer.model).embed_tokens.register_forward_hook(
        lambda _, args, out: seen.append(args[0])
    )
    trainer.run()
    return seen[0]


def test_hero_and_lora_read_the_same_tokens_first(tmp_path: Path) -> None:
    """Property 6."""
    model = make_model()
    backbone = wrap(model)
    structure = {"layers": [3, 4, 5], "seed": 1, "threshold": 0.5}
    hero = load_method("hero").build(backbone, structure)
    terms = {"pooled": Term(FixedWeight(1e-3), hero_penalty)}
    routing = Routing(torch.ones(3, dtype=torch.float64), terms)
    one = Trainer(hero, PARAMS, documents(), 6, tmp_path / "a", routing)
    other = Trainer(built(), PARAMS, documents(), 6, tmp_path / "b")
    third = Trainer(built(), PARAMS, documents(), 7, tmp_path / "c")
    batch = first_batch(one)
    assert torch.equal(batch, first_batch(other))
    assert not torch.equal(batch, first_batch(third))


def test_the_seed_alone_decides_the_first_values() -> None:
    torch.manual_seed(1)
    one = adapters(built(seed=3))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = adapters(built(seed=3))
    assert torch.equal(torch.get_rng_state(), state)
    other = adapters(built(seed=4))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert all(not torch.equal(one[n], other[n]) for n in one if "lora_A" in n)


def test_a_trained_model_is_saved_and_loaded(llama: Path, tmp_path: Path) -> None:
    backbone = load_backbone(llama)
    method = load_method("lora", {"rank": 2})
    model = method.build(backbone, {"seed": 3})
    shake(model)
    card = describe("lora", method, backbone, Request(None, 3, tmp_path), tmp_path)
    save(tmp_path, method, Fitted(model, {"seed": 3}, {}), card, None)
    again = load_model(tmp_path)
    weights = again.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "value"), [("rank", 0), ("parameters", 0), ("modules", "none")])
def test_a_bad_param_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        built(**{name: value})


def test_a_backbone_of_any_family_gets_adapters() -> None:
    for kind in ("tied", "qwen3", "mistral"):
        model = built(dense=make_model(kind), modules="mlp_candidates")
        assert torch.equal(model(IDS).logits, make_model(kind)(IDS).logits)
        assert len(adapters(model)) == 2 * 3 * (len(layers(model)) // 2)
