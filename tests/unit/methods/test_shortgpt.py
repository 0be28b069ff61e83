"""Block Influence against loops over single tokens, and the choice it leads to."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from methods import load_method
from methods.base import Request
from methods.core.model.backbone import decoder, layers, load_backbone
from methods.shortgpt import block_influence
from tests.toys.models import make_model, wrap
from tests.toys.static import silence
from tests.toys.texts import PaddedTexts, ids_of


def residual_streams(model: torch.nn.Module, ids: list[int], last: str) -> list[Tensor]:
    """The states h_0 .. h_L of one document (T, D), layer by layer through hooks."""
    states: list[Tensor] = []
    stack = layers(model)
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0][0]))
        for layer in stack
    ]
    hooks.append(stack[-1].register_forward_hook(lambda _, __, output: states.append(output[0])))
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False)
        for hook in hooks:
            hook.remove()
        if last == "post_norm":
            states[-1] = decoder(model).norm(states[-1])
    return states


def slow_influence(
    model: torch.nn.Module, texts: list[list[int]], last: str, distance: str
) -> list[float]:
    per_layer: list[list[float]] = [[] for _ in layers(model)]
    for ids in texts:
        states = residual_streams(model, ids, last)
        for layer, (before, after) in enumerate(itertools.pairwise(states)):
            for a, b in zip(before.double(), after.double(), strict=True):
                cosine = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
                value = 1 - cosine if distance == "cosine" else math.acos(cosine) / math.pi
                per_layer[layer].append(value)
    return [sum(values) / len(values) for values in per_layer]


@pytest.mark.parametrize("distance", ["cosine", "angular"])
@pytest.mark.parametrize("last", ["post_norm", "raw"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_scores_equal_the_loop_over_tokens(kind: str, last: str, distance: str) -> None:
    model = make_model(kind)
    torch.nn.init.uniform_(decoder(model).norm.weight, 0.2, 2.0)
    texts = ids_of([5, 9, 3, 12])
    fast = block_influence(wrap(model), PaddedTexts(texts), last, distance)
    assert fast == pytest.approx(slow_influence(model, texts, last, distance), abs=1e-5)


def test_only_the_last_score_depends_on_the_final_norm() -> None:
    model = make_model()
    torch.nn.init.uniform_(decoder(model).norm.weight, 0.2, 2.0)
    texts = PaddedTexts(ids_of([8, 8]))
    post, raw = (
        block_influence(wrap(model), texts, last, "cosine") for last in ("post_norm", "raw")
    )
    assert post[:-1] == raw[:-1]
    assert abs(post[-1] - raw[-1]) > 1e-3


def test_scores_do_not_depend_on_the_batch_size() -> None:
    model = make_model()
    texts = ids_of([2, 15, 7, 7, 1, 11])
    scores = [
        block_influence(wrap(model), PaddedTexts(texts, size), "post_norm", "cosine")
        for size in (1, 2, 6)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert scores[0] == pytest.approx(scores[2], abs=1e-6)


def test_tokens_weigh_the_same_whatever_their_document() -> None:
    backbone = wrap(make_model())
    short, long = ids_of([3, 12])

    def score(*texts: list[int]) -> np.ndarray:
        return np.array(block_influence(backbone, PaddedTexts(list(texts)), "post_norm", "cosine"))

    both = (3 * score(short) + 12 * score(long)) / 15
    assert score(short, long) == pytest.approx(both, abs=1e-6)
    doubled = (6 * score(short) + 12 * score(long)) / 18
    assert score(short, long, short) == pytest.approx(doubled, abs=1e-6)
    assert abs(both - doubled).max() > 1e-5


@pytest.mark.parametrize("layer", [0, 3, 5])
def test_a_layer_that_adds_nothing_scores_zero_and_goes_first(layer: int) -> None:
    method = load_method("shortgpt", {"layers": 2, "last_layer": "raw"})
    fitted = method.fit(
        wrap(silence(make_model(), layer)), PaddedTexts(ids_of([9, 6])), Request(None, 0, Path())
    )
    assert fitted.decisions["scores"][layer] == pytest.approx(0, abs=1e-6)
    assert fitted.decisions["removed_layers"][0] == layer


def test_a_zero_state_counts_as_half() -> None:
    model = make_model()
    torch.nn.init.zeros_(model.get_input_embeddings().weight)
    scores = block_influence(wrap(model), PaddedTexts(ids_of([4])), "raw", "cosine")
    assert scores == [0.5] * 6


def test_states_that_are_no_numbers_are_no_zero_states() -> None:
    model = make_model()
    with torch.no_grad():
        layers(model)[2].mlp.down_proj.weight.fill_(float("nan"))
    scores = block_influence(wrap(model), PaddedTexts(ids_of([9, 5])), "post_norm", "cosine")
    assert [math.isnan(score) for score in scores] == [False] * 2 + [True] * 4


def test_equal_scores_go_from_the_lower_layer() -> None:
    model = make_model()
    torch.nn.init.zeros_(model.get_input_embeddings().weight)
    method = load_method("shortgpt", {"layers": 3})
    fitted = method.fit(wrap(model), PaddedTexts(ids_of([4])), Request(None, 0, Path()))
    assert fitted.decisions["removed_layers"] == [0, 1, 2]


def test_layers_are_scored_once_and_removed_from_the_lowest(llama: Path) -> None:
    texts = PaddedTexts(ids_of([10, 10]))
    backbone = load_backbone(llama)
    scores = block_influence(backbone, texts, "post_norm", "cosine")
    fitted = load_method("shortgpt", {"layers": 4}).fit(backbone, texts, Request(None, 0, Path()))
    assert fitted.decisions["scores"] == scores
    assert fitted.decisions["removed_layers"] == np.argsort(scores)[:4].tolist()
    assert fitted.structure == {"removed_layers": fitted.decisions["removed_layers"]}
    assert len(layers(fitted.model)) == fitted.model.config.num_hidden_layers == 2


@pytest.mark.parametrize(("number", "warned"), [(4, False), (5, True)])
def test_removing_the_first_or_last_layer_is_warned_of(number: int, warned: bool) -> None:
    # Layers 1 to 4 add nothing and go first; the fifth to go is an end.
    model = silence(make_model(), 1, 2, 3, 4)
    method = load_method("shortgpt", {"layers": number})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        method.fit(wrap(model), PaddedTexts(ids_of([9, 6])), Request(None, 0, Path()))
    said = [str(warning.message) for warning in caught]
    assert any("at an end" in message for message in said) == warned
