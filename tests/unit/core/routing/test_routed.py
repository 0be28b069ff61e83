"""The routed decoder: forced decisions, caches, padding, packing, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from methods.core.model.backbone import attention, attention_norm, decoder, ffn, ffn_norm, layers
from methods.core.routing.routed import route, router_of
from methods.core.routing.router import (
    Context,
    Gate,
    Router,
    Tokens,
    Unit,
    attention_units,
    block_units,
    evicting_units,
    ffn_units,
    module_units,
)
from tests.near import assert_near
from tests.toys.models import CONFIGS, make_model
from tests.unit.core.routing.test_eviction import evicting

IDS = torch.arange(24).reshape(2, 12)


MAKERS = {
    "ffn": ffn_units,
    "block": block_units,
    "attention": attention_units,
    "both": module_units,
}


class EveryThird(Router):
    """Executes where (id + unit) is no multiple of three; scales by a half of the unit's number."""

    def __init__(self, units: list[Unit], scale: float | None = None) -> None:
        super().__init__()
        self.units, self.factor = units, scale
        self.seen: list[Tokens] = []

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tensor:
        self.seen.append(tokens)
        return tokens.ids

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        execute = (state + index) % 3 != 0
        scale = "none" if self.factor is None else torch.full(execute.shape, self.factor)
        return Gate(scale=scale, execute=execute), state


def routed(kind: str, unit: str, scale: float | None = None) -> tuple[Any, EveryThird]:
    model = make_model(kind)
    router = EveryThird(MAKERS[unit](model, range(1, len(layers(model)))), scale)
    return route(model, router), router


@pytest.mark.parametrize("unit", sorted(MAKERS))
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_forced_open_gates_give_the_dense_logits(kind: str, unit: str) -> None:
    model, router = routed(kind, unit)
    forced = torch.ones(2, len(router.units), 12, dtype=torch.bool)
    with torch.no_grad():
        dense = make_model(kind)(IDS).logits
        opened = model(IDS, forced=forced).logits
        chosen = model(IDS).logits
    torch.testing.assert_close(opened, dense, rtol=1e-5, atol=1e-5)
    assert (chosen - dense).abs().max() > 1e-2


@pytest.mark.parametrize("unit", sorted(MAKERS))
def test_decisions_equal_a_loop_over_layers(unit: str) -> None:
    model, router = routed("llama", unit, scale=0.5)
    with torch.no_grad():
        output = model.model(IDS)
        inner = decoder(model)
        hidden = inner.embed_tokens(IDS)
        turn = inner.rotary_emb(hidden, position_ids=torch.arange(12)[None])
        causal = torch.full((12, 12), -torch.inf).triu(1)[None, None]
        for number, layer in enumerate(layers(model)):
            mixed, _ = attention(layer)(
                hidden_states=attention_norm(layer)(hidden),
                position_embeddings=turn,
                attention_mask=causal,
            )
            first = 2 * (number - 1) if unit == "both" else number - 1
            gates = [0.5 * ((IDS + first + n) % 3 != 0)[..., None] for n in range(2)]
            if number and unit in ("attention", "both"):
                mixed = gates.pop(0) * mixed
            middle = hidden + mixed
            update = ffn(layer)(ffn_norm(layer)(middle))
            if number and unit in ("ffn", "both"):
                update = gates.pop(0) * update
            change = mixed + update
            hidden = hidden + (gates[0] * change if number and unit == "block" else change)
        slow = inner.norm(hidden)
    torch.testing.assert_close(output.last_hidden_state, slow, rtol=1e-5, atol=1e-5)
    expected = torch.stack([(IDS + u) % 3 != 0 for u in range(len(router.units))], dim=1)
    assert torch.equal(output.executed, expected)


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("unit", sorted(MAKERS))
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_cached_steps_equal_the_full_forward(
    kind: str, unit: str, sequences: int, scale: float | None
) -> None:
    model, _ = routed(kind, unit, scale)
    ids = IDS[:sequences]
    with torch.no_grad():
        full = model(ids).logits
        step = model(ids[:, :5], use_cache=True)
        parts = [step.logits]
        for t in range(5, 12):
            step = model(ids[:, t : t + 1], past_key_values=step.past_key_values, use_cache=True)
            parts.append(step.logits)
    assert_near(torch.cat(parts, dim=1), full)


