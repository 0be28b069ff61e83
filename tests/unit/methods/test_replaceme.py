"""ReplaceMe's run and its matrix against loops over documents and NumPy's least squares."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from methods import load_method
from methods.base import Fitted, Request
from methods.core.model.backbone import ffn, layers
from methods.replaceme import Updates, highest_cosine, least_squares, updates
from tests.toys.models import cast, draw_biases, keep_layers, make_model, wrap
from tests.toys.static import silence
from tests.toys.texts import calibration_data, ids_of

# More tokens than the 32 directions of a toy, in documents that are padded together.
TEXTS = ids_of([5, 19, 12, 3, 24, 17])
IDS = torch.arange(24).reshape(2, 12)


def make(kind: str = "llama", **changes: Any) -> Any:
    return cast(make_model(kind, **changes), torch.float64)


def fit(model: Any, texts: list[list[int]] = TEXTS, seed: int = 0, **params: Any) -> Fitted:
    method = load_method("replaceme", {"layers": 2} | params)
    return method.fit(wrap(model), calibration_data(texts), Request(None, seed, Path()))


@torch.no_grad()
def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    return model(ids).logits


def outputs(model: Any, ids: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What each layer, and each layer's FFN, makes of one document, (T, D) each."""
    streams: list[np.ndarray] = []
    added: list[np.ndarray] = []
    hooks = []
    for layer in layers(model):
        for module, kept in ((ffn(layer), added), (layer, streams)):
            hooks.append(
                module.register_forward_hook(
                    lambda _, __, made, kept=kept: kept.append(made[0].numpy())
                )
            )
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return streams, added


def slow_distances(model: Any, number: int, tokens: str) -> list[float]:
    found: list[list[float]] = [[] for _ in range(len(layers(model)) - number)]
    for ids in TEXTS:
        streams, _ = outputs(model, ids)
        for token in range(len(ids)) if tokens == "all" else [len(ids) - 1]:
            for layer, values in enumerate(found):
                a, b = streams[layer][token], streams[layer + number][token]
                cosine = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
                values.append(math.acos(max(-1.0, min(1.0, cosine))) / math.pi)
    return [sum(values) / len(values) for values in found]


def slow_pairs(model: Any, first: int, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """M, what is wanted of it, and the stream in front of it, of all tokens (N, D)."""
    made, wanted, stream = [], [], []
    for ids in TEXTS:
        streams, added = outputs(model, ids)
        made.append(added[first])
        wanted.append(streams[first + number] - (streams[first] - added[first]))
        stream.append(streams[first] - added[first])
    return np.concatenate(made), np.concatenate(wanted), np.concatenate(stream)


def merged(model: Any, first: int) -> Tensor:
    return layers(model)[first].mlp.down_proj.weight.detach()


@pytest.mark.parametrize("tokens", ["last", "all"])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_distances_equal_the_loop_over_documents(kind: str, number: int, tokens: str) -> None:
    expected = slow_distances(make(kind), number, tokens)
    decisions = fit(make(kind), layers=number, tokens=tokens).decisions
    assert decisions["scores"] == pytest.approx(expected, abs=1e-9)
    assert decisions["absorbed_by"] == int(np.argmin(expected))


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["llama", "tied", "qwen2", "qwen3", "mistral"])
def test_the_merged_weight_is_that_of_numpys_least_squares(kind: str, ridge: float) -> None:
    dense = make(kind)
    fitted = fit(make(kind), ridge=ridge)
    first = fitted.decisions["absorbed_by"]
    made, wanted, _ = slow_pairs(dense, first, 2)
    rows = np.concatenate([made, math.sqrt(ridge) * np.eye(32)])
    aims = np.concatenate([wanted, np.zeros((32, 32))])
    transform = np.linalg.lstsq(rows, aims, rcond=None)[0]
    expected = transform.T @ merged(dense, first).numpy()
    found = merged(fitted.model, first).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8 * abs(expected).max())
    assert fitted.decisions["transform_norm"] == pytest.approx(np.linalg.norm(transform), rel=1e-8)
    change = np.linalg.norm(transform - np.eye(32))
    assert fitted.decisions["transform_change"] == pytest.approx(change, rel=1e-8)


