"""The cache of layers whose tokens leave gaps: the caller's own grows, and follows beams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from tests.near import assert_near
from tests.toys.models import make_model
from tests.toys.routed import shake_variant
from tests.unit.core.routing.test_eviction import IDS, evicting


@torch.no_grad()
def test_beams_follow_their_cache() -> None:
    """Beams change places at every step, and columns with them."""
    model = evicting()
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for beams in (2, 4):
        given = settings | {"num_beams": beams, "attention_mask": torch.ones_like(IDS)}
        slow = model.generate(IDS, use_cache=False, **given)
        assert torch.equal(model.generate(IDS, **given), slow)
        assert not torch.equal(slow, model.generate(IDS, **settings))


def test_a_cache_with_holes_is_not_cropped() -> None:
    ids = IDS[:1].repeat(1, 2)
    with pytest.raises(ValueError, match="cannot be cropped: decode without assistance"):
        evicting().generate(ids, max_new_tokens=9, eos_token_id=None, prompt_lookup_num_tokens=2)


def test_another_cache_with_tokens_is_refused() -> None:
    dense = make_model()
    with torch.no_grad():
        cache = dense(IDS[:, :4], use_cache=True).past_key_values
        with pytest.raises(ValueError, match="cannot go on with a DynamicCache of another model"):
            evicting()(IDS[:, 4:], past_key_values=cache, use_cache=True)


def step_by_step(model: Any, cache: Any) -> Tensor:
    """Logits of every token in a loop that holds its own cache and never looks at the output's."""
    parts = [model(IDS[:, :5], past_key_values=cache, use_cache=True).logits]
    for t in range(5, IDS.shape[1]):
        mask = torch.ones(2, t + 1, dtype=torch.int64)
        step = model(IDS[:, t : t + 1], attention_mask=mask, past_key_values=cache, use_cache=True)
        parts.append(step.logits)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("kind", ["lazy", "dynamic", "static"])
@torch.no_grad()
def test_the_cache_of_the_caller_is_the_one_that_grows(kind: str) -> None:
    model = evicting()
    config = model.config
    made = {
        "lazy": lambda: DynamicCache(),
        "dynamic": lambda: DynamicCache(config=config),
        "static": lambda: StaticCache(config=config, max_cache_len=20),
    }
    cache = made[kind]()
    assert_near(step_by_step(model, cache), model(IDS, use_cache=False).logits)
    assert cache.get_seq_length() == IDS.shape[1]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@torch.no_grad()
def test_a_padded_batch_is_written_with_a_static_cache(kind: str) -> None:
    """A family with kinds of attention has a mask for each, as wide as the cache."""
    model = shake_variant("d-llm", kind)
    mask = torch.ones_like(IDS)
    mask[1, :3] = 0
    given: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4, "attention_mask": mask}
    given |= {"eos_token_id": None, "pad_token_id": 0}
    grown = model.generate(IDS, **given)
    given |= {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(model.generate(IDS, **given), grown)


@torch.no_grad()
def test_sequences_of_a_cache_may_be_chosen_repeated_and_dropped() -> None:
    model = evicting()
    full = model(IDS, use_cache=False).logits

    def rest(change: str, value: Any, rows: list[int]) -> None:
        cache = model(IDS[:, :7], use_cache=True).past_key_values
        getattr(cache, change)(value)
        assert_near(model(IDS[rows, 7:], past_key_values=cache).logits, full[rows, 7:])

    rest("batch_select_indices", torch.tensor([1]), [1])
    rest("batch_select_indices", torch.tensor([1, 0, 1]), [1, 0, 1])
    rest("reorder_cache", torch.tensor([1, 0]), [1, 0])
    rest("batch_repeat_interleave", 2, [0, 0, 1, 1])
    cache = model(IDS[:, :7], use_cache=True).past_key_values
    cache.reset()
    assert_near(model(IDS, past_key_values=cache).logits, full)
