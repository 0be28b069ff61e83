"""Rates by hand: 1000 dense parameters, two units of 100 and 200."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from methods.core.model.backbone import count, decoder, ffn, layers
from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.routed import route
from methods.core.routing.router import Unit, block_units, ffn_units
from methods.core.surgery.layers import add_output_biases, remove_layers
from methods.core.training.lora import add_lora
from methods.random_skip import RandomRouter
from tests.toys.models import make_model

UNITS = (Unit(3, "ffn", 100), Unit(5, "block", 200))


def ledger(**changes: object) -> Ledger:
    given = {
        "total": 1000,
        "resident": 1000,
        "units": UNITS,
        "always": 10,
        "instead": (20, 0),
        "layers": 6,
        "dense_layers": 6,
    }
    return Ledger(**(given | changes))


def mask(*units: str) -> torch.Tensor:
    return torch.tensor([[digit == "1" for digit in unit] for unit in units])


def test_rates_of_four_tokens() -> None:
    tally = Tally(ledger())
    tally.add(mask("1000", "1101"), 4)
    rates = tally.rates()
    # Saved per token: 0, 100, 300, 100 of 1000.
    assert rates.executed == (0.25, 0.75)
    assert rates.skip == pytest.approx(0.125)
    # Router 10 always, adapter 20 for the three tokens that skip the first unit.
    assert rates.skip_net == pytest.approx(0.125 - 0.010 - 0.015)
    deviation = ((0.125**2 + 0.025**2 + 0.175**2 + 0.025**2) / 4) ** 0.5
    assert rates.skip_std == pytest.approx(deviation)


def test_everything_executed_skips_nothing() -> None:
    tally = Tally(ledger(always=0))
    tally.add(torch.ones(2, 7, dtype=torch.bool), 7)
    rates = tally.rates()
    assert (rates.skip, rates.skip_net, rates.skip_std) == (0, 0, 0)


def test_adding_in_parts_pools_tokens() -> None:
    whole, left, right = (Tally(ledger()) for _ in range(3))
    whole.add(mask("1000", "1101"), 4)
    left.add(mask("1", "1"), 1)
    right.add(mask("000", "101"), 3)
    left.merge(right)
    assert left.rates() == whole.rates()


def test_merging_leaves_the_other_tally_alone() -> None:
    left, right = Tally(ledger()), Tally(ledger())
    right.add(mask("1", "0"), 1)
    left.merge(right)
    left.add(mask("1", "0"), 1)
    assert right.executed.tolist() == [1, 0]
    assert right.tokens == 1


def test_a_static_model_saves_what_it_no_longer_holds() -> None:
    static = Tally(ledger(resident=700, units=(), always=0, instead=()))
    static.add(None, 5)
    rates = static.rates()
    assert rates.skip == pytest.approx(0.3)
    assert rates.skip_net == pytest.approx(0.3)
    assert rates.executed == ()


def test_static_savings_and_routing_add_up() -> None:
    tally = Tally(ledger(resident=900, always=0, instead=(0, 0)))
    tally.add(mask("0", "1"), 1)
    assert tally.rates().skip == pytest.approx(0.1 + 0.1)


def test_no_token_no_rate() -> None:
    with pytest.raises(ValueError, match="no token"):
        Tally(ledger()).rates()


def test_ledger_of_a_dense_model() -> None:
    model = make_model()
    book = Ledger.of(model, count(model), 6)
    assert book.resident == book.total == sum(p.numel() for p in model.parameters())
    assert (book.units, book.always, book.instead, book.layers) == ((), 0, (), 6)


def test_ledger_of_a_pruned_model() -> None:
    model = make_model()
    total, layer = count(model), count(layers(model)[0])
    # 32*32 q, 2*16*32 k and v, 32*32 o, 3*32*64 ffn, two norms of 32.
    assert layer == 1024 + 1024 + 1024 + 6144 + 64
    book = Ledger.of(remove_layers(model, [1, 4]), total, 6)
    assert (book.resident, book.layers, book.dense_layers) == (total - 2 * layer, 4, 6)
    assert book.linear == 4 * (layer - 64)


def test_biases_of_a_static_method_are_charged() -> None:
    model = make_model()
    total = count(model)
    before = Ledger.of(model, total, 6).linear
    tally = Tally(Ledger.of(add_output_biases(model), total, 6))
    tally.add(None, 1)
    assert tally.rates().skip == pytest.approx(-6 * 2 * 32 / total)
    assert tally.ledger.linear == before + 6 * 2 * 32
    add_lora(model, ["q_proj", "down_proj"], [0, 1], 2, 2, 0)
    assert Ledger.of(model, total, 6).linear == tally.ledger.linear


def test_ledger_tells_router_adapters_and_lora_from_the_backbone() -> None:
    class WithAdapter(RandomRouter):
        def __init__(self, units: list[Unit]) -> None:
            super().__init__(units, 0, 0.0)
            self.probe = nn.Linear(32, 1, bias=False)
            self.adapters = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in units)

        def alternative(self, index: int) -> nn.Module:
            return self.adapters[index]

    model = make_model()
    total = count(model)
    layers(model)[0].lora_a = nn.Linear(32, 2, bias=False)
    book = Ledger.of(route(model, WithAdapter(ffn_units(model, [4, 5]))), total, 6)
    assert (book.resident, book.always, book.instead) == (total, 32 + 64, (1024, 1024))
    assert book.sizes.tolist() == [6144, 6144]


def test_a_tied_matrix_counts_once() -> None:
    tied, untied = make_model("tied"), make_model(num_hidden_layers=4)
    assert count(untied) - count(tied) == 64 * 32


def test_block_units_keep_the_input_norm_keys_and_values() -> None:
    model = make_model()
    (unit,) = block_units(model, [2])
    # Everything of the layer but its first norm (32) and k_proj, v_proj (2 * 16 * 32).
    assert unit.parameters == count(layers(model)[2]) - 32 - 1024
    assert ffn_units(model, [2])[0].parameters == count(ffn(layers(model)[2])) == 6144


def test_block_units_of_qwen3_keep_the_key_norm_too() -> None:
    model = make_model("qwen3")
    (unit,) = block_units(model, [1])
    assert unit.parameters == count(layers(model)[1]) - 32 - 1024 - 8


def test_block_units_keep_biases_of_keys_and_values() -> None:
    model = make_model("qwen2")
    (unit,) = block_units(model, [1])
    assert unit.parameters == count(decoder(model).layers[1]) - 32 - 1024 - 32