def test_what_an_ffn_adds_is_scaled_where_the_family_scales_it() -> None:
    """Granite adds half of what its FFN makes."""
    data = calibration_data([TEXTS[4]])
    (found,) = updates(make("granite"), data, 1, 1, torch.float64)
    _, made = outputs(make("granite"), TEXTS[4])
    np.testing.assert_allclose(found.update, 0.5 * made[1], rtol=0, atol=1e-9)


def random_pairs(tokens: int = 90) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    pair = (torch.randn(tokens, 8, generator=draw, dtype=torch.float64) for _ in range(2))
    made, wanted = pair
    return made * torch.logspace(-2, 2, 8, dtype=torch.float64), wanted


def test_the_error_is_least_and_orthogonal() -> None:
    made, wanted = random_pairs()
    half = [Updates(made[s], wanted[s], made[s]) for s in (slice(0, 31), slice(31, None))]
    transform = least_squares(half, 0.0)
    residual = made @ transform - wanted
    assert float((made.T @ residual).norm()) < 1e-8 * float(made.norm() * wanted.norm())
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        other = transform + 1e-3 * torch.randn(8, 8, generator=draw, dtype=torch.float64)
        assert float((made @ other - wanted).norm()) > float(residual.norm())


def test_a_large_ridge_leaves_the_ffn_nothing() -> None:
    made, wanted = random_pairs()
    assert float(least_squares([Updates(made, wanted, made)], 1e12).norm()) < 1e-6


def test_too_few_tokens_are_refused_unless_there_is_a_ridge() -> None:
    texts = ids_of([15, 16])
    with pytest.raises(ValueError, match="param 'ridge' is 0.0: .* fewer than 32 directions"):
        fit(make(), texts)
    assert fit(make(), texts, ridge=1e-3).decisions["transform_norm"] > 0


def test_layers_that_add_nothing_go_without_a_trace() -> None:
    model, dense = (silence(make(), 3, 4) for _ in range(2))
    fitted = fit(model)
    assert fitted.decisions["removed_layers"] == [3, 4]
    assert fitted.decisions["scores"][2] == pytest.approx(0, abs=1e-7)
    assert fitted.decisions["transform_change"] < 1e-9
    torch.testing.assert_close(logits(fitted.model), logits(dense), rtol=0, atol=1e-9)


def test_a_linear_map_of_what_the_ffn_added_is_found() -> None:
    """Layer 2 is made to lead from (Y - M) + M to (Y - M) + M A."""
    model = make()
    draw = torch.Generator().manual_seed(1)
    change = 0.01 * torch.randn(32, 32, generator=draw, dtype=torch.float64)
    seen: list[Tensor] = []
    ffn(layers(model)[1]).register_forward_hook(lambda _, __, made: seen.append(made))
    layers(model)[2].forward = lambda hidden, **_: hidden + seen[-1] @ change
    expected = logits(model)
    fitted = fit(model, layers=1)
    assert fitted.decisions["removed_layers"] == [2]
    assert fitted.decisions["transform_change"] == pytest.approx(float(change.norm()), rel=1e-8)
    torch.testing.assert_close(logits(fitted.model), expected, rtol=0, atol=1e-9)


def test_one_weight_of_the_layers_left_changes() -> None:
    fitted = fit(make())
    removed, first = fitted.structure["removed_layers"], fitted.decisions["absorbed_by"]
    plain = keep_layers(make(), [n for n in range(6) if n not in removed]).double()
    found = fitted.model.state_dict()
    changed = [n for n, tensor in plain.state_dict().items() if not torch.equal(tensor, found[n])]
    assert changed == [f"model.layers.{first}.mlp.down_proj.weight"]
    assert {n: t.shape for n, t in plain.state_dict().items()} == {
        n: t.shape for n, t in found.items()
    }


def test_merging_equals_multiplying_what_the_ffn_writes() -> None:
    """Its bias as well."""

    def biased() -> Any:
        return draw_biases(make(mlp_bias=True))

    fitted = fit(biased())
    removed, first = fitted.structure["removed_layers"], fitted.decisions["absorbed_by"]
    found = updates(biased(), calibration_data(TEXTS), first, 2, torch.float64)
    transform = least_squares(found, 0.0)
    plain = biased()
    ffn(layers(plain)[first]).register_forward_hook(lambda _, __, made: made @ transform)
    method = load_method("replaceme")
    method.build(wrap(plain), {"removed_layers": removed})
    torch.testing.assert_close(logits(fitted.model), logits(plain), rtol=0, atol=1e-9)


