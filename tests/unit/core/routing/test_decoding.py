"""Decoding in a static cache: the tokens of generate, the same work whatever is decided."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from methods import load_method
from methods.core.model.families import split_matrices
from methods.core.routing.decoding import StaticDecoder, columns_for, generate
from methods.core.routing.routed import route, router_of
from methods.core.routing.router import block_units
from tests.contract.fits import IDS
from tests.toys.models import OTHERS, make_model, wrap
from tests.toys.routed import VARIANTS, shake_variant
from tests.toys.texts import PAD
from tests.unit.core.routing.test_routed import EveryThird

# Variants and controls of HeRo that decide without knowing answer tokens.
HERO: dict[str, dict[str, Any]] = {
    "hero": {},
    "hero-block": {"unit": "block"},
    **{
        f"hero-{variant}": {"variant": variant}
        for variant in ("no-history", "same-size", "no-memread", "difference", "static")
    },
    "hero-random": {"variant": "random"},
    "hero-by-token": {"variant": "by-token"},
}
RANDOM = {"layers": [1, 2, 3], "seed": 3, "skipped_units": 1.0}
STRUCTURES: dict[str, dict[str, Any]] = {
    "random-skip": RANDOM,
    "random-skip-layers": RANDOM,
    "ffn-skipllm": {"region": [1, 4], "tau": 0.9, "run_length": 1, "warmup": 2, "spread": 0.1},
}
ROUTED = [*HERO, *VARIANTS, *STRUCTURES, "block"]
# What gives the host a number, or a shape that depends on one.
LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")


class Recorder(TorchDispatchMode):
    """Every operation with the shapes of its tensors, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[tuple[int, ...], ...]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensors = [part for part in (*args, *(kwargs or {}).values()) if isinstance(part, Tensor)]
        self.seen.append((str(func), tuple(tuple(tensor.shape) for tensor in tensors)))
        return func(*args, **(kwargs or {}))


def model_of(name: str, kind: str = "llama") -> Any:
    if name == "dense":
        return make_model(kind)
    if name == "block":
        model = make_model(kind)
        return route(model, EveryThird(block_units(model, [1, 2]), 0.7))
    if name in VARIANTS:
        return shake_variant(name, kind)
    if name in STRUCTURES:
        return load_method(name).build(wrap(make_model(kind)), STRUCTURES[name]).eval()
    structure = {"layers": [1, 2, 3], "seed": 3, "threshold": 0.5, "closed": 1}
    by_token = [[-1, 0.3, 0.5, 0.7], [5, 0.9, 0.9, 0.9]]
    structure["rates"] = by_token if name == "hero-by-token" else [[0.3]] * 3
    model = load_method("hero", HERO[name]).build(wrap(make_model(kind)), structure)
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in router_of(model).parameters():  # type: ignore[union-attr]
            parameter += 0.3 * torch.randn(parameter.shape, generator=rng)
    return model.eval()


def expected(model: Any, ids: Tensor, mask: Tensor | None, count: int) -> Tensor:
    made: Tensor = model.generate(
        ids, attention_mask=torch.ones_like(ids) if mask is None else mask,
        do_sample=False, max_new_tokens=count,
    )  # fmt: skip
    return made