@pytest.mark.parametrize("unit", sorted(MAKERS))
def test_a_step_of_one_token_runs_what_it_decides_alone(unit: str) -> None:
    """One new token of one sequence, on a CPU."""
    model, router = routed("llama", unit, scale=0.5)
    ran: list[tuple[str, int]] = []
    for number, layer in enumerate(layers(model)):
        for name, part in (("attention", attention(layer).o_proj), ("ffn", ffn(layer))):
            part.register_forward_hook(lambda *_, here=(name, number): ran.append(here))
    ids = IDS[:1]
    with torch.no_grad():
        cache = model(ids[:, :11], use_cache=True).past_key_values
        ran.clear()
        executed = model.model(ids[:, 11:], past_key_values=cache, use_cache=True).executed
    decided = zip(router.units, executed[0, :, 0].tolist(), strict=True)
    skipped = {(unit.kind, unit.layer) for unit, runs in decided if not runs}
    assert 0 < len(skipped) < len(router.units)
    parts = [(name, n) for n in range(len(layers(model))) for name in ("attention", "ffn")]
    assert ran == [(name, n) for name, n in parts if not {(name, n), ("block", n)} & skipped]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("unit", sorted(MAKERS))
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_padding_changes_nothing(kind: str, unit: str, side: str) -> None:
    model, router = routed(kind, unit)
    pads, ones = torch.zeros(2, 5, dtype=torch.int64), torch.ones_like(IDS)
    pair = ([pads, IDS], [pads, ones]) if side == "left" else ([IDS, pads], [ones, pads])
    ids, mask = (torch.cat(parts, dim=1) for parts in pair)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        padded = model(ids, attention_mask=mask, position_ids=positions).logits[mask.bool()]
        plain = model(IDS).logits.flatten(0, 1)
    assert_near(padded, plain)
    assert torch.equal(router.seen[0].valid, mask.bool())


@pytest.mark.parametrize("form", ["ffn", "evicting", "evicting-dense"])
def test_packed_documents_do_not_see_each_other(form: str) -> None:
    model = routed("llama", form)[0] if form == "ffn" else evicting(form == "evicting-dense")
    packed = torch.cat([IDS[0, :7], IDS[1, :5]])[None]
    positions = torch.cat([torch.arange(7), torch.arange(5)])[None]
    with torch.no_grad():
        together = model(packed, position_ids=positions, use_cache=False).logits[0]
        alone = [model(IDS[:1, :7]).logits[0], model(IDS[1:, :5]).logits[0]]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_forced_decisions_replace_decision_and_scale() -> None:
    model, router = routed("llama", "ffn", scale=0.1)
    forced = torch.rand(2, len(router.units), 12, generator=torch.Generator().manual_seed(0)) < 0.5
    plain, _ = routed("llama", "ffn")
    with torch.no_grad():
        output = model.model(IDS, forced=forced)
        assert torch.equal(output.executed, forced)
        same = plain.model(IDS, forced=forced).last_hidden_state
    assert torch.equal(output.last_hidden_state, same)


@pytest.mark.parametrize("unit", ["attention", "both", "block"])
def test_queries_and_outputs_are_computed_for_tokens_that_read(unit: str) -> None:
    """Keys and values for all: what the ledger counts as skipped does not run."""
    model, router = routed("llama", unit)
    heads, rows = attention(layers(model)[3]), dict[str, list[int]]()
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        counts = rows.setdefault(name, [])
        heads.get_submodule(name).register_forward_hook(
            lambda _, given, out, counts=counts: counts.append(out[..., 0].numel())
        )
    number = next(n for n, u in enumerate(router.units) if u.layer == 3)
    with torch.no_grad():
        executed = int(model.model(IDS[:1]).executed[:, number].sum())
        nobody = torch.zeros(1, len(router.units), 12, dtype=torch.bool)
        model.model(IDS[:1], forced=nobody)
    assert 0 < executed < 12
    assert rows == {
        "q_proj": [executed], "k_proj": [12, 12], "v_proj": [12, 12], "o_proj": [executed]
    }  # fmt: skip