def slow_adam(
    made: np.ndarray, wanted: np.ndarray, offset: Any, steps: int, rate: float
) -> tuple[np.ndarray, list[float]]:
    """Adam by hand on 1 - mean cos(offset + M T, offset + wanted), all tokens at once."""
    transform = np.eye(made.shape[1])
    first, second = np.zeros_like(transform), np.zeros_like(transform)
    aim, curve = wanted + offset, []
    for step in range(1, steps + 1):
        found = made @ transform + offset
        sizes = np.linalg.norm(found, axis=1), np.linalg.norm(aim, axis=1)
        cosines = (found * aim).sum(1) / (sizes[0] * sizes[1])
        curve.append(1 - cosines.mean())
        slope = aim / (sizes[0] * sizes[1])[:, None] - found * (cosines / sizes[0] ** 2)[:, None]
        gradient = -made.T @ slope / len(made)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        mean, square = first / (1 - 0.9**step), second / (1 - 0.999**step)
        transform = transform - rate * mean / (np.sqrt(square) + 1e-8)
    return transform, curve


@pytest.mark.parametrize("accurate", [False, True])
def test_the_cosine_fit_is_adam_from_the_identity(accurate: bool) -> None:
    steps = {"epochs": 4, "batch_tokens": 1000, "learning_rate": 1e-3}
    fitted = fit(make(), fit="cosine", accurate=accurate, **steps)
    first = fitted.decisions["absorbed_by"]
    made, wanted, stream = slow_pairs(make(), first, 2)
    transform, curve = slow_adam(made, wanted, stream if accurate else 0.0, 4, 1e-3)
    expected = transform.T @ merged(make(), first).numpy()
    np.testing.assert_allclose(merged(fitted.model, first).numpy(), expected, rtol=0, atol=1e-8)
    assert fitted.decisions["loss_curve"] == pytest.approx(curve, abs=1e-10)
    assert curve[-1] < curve[0]


def test_the_cosine_fit_shuffles_alike_under_every_seed() -> None:
    params = {"fit": "cosine", "epochs": 2, "batch_tokens": 16, "learning_rate": 1e-2}
    curves = [fit(make(), seed=s, **params).decisions["loss_curve"] for s in (0, 1)]
    assert curves[0] == curves[1]
    assert curves[0][1] < curves[0][0]


def test_every_token_enters_an_epoch_once() -> None:
    made, wanted = random_pairs(10)
    params = load_method("replaceme", {"epochs": 1, "batch_tokens": 3, "learning_rate": 1e-12})
    _, curve = highest_cosine(Updates(made, wanted, made), params.params)
    cosines = torch.nn.functional.cosine_similarity(made, wanted, dim=-1)
    assert curve == [pytest.approx(float(1 - cosines.mean()), abs=1e-9)]


@pytest.mark.parametrize("number", [0, 1, 4, 5])
def test_a_run_is_removed_behind_the_layer_that_absorbs_it(number: int) -> None:
    fitted = fit(make(), layers=number)
    first = fitted.decisions["absorbed_by"]
    assert fitted.decisions["removed_layers"] == list(range(first + 1, first + 1 + number))
    assert len(fitted.decisions["scores"]) == 6 - number
    assert fitted.model.config.num_hidden_layers == len(layers(fitted.model)) == 6 - number
    if number == 0:
        assert torch.equal(logits(fitted.model), logits(make()))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ridge": -1.0}, "param 'ridge' is -1.0, must be at least 0"),
        ({"learning_rate": 0}, "param 'learning_rate' is 0, must be above 0"),
        ({"epochs": 0}, "param 'epochs' is 0, must be at least 1"),
        ({"batch_tokens": 0}, "param 'batch_tokens' is 0, must be at least 1"),
    ],
)
def test_values_out_of_range_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_method("replaceme", params)


def test_what_says_how_many_layers_go() -> None:
    with pytest.raises(ValueError, match="param 'layers' is 6"):
        fit(make(), layers=6)
    reason = load_method("replaceme").skip_reason(wrap(make()), Request(None, 0, Path()))
    assert "how many layers" in reason