@pytest.mark.parametrize("name", ["dense", *ROUTED])
@pytest.mark.parametrize("padded", [False, True])
def test_the_tokens_are_those_of_generate(name: str, padded: bool) -> None:
    model, mask = model_of(name), None
    if padded:
        mask = torch.ones_like(IDS)
        mask[0, :4] = mask[2, :1] = 0
    found = generate(model, IDS, mask, new_tokens=12)
    assert torch.equal(found, expected(model, IDS, mask, 12))


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", ["dense", "hero", "skipgpt-rt", "block"])
def test_every_family_decodes_in_a_static_cache(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sliding_window" in OTHERS[kind]:
        monkeypatch.setitem(OTHERS[kind], "sliding_window", 64)
    model = split_matrices(model_of(name, kind))
    assert torch.equal(generate(model, IDS, None, 12), expected(model, IDS, None, 12))


@pytest.mark.parametrize("name", ["hero", "skipgpt-rt", "mod-d", "d-llm", "block"])
def test_ordinary_generation_takes_a_static_cache(name: str) -> None:
    model = model_of(name)
    found = model.generate(
        IDS, do_sample=False, max_new_tokens=12, cache_implementation="static", disable_compile=True
    )
    assert torch.equal(found, expected(model, IDS, None, 12))


def test_a_sequence_ends_at_any_end_token() -> None:
    model = model_of("hero")
    free = expected(model, IDS, None, 40)[:, IDS.shape[1] :]
    model.generation_config.eos_token_id = [int(free[0, 3]), int(free[1, 20])]
    ended = expected(model, IDS, None, 40)
    assert (ended == PAD).any()
    assert torch.equal(generate(model, IDS, new_tokens=40), ended)


@pytest.mark.parametrize("name", ["dense", "hero", "block", "d-llm"])
def test_a_cache_of_more_columns_gives_the_same_tokens(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU has them; nothing is ever stored in the last ones."""
    assert [columns_for(room, True) for room in (1, 8, 25)] == [8, 8, 32]
    assert columns_for(25, False) == 25
    model, mask = model_of(name), torch.ones_like(IDS)
    mask[0, :4] = 0
    found = generate(model, IDS, mask, new_tokens=12)
    monkeypatch.setattr(
        "methods.core.routing.decoding.columns_for", lambda room, _: columns_for(room, True)
    )
    decoder = StaticDecoder(model, 3, IDS.shape[1] + 12)
    assert decoder._mask.shape[-1] % 8 == 0
    assert decoder._mask.shape[-1] > decoder.capacity
    assert torch.equal(generate(model, IDS, mask, new_tokens=12), found)


@pytest.mark.parametrize("name", ["dense", *ROUTED])
def test_every_step_is_the_same_work(name: str) -> None:
    """No operation looks at a number, and neither decisions nor the place change one's shape."""
    decoder = StaticDecoder(model_of(name), 3, 40, forced=True)
    decoder.prefill(IDS)
    addresses = [tensor.data_ptr() for tensor in held(decoder)]
    recorded = []
    for executes in (True, False, True, True):
        if decoder.decisions is not None:
            decoder.decisions.fill_(executes)
        with Recorder() as recorder:
            decoder.step()
        recorded.append(recorder.seen)
    assert recorded[1:] == recorded[:1] * 3
    assert not [op for op, _ in recorded[0] if any(f"aten.{look}" in op for look in LOOKS)]
    assert [tensor.data_ptr() for tensor in held(decoder)] == addresses


def held(decoder: StaticDecoder) -> list[Tensor]:
    stored = [tensor for layer in decoder.cache.layers for tensor in (layer.keys, layer.values)]
    return [decoder.token, decoder.logits, *stored]


class OnDevice(TorchDispatchMode):
    """Operations with a tensor that is not on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)]
        if any(tensor.device.type != "meta" for tensor in tensors):
            self.others.append(str(func))
        return result


@pytest.mark.parametrize("name", sorted({"dense", *ROUTED} - {"block"}))
def test_a_step_copies_nothing_from_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta tensors stand for a GPU. No graph is captured of a step that copies from the host.

    On a GPU ``x[index] = number`` and ``torch.tensor(number, device=...)`` do.
    """
    copies, assign, make = list[str](), Tensor.__setitem__, torch.tensor

    def assigns(self: Tensor, place: Any, value: Any) -> None:
        if not isinstance(value, Tensor) and any(isinstance(x, Tensor) for x in tree_leaves(place)):
            copies.append(f"x[index] = {value}")
        assign(self, place, value)

    def makes(data: Any, **options: Any) -> Tensor:
        copies.append(f"tensor({data})")
        return make(data, **options)

    # There is no autocast of meta tensors.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    decoder = StaticDecoder(model_of(name).to("meta"), 3, 40, graph=False)
    for layer in decoder.cache.layers:
        keys = torch.empty(3, 2, 1, 8, device="meta")
        layer.lazy_initialization(keys, keys)
    monkeypatch.setattr(Tensor, "__setitem__", assigns)
    monkeypatch.setattr(torch, "tensor", makes)
    with OnDevice() as audit:
        decoder._step()
    assert copies + audit.others == []


def test_forced_decisions_are_obeyed() -> None:
    model = model_of("hero")
    decoder = StaticDecoder(model, 3, 20, forced=True)
    decoder.prefill(IDS)
    token, logits = decoder.token.clone(), []
    for executes in (True, False):
        decoder.prefill(IDS)
        assert decoder.decisions is not None
        decoder.decisions.fill_(executes)
        decoder.step()
        logits.append(decoder.logits.clone())
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    for executes, found in zip((True, False), logits, strict=True):
        with torch.no_grad():
            cache = model(IDS, use_cache=True).past_key_values
            forced = torch.full((3, 3, 1), executes)
            eager = model(token, past_key_values=cache, forced=forced).logits[:, -1]
        torch.testing.assert_close(found, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["hero", "d-llm"])
def test_steps_can_be_taken_back(name: str) -> None:
    decoder = StaticDecoder(model_of(name), 3, 20)
    decoder.prefill(IDS)
    decoder.step()
    back, found = decoder.mark(), list[Tensor]()
    for _ in range(2):
        decoder.step()
        decoder.step()
        found.append(decoder.logits.clone())
        back()
    assert torch.equal(*found)


@pytest.mark.parametrize("window", [17, 18, 24])
def test_layers_with_a_window_of_the_room_are_ordinary(window: int) -> None:
    model = make_model("qwen2", sliding_window=window)
    decoder = StaticDecoder(model, len(IDS), window)
    decoder.prefill(IDS)
    back, found = decoder.mark(), list[Tensor]()
    for _ in range(2):
        for _ in range(window - IDS.shape[1]):
            decoder.step()
        found.append(decoder.logits.clone())
        back()
    assert torch.equal(*found)
    count = window - IDS.shape[1]
    assert torch.equal(generate(model, IDS, None, count), expected(model, IDS, None, count))


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match="layers see 6 tokens, fewer than the 20"):
        StaticDecoder(make_model("mistral"), 1, 20)
    with pytest.raises(ValueError, match="a CUDA graph needs a GPU"):
        StaticDecoder(make_model(), 1, 20, graph=True)
    with pytest.raises(ValueError, match="prompts of 14 tokens leave no room in 14"):
        StaticDecoder(make_model(), 3, 14).prefill(IDS)
    with pytest.raises(ValueError, match="new_tokens is 0"):
        generate(make_model(), IDS, new_tokens=0)
    with pytest.raises(ValueError, match="with a StaticEvictingCache, not with NoneType"):
        shake_variant("d-llm").model(IDS[:, :1], capturable=True)
