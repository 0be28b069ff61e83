"""Blocks that evict: both forms against a slow loop, caches, padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.core.model.backbone import attention, decoder, ffn, ffn_norm, layers
from methods.core.routing.eviction import EPS, attend_with_key_weights
from methods.core.routing.routed import route
from methods.core.routing.router import Context, Gate, Router, Tokens, evicting_units
from tests.near import assert_near
from tests.toys.models import make_model

IDS = torch.arange(24).reshape(2, 12)


class Chosen(Router):
    """Executes the first two tokens and those where (id + unit) is no multiple of three."""

    def __init__(self, model: Any, dense: bool = False) -> None:
        super().__init__()
        self.units, self.dense = evicting_units(model, range(1, len(layers(model)))), dense
        self.weight = torch.nn.Parameter(torch.ones(()))

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tokens:
        return tokens

    def gate(
        self, index: int, block_input: Tensor, post: Tensor | None, state: Any, at: Context
    ) -> tuple[Gate, Any]:
        execute = ((state.ids + index) % 3 != 0) | (state.positions < 2)
        if self.dense:
            return Gate(execute * self.weight, "straight-through", execute), state
        return Gate(execute=execute), state


def evicting(dense: bool = False, kind: str = "llama") -> Any:
    model = make_model(kind)
    return route(model, Chosen(model, dense))


def slow_states(ids: Tensor) -> Tensor:
    """One sequence (T,) through the toy, token by token: who executes reads who executed."""
    model = make_model()
    inner, width = decoder(model), 8
    hidden = inner.embed_tokens(ids[None])
    cosine, sine = inner.rotary_emb(hidden, position_ids=torch.arange(len(ids))[None])

    def turned(rows: Tensor) -> Tensor:
        half = torch.cat([-rows[..., width // 2 :], rows[..., : width // 2]], dim=-1)
        return rows * cosine[0, :, None] + half * sine[0, :, None]

    hidden = hidden[0]
    for number, layer in enumerate(layers(model)):
        normed, heads = layer.input_layernorm(hidden), attention(layer)
        query = turned(heads.q_proj(normed).view(-1, 4, width))
        key = turned(heads.k_proj(normed).view(-1, 2, width))
        value = heads.v_proj(normed).view(-1, 2, width)
        runs = [number == 0 or t < 2 or int(ids[t] + number - 1) % 3 != 0 for t in range(len(ids))]
        after = hidden.clone()
        for t in filter(lambda t: runs[t], range(len(ids))):
            seen = [s for s in range(t + 1) if runs[s]]
            mixed = []
            for head in range(4):
                scores = key[seen, head // 2] @ query[t, head] / width**0.5
                mixed.append(scores.softmax(0) @ value[seen, head // 2])
            middle = hidden[t] + heads.o_proj(torch.cat(mixed))
            after[t] = middle + ffn(layer)(ffn_norm(layer)(middle))
        hidden = after
    return inner.norm(hidden)


@pytest.mark.parametrize("dense", [False, True])
@torch.no_grad()
def test_both_forms_equal_the_slow_loop(dense: bool) -> None:
    output = evicting(dense).model(IDS)
    expected = torch.stack([slow_states(ids) for ids in IDS])
    # The dense form divides by a sum that is 1e-6 too large.
    near = {"rtol": 1e-4, "atol": 1e-4} if dense else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(output.last_hidden_state, expected, **near)
    skipped = ~output.executed
    assert 0.2 < skipped.float().mean() < 0.4
    assert not skipped[..., :2].any()


@pytest.mark.parametrize("pads", [0, 3])
@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "tied"])
@torch.no_grad()
def test_cached_steps_equal_the_full_forward(kind: str, sequences: int, pads: int) -> None:
    model = evicting(kind=kind)
    given = IDS[:sequences]
    full, ran = model(given).logits, model.model(given).executed
    ids, mask = (pad(part, (pads, 0)) for part in (given, torch.ones_like(given)))
    padding: dict[str, Any] = {}
    cache, parts, first = None, [], pads + 5
    for start, stop in ((0, first), *((t, t + 1) for t in range(first, pads + 12))):
        if pads:
            positions = (torch.arange(start, stop) - pads).clamp(min=0)[None]
            padding = {"attention_mask": mask[:, :stop], "position_ids": positions}
        step = model(ids[:, start:stop], past_key_values=cache, use_cache=True, **padding)
        cache = step.past_key_values
        parts.append(step.logits)
    assert_near(torch.cat(parts, dim=1)[:, pads:], full)
    assert cache.get_seq_length() == pads + 12
    # What is stored is what ran, per sequence, padded to the longest.
    for unit, number in enumerate(range(1, len(layers(model)))):
        for row, kept in enumerate(cache.layers[number].columns):
            assert torch.equal(kept[kept >= 0] - pads, ran[row, unit].nonzero()[:, 0])
        assert cache.layers[number].keys.shape[2] == ran[:, unit].sum(dim=1).max() < 12


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_changes_nothing(side: str) -> None:
    pads, ones = torch.zeros(2, 5, dtype=torch.int64), torch.ones_like(IDS)
    pair = ([pads, IDS], [pads, ones]) if side == "left" else ([IDS, pads], [ones, pads])
    ids, mask = (torch.cat(parts, dim=1) for parts in pair)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for dense in (False, True):
        model = evicting(dense)
        padded = model(ids, attention_mask=mask, position_ids=positions).logits[mask.bool()]
        plain = model(IDS).logits.flatten(0, 1)
        torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_batched_generation_equals_one_by_one() -> None:
    model = evicting()
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    short = IDS[1, :7]
    ids = torch.stack([IDS[0], torch.cat([torch.zeros(5, dtype=torch.int64), short])])
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    together = model.generate(ids, attention_mask=mask, **settings)[:, 12:]
    for row, expected in zip((IDS[0], short), together, strict=True):
        ones = torch.ones_like(row)[None]
        alone = model.generate(row[None], attention_mask=ones, **settings)[0, len(row) :]
        assert torch.equal(alone, expected)


def written_out(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, gates: Tensor
) -> Tensor:
    """The weighted attention from its definition, every weight of every head (B, H, T, K)."""
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    gates = gates[:, None, :, None]
    return ((weights @ (value * gates)) / (weights @ gates + EPS)).transpose(1, 2)


def drawn(length: int, width: int = 8, seed: int = 5) -> list[Tensor]:
    """Queries, keys, values of a layer with shared keys, and gates of 0, 1 and between."""
    rng = torch.Generator().manual_seed(seed)
    parts = [torch.randn(2, heads, length, width, generator=rng) for heads in (4, 2, 2)]
    gates = (2 * torch.rand(2, length, generator=rng) - 0.5).clamp(0, 1)
    return [part.requires_grad_() for part in (*parts, gates)]


def mask_of(kind: str, length: int) -> Tensor | None:
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    if kind == "none":
        return None
    if kind == "packed":
        document = (torch.arange(length) >= 7).long() + (torch.arange(length) >= 19).long()
        return (causal & (document[:, None] == document))[None, None].expand(2, 1, -1, -1)
    # Three pads before the second sequence, which read nothing and are read by nobody.
    mask = causal.repeat(2, 1, 1, 1)
    mask[1, :, :, :3] = False
    return mask


def attended(parts: list[Tensor], mask: Tensor | None) -> Tensor:
    *states, gates = parts
    heads = attention(layers(make_model())[0])
    return attend_with_key_weights(heads, *states, mask, key_weights=gates)[0]


@pytest.mark.parametrize("width", [8, 6])
@pytest.mark.parametrize("kind", ["none", "packed", "padded"])
def test_the_fused_form_equals_the_one_written_out(kind: str, width: int) -> None:
    mask, parts = mask_of(kind, 29), drawn(29, width)
    real = torch.ones(2, 29, 1, 1)
    if kind == "padded":
        real[1, :3] = 0
    # The first token of each document stays, as the reserved ones do.
    for place in (0, 3, 7, 19):
        parts[3].data[:, place] = 1.0
    weights = torch.randn(2, 29, 4, width, generator=torch.Generator().manual_seed(6)) * real
    expected = written_out(*parts[:3], mask, parts[3])
    found = attended(parts, mask)
    assert_near(found * real, (expected * real).detach())
    wanted = torch.autograd.grad((expected * weights).sum(), parts)
    for gradient, other in zip(
        torch.autograd.grad((found * weights).sum(), parts), wanted, strict=True
    ):
        assert_near(gradient, other)


@pytest.mark.parametrize("kind", ["none", "packed"])
def test_memory_of_the_weighted_form_grows_with_the_tokens(kind: str) -> None:
    def saved(length: int) -> int:
        parts, sizes = drawn(length), list[int]()

        def count(tensor: Tensor) -> Tensor:
            # A mask is that of all heads, and the library's own.
            if tensor.shape[-2:] != (length, length):
                sizes.append(tensor.numel())
            else:
                assert kind == "packed"
                assert tensor.shape[1] == 1
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            attended(parts, mask_of(kind, length))
        assert max(sizes) < length * length
        return sum(sizes)

    assert saved(512) == 2 * saved(256)


@torch.no_grad()
def test_the_value_of_an_evicted_token_reaches_nobody() -> None:
    model = evicting()
    place = next(t for t in range(2, 12) if int(IDS[0, t]) % 3 == 0)
    plain = model.model(IDS).last_hidden_state

    def poison(module: Any, inputs: Any, output: Tensor) -> Tensor:
        assert output.shape[1] < 12, "skipped tokens are not projected"
        return output

    hook = attention(layers(model)[1]).v_proj.register_forward_hook(poison)
    assert torch.equal(model.model(IDS).last_hidden_state, plain)
    hook.remove()
    assert not bool(model.model(IDS).executed[0, 0, place])


def test_gates_learn_from_what_later_tokens_miss() -> None:
    model = evicting(dense=True)
    model(IDS).logits.square().mean().backward()
    assert model.model.router.weight.grad.abs() > 0


def test_nobody_executing_leaves_the_stream_as_it_is() -> None:
    model = evicting()
    forced = torch.zeros(2, 5, 12, dtype=torch.bool)
    with torch.no_grad():
        output = model.model(IDS, forced=forced, use_cache=True)
        first = make_model(num_hidden_layers=1)
        dense = make_model()
        decoder(first).load_state_dict(decoder(dense).state_dict(), strict=False)
        expected = decoder(first)(IDS).last_hidden_state
    torch.testing.assert_close(output.last_hidden_state, expected)
    assert not any(layer.is_initialized for layer in output.past_key_values.layers[1:])
    assert output.past_key_values.get_seq_length() == 12


@pytest.mark.parametrize("use_cache", [False, True])
@torch.no_grad()
def test_a_mask_of_the_caller_hides_keys(use_cache: bool) -> None:
    """Two documents in a row, told by the mask alone."""
    model, length = evicting(), IDS.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mask[5:, :5] = False
    other = IDS.clone()
    other[:, :5] += 24
    first, second = (
        model(ids, attention_mask=mask[None, None], use_cache=use_cache).logits[:, 5:]
        for ids in (IDS, other)
    )
    assert torch.equal(first, second)
    assert not torch.equal(model(IDS).logits[:, 5:], model(other).logits[:, 5:])


def test_another_attention_is_refused() -> None:
    model = evicting()
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="which loading sets, not 'eager'"):
        model(IDS)