def test_names_of_the_dense_weights_stay() -> None:
    dense = set(make_model().state_dict())
    model, router = routed("llama", "ffn")
    assert set(model.state_dict()) == dense
    assert router_of(model) is router
    assert router_of(make_model()) is None


def test_gradients_reach_what_ran_and_only_that() -> None:
    model, router = routed("llama", "ffn")
    forced = torch.zeros(2, len(router.units), 12, dtype=torch.bool)
    forced[0, 2, 4] = True
    model(IDS, forced=forced).logits.sum().backward()
    grads = [ffn(layer).down_proj.weight.grad for layer in layers(model)]
    moved = [g is not None and bool(g.abs().sum() > 0) for g in grads]
    assert moved == [True, False, False, True, False, False]


def test_one_layer_carries_one_unit() -> None:
    model = make_model()
    units = [*ffn_units(model, [2]), *block_units(model, [2])]
    with pytest.raises(ValueError, match="more than one routed unit"):
        route(model, EveryThird(units))
    with pytest.raises(ValueError, match="first layer cannot evict"):
        route(model, EveryThird(evicting_units(model, [0])))
    with pytest.raises(ValueError, match="in the order in which they run"):
        route(model, EveryThird([*ffn_units(model, [2]), *attention_units(model, [2])]))
    with pytest.raises(ValueError, match="a unit is of layer 9, layers are 0 to 5"):
        route(model, EveryThird([ffn_units(model, [2])[0]._replace(layer=9)]))


def test_a_router_holds_only_what_is_its_own() -> None:
    model = make_model()
    router = EveryThird(attention_units(model, [2]))
    router.norm = attention_norm(layers(model)[2])
    with pytest.raises(ValueError, match="parameter 'norm.weight' is the backbone's"):
        route(model, router)
    router = EveryThird(attention_units(model, [2]))
    router.alternative = lambda index: torch.nn.Linear(32, 32)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="unit 0 is of kind 'attention' and has an alternative"):
        route(model, router)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Gate(torch.ones(2, 12)), "it must return a Gate and the next state"),
        ((Gate(torch.ones(1, 12)), None), r"'value' has the shape \(1, 12\), must be"),
        ((Gate(execute=torch.ones(2, 12, 1) > 0), None), r"'execute' has the shape \(2, 12, 1\)"),
        ((Gate(execute=torch.ones(2, 12)), None), "'execute' is torch.float32, must be bool"),
    ],
)
def test_a_gate_of_another_shape_is_refused(
    answer: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, router = routed("llama", "ffn")
    monkeypatch.setattr(router, "gate", lambda *arguments: answer)
    with pytest.raises(ValueError, match=said):
        model(IDS)


def test_what_units_weigh() -> None:
    model = make_model()
    width, inner = 32, 64
    attention_size, ffn_size = 2 * width * width, 3 * width * inner
    # Queries and output; keys and values (two of four heads) always run.
    assert attention_units(model, [1])[0].parameters == attention_size
    assert ffn_units(model, [1])[0].parameters == ffn_size
    assert block_units(model, [1])[0].parameters == attention_size + ffn_size + width
    whole = attention_size + ffn_size + 2 * width + 2 * width * 16
    assert evicting_units(model, [1])[0].parameters == whole


@pytest.mark.parametrize("unit", ["both", "block"])
def test_a_decision_that_runs_all_passes_gradients_to_skipped_tokens(unit: str) -> None:
    model, router = routed("llama", unit)
    with torch.no_grad():
        expected = model.model(IDS)
    gates = expected.executed.float().requires_grad_()

    def gate(index: int, *rest: Any) -> tuple[Gate, Any]:
        value = gates[:, index]
        return Gate(value, "straight-through", value > 0.5), None

    router.gate = gate
    output = model.model(IDS)
    torch.testing.assert_close(output.last_hidden_state, expected.last_hidden_state)
    output.last_hidden_state.square().mean().backward()
    assert bool((gates.grad[~expected.executed] != 0).all())
