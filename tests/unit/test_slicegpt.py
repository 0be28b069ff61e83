"""SliceGPT: what rotations leave as it was, what slicing removes, and how D is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from methods import load_method, load_model
from methods.base import Fitted, Request
from methods.core.backbone import Backbone, count, decoder, empty_backbone, layers
from methods.core.data import Batch, Document, batches
from methods.core.ledger import Ledger, Tally
from methods.core.sliced import UnweightedNorm, fuse_norms
from methods.slicegpt import Stream, kept_directions
from tests import steps, toy

KINDS = sorted(toy.SHAPES)
LENGTHS = [9, 21, 4, 30, 13, 17]
IDS = torch.randint(0, 60, (3, 20), generator=torch.Generator().manual_seed(2))


class Documents:
    """Calibration documents in padded batches; pads hold ``pad``."""

    def __init__(self, batch_size: int = 4, pad: int = 0, lengths: list[int] = LENGTHS) -> None:
        rng = np.random.default_rng(0)
        self.documents = [Document(rng.integers(0, 60, n).tolist(), 0) for n in lengths]
        self.batch_size, self.pad = batch_size, pad

    def calibration(self) -> list[Batch]:
        made = batches(self.documents, self.batch_size)
        return [Batch(b.ids.masked_fill(~b.valid, self.pad), b.valid) for b in made]


def dense(kind: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    """A toy whose norms have weights and whose matrices have biases where the family allows."""
    model = toy.make_model(kind, **changes)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5, torch.Generator().manual_seed(len(name)))
    return model.to(dtype)


def wrap(model: nn.Module) -> Backbone:
    return Backbone(model, None, Path(), None, "", count(model))


def fit(
    model: nn.Module,
    fraction: float | None = 0.25,
    budget: float | None = None,
    seed: int = 0,
    data: Documents | None = None,
    **params: Any,
) -> Fitted:
    given = {"slice_fraction": fraction, "round_to": 1, **params}
    request = Request(budget, seed, Path())
    return load_method("slicegpt", given).fit(wrap(model), data or Documents(), request)


@torch.no_grad()
def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    return model(ids).logits


def furthest(first: Tensor, second: Tensor) -> float:
    return float((first - second).detach().abs().max())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-6)])
@pytest.mark.parametrize("kind", KINDS)
def test_fusing_the_norms_keeps_the_logits(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    model = dense(kind, dtype, rms_norm_eps=1e-2)
    before = logits(model)
    assert furthest(logits(fuse_norms(model)), before) < tolerance * float(before.abs().max())
    assert not any("layernorm" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 5e-14)])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_sliced_is_the_fused_model(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    fused = logits(fuse_norms(dense(kind, dtype)))
    sliced = fit(dense(kind, dtype), 0.0).model
    assert furthest(logits(sliced), fused) < tolerance * float(fused.abs().max())
    assert furthest(logits(sliced), logits(dense(kind, dtype))) < 1e-4


def test_nothing_sliced_makes_orthogonal_shortcuts() -> None:
    sliced = fit(dense(dtype=torch.float64), 0.0).model
    for layer in layers(sliced):
        for shortcut in (layer.attention_shortcut.weight, layer.ffn_shortcut.weight):
            one = torch.eye(32, dtype=torch.float64)
            torch.testing.assert_close(shortcut @ shortcut.T, one, rtol=0, atol=1e-12)
            assert furthest(shortcut, one) > 0.1


def test_biases_of_writing_matrices_turn_with_them() -> None:
    model = dense(dtype=torch.float64, attention_bias=True, mlp_bias=True)
    before = logits(model)
    assert furthest(logits(fit(model, 0.0).model), before) < 1e-6


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_orientations_give_the_same_logits(kind: str, fraction: float) -> None:
    pca = fit(dense(kind, torch.float64), fraction).model
    random = fit(dense(kind, torch.float64), fraction, orientation="random").model
    assert furthest(logits(pca), logits(random)) < 1e-10
    before, after = (decoder(model).embed_tokens.weight for model in (pca, random))
    assert furthest(before, after) > 0.1


def test_the_random_orientation_follows_the_seed() -> None:
    def embeddings(seed: int) -> Tensor:
        model = fit(dense(), orientation="random", seed=seed).model
        return decoder(model).embed_tokens.weight

    assert torch.equal(embeddings(1), embeddings(1))
    assert not torch.equal(embeddings(1), embeddings(2))


def test_every_cut_draws_its_own_rotation() -> None:
    """A layer that adds nothing leaves the stream, and so its PCA, alone: only the draw differs."""
    model = dense(dtype=torch.float64)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        nn.init.zeros_(layers(model)[0].get_submodule(name).weight)
    first = layers(fit(model, 0.25, orientation="random").model)[0]
    for shortcut in (first.attention_shortcut.weight, first.ffn_shortcut.weight):
        assert furthest(shortcut.abs(), torch.eye(24)) > 0.1


def confined(kind: str) -> nn.Module:
    """A toy whose embedding, attention and FFN write to 20 directions only, drawn at random."""
    model = dense(kind, torch.float64)
    drawn = torch.randn(32, 20, generator=torch.Generator().manual_seed(5)).double()
    basis = torch.linalg.qr(drawn).Q
    with torch.no_grad():
        embeddings = decoder(model).embed_tokens.weight
        embeddings.copy_(embeddings @ basis @ basis.T)
        for layer in layers(model):
            for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
                matrix.weight.copy_(basis @ basis.T @ matrix.weight)
    return model


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_in_a_subspace_is_sliced_without_loss(kind: str, head: bool) -> None:
    expected = logits(fuse_norms(confined(kind)))
    fitted = fit(confined(kind), 12 / 32, do_slice_head=head)
    cuts = 2 * len(layers(fitted.model))
    assert fitted.decisions["widths"] == [20] * cuts + [20 if head else 32]
    assert furthest(logits(fitted.model), expected) < 1e-10
    assert furthest(logits(fit(confined(kind), 13 / 32).model), expected) > 0.1


def test_eigenvalues_fall_and_sum_to_the_damped_squares() -> None:
    model = dense(dtype=torch.float64)
    data = Documents()
    rows = decoder(model).embed_tokens.weight.detach()
    squares = sum(float(rows[document.ids].square().sum()) for document in data.documents)
    eigenvalues = np.array(fit(model, data=data).decisions["eigenvalues"])
    assert eigenvalues.shape == (13, 32)
    assert (np.diff(eigenvalues, axis=1) <= 0).all()
    assert eigenvalues[0].sum() == pytest.approx(1.01 * squares, rel=1e-12)


def test_principal_directions_by_hand() -> None:
    # Squares sum to diag(9 + 16, 4), 14.5 in the mean; the pad (100, 100) does not count.
    states = [torch.tensor([[[3.0, 0.0], [4.0, 0.0]], [[0.0, 2.0], [100.0, 100.0]]])]
    stream = Stream(states, [torch.tensor([[True, True], [True, False]])])
    values, vectors = stream.principal_directions(torch.device("cpu"))
    assert values.tolist() == pytest.approx([25.145, 4.145])
    assert vectors.abs().tolist() == [[1, 0], [0, 1]]


def test_pads_and_batches_change_nothing() -> None:
    fits = [
        fit(dense(dtype=torch.float64), data=data).decisions["eigenvalues"]
        for data in (Documents(), Documents(pad=7), Documents(batch_size=1))
    ]
    for other in fits[1:]:
        np.testing.assert_allclose(other, fits[0], rtol=1e-12)


def test_each_cut_sees_the_slicing_in_front_of_it() -> None:
    exact, sliced = (
        np.array(fit(dense(), fraction).decisions["eigenvalues"]) for fraction in (0.0, 0.5)
    )
    np.testing.assert_allclose(sliced[0], exact[0], rtol=1e-6)
    assert abs(sliced[1:] / exact[1:] - 1).max(axis=1).min() > 1e-3


def test_the_norm_divides_by_the_original_width() -> None:
    norm = UnweightedNorm(8, 0.5)
    x = torch.tensor([[3.0, 4.0]])
    assert norm(x)[0].tolist() == pytest.approx(
        [3 / (25 / 8 + 0.5) ** 0.5, 4 / (25 / 8 + 0.5) ** 0.5]
    )
    half = x.bfloat16()
    assert norm(half).dtype is torch.bfloat16
    torch.testing.assert_close(norm(half), norm(x).bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_follow_the_formula(kind: str, head: bool) -> None:
    shape = toy.SHAPES[kind]
    layer_count, full, width, ffn, keys = shape["num_hidden_layers"], 32, 24, 64, 16
    ends = [width] * (layer_count - 1) + [width if head else full]
    expected = 64 * width + 64 * ends[-1]
    for end in ends:
        expected += 2 * full * width + 2 * keys * width + 2 * ffn * width + ffn * end
        expected += width * width + width * end
        expected += {"qwen2": full + 2 * keys, "qwen3": 2 * 8}.get(kind, 0)
    fitted = fit(dense(kind), 0.25, do_slice_head=head)
    assert count(fitted.model) == expected
    method = load_method("slicegpt")
    built = method.build(empty_backbone(toy.make_model(kind).config), fitted.structure)
    assert count(built) == expected


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [0.15, 0.40])
def test_a_budget_takes_the_nearest_width(kind: str, budget: float, head: bool) -> None:
    model = dense(kind)
    total = count(model)
    fitted = fit(model, None, budget, do_slice_head=head)
    trace = {row["setting"]: row["skip"] for row in fitted.decisions["budget_search"]}
    assert sorted(trace) == list(range(1, 33))
    width = fitted.structure["width"]
    assert trace[width] == 1 - count(fitted.model) / total
    assert abs(trace[width] - budget) == min(abs(skip - budget) for skip in trace.values())
    assert fitted.decisions["slice_fraction"] == 1 - width / 32
    # Shortcuts are charged: with every direction kept the model is larger than the dense one.
    assert trace[32] < 0


def test_biases_of_writing_matrices_are_counted() -> None:
    model = dense(attention_bias=True, mlp_bias=True)
    total = count(model)
    fitted = fit(model, None, 0.25, do_slice_head=True)
    trace = {row["setting"]: row["skip"] for row in fitted.decisions["budget_search"]}
    assert trace[fitted.structure["width"]] == 1 - count(fitted.model) / total


def test_widths_of_a_search_are_rounded() -> None:
    trace = fit(dense(), None, 0.25, round_to=5).decisions["budget_search"]
    assert [row["setting"] for row in trace] == [30, 25, 20, 15, 10, 5]


def test_a_pinned_fraction_wins_over_the_budget() -> None:
    fitted = fit(dense(), 0.5, budget=0.1)
    assert fitted.structure["width"] == 16
    assert fitted.decisions["slice_fraction"] == 0.5
    assert fitted.decisions["budget_search"] == []


@pytest.mark.parametrize(
    ("full", "fraction", "round_to", "width"),
    [
        (4096, 0.2, 8, 3272),
        (4096, 0.2, 1, 3276),
        (5120, 0.3, 8, 3584),
        (64, 0, 1, 64),
        (30, 0, 8, 24),
    ],
)
def test_fractions_are_rounded_down(full: int, fraction: float, round_to: int, width: int) -> None:
    assert kept_directions(full, fraction, round_to) == width


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 0.99])
def test_an_impossible_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="param 'slice_fraction'"):
        fit(dense(), fraction)


@pytest.mark.parametrize("round_to", [0, -8, 33])
def test_an_impossible_rounding_is_refused(round_to: int) -> None:
    with pytest.raises(ValueError, match="param 'round_to'"):
        fit(dense(), None, 0.25, round_to=round_to)


def test_neither_budget_nor_fraction_is_not_applicable() -> None:
    reason = load_method("slicegpt").skip_reason(wrap(dense()), Request(None, 0, Path()))
    assert "how much to slice" in reason


def test_centring_moves_the_embeddings_and_the_function() -> None:
    plain, centred = (fit(dense(), 0.0, center_embeddings=on).model for on in (False, True))
    assert furthest(logits(plain), logits(dense())) < 1e-4
    assert furthest(logits(centred), logits(dense())) > 1e-2
    by_hand = dense()
    rows = decoder(by_hand).embed_tokens.weight
    with torch.no_grad():
        rows -= rows.mean(dim=1, keepdim=True)
    assert furthest(logits(centred), logits(by_hand)) < 1e-4


def test_a_tied_head_is_untied_and_paid_for() -> None:
    model = dense("tied")
    total = count(model)
    fitted = fit(model, 0.0)
    assert fitted.model.config.tie_word_embeddings is False
    # 64 x 32 for the head, two shortcuts of 32 x 32 per layer, two norms per layer and one less.
    assert count(fitted.model) == total + 64 * 32 + 4 * (2 * 32 * 32 - 2 * 32) - 32
    centred = fit(dense("tied"), 0.0, center_embeddings=True).model
    by_hand = fuse_norms(dense("tied"))
    rows = decoder(by_hand).embed_tokens.weight
    with torch.no_grad():
        rows -= rows.mean(dim=1, keepdim=True)
    assert furthest(logits(centred), logits(by_hand)) < 1e-4


def test_weights_lie_as_a_file_gives_them_back() -> None:
    # Another layout of the same numbers may move last bits of a product.
    assert all(parameter.is_contiguous() for parameter in fit(dense()).model.parameters())


def test_the_config_tells_stream_and_heads_apart() -> None:
    config = fit(dense("qwen2"), 0.25).model.config
    assert (config.hidden_size, config.head_dim) == (32, 8)
    assert (config.norm_dim, config.slice_dim) == (32, 24)


def test_the_authors_rate_divides_by_the_fused_model() -> None:
    model = dense("tied")
    total = count(model)
    sliced = fit(model, 0.25).model
    fused = total + 64 * 32 + 4 * (2 * 32 * 32 - 2 * 32) - 32
    tally = Tally(Ledger.of(sliced, total, 4))
    tally.add(None, 1)
    rates = tally.rates()
    assert rates.skip == pytest.approx(1 - count(sliced) / total)
    assert load_method("slicegpt").authors_skip(rates) == pytest.approx(1 - count(sliced) / fused)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_sixteen_bits_stay_near(kind: str) -> None:
    wide = fit(dense(kind), 0.25)
    narrow = fit(dense(kind, torch.bfloat16), 0.25)
    assert all(p.dtype is torch.bfloat16 for p in narrow.model.parameters())
    first, second = (np.array(fitted.decisions["eigenvalues"]) for fitted in (wide, narrow))
    np.testing.assert_allclose(second[:, 0], first[:, 0], rtol=0.02)
    assert logits(narrow.model).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_generation_with_cache_equals_without(kind: str) -> None:
    sliced: PreTrainedModel = fit(dense(kind), 0.25).model
    options = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None}
    cached = sliced.generate(IDS, use_cache=True, **options)
    assert torch.equal(cached, sliced.generate(IDS, use_cache=False, **options))
    step = sliced(IDS, use_cache=True).past_key_values
    assert step.layers[0].keys.shape[1:] == (2, 20, 8) or step.layers[0].is_sliding


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory,
    backbones: dict[str, Path],
    data_files: dict[str, Path],
) -> Path:
    """A compressed tied backbone, written by the command line."""
    params = {"slice_fraction": 0.25, "round_to": 8}
    arguments = ["--budget", 0.4, "--calibration", data_files["ids"]]
    arguments += ["--params", json.dumps(params)]
    out = tmp_path_factory.mktemp("slicegpt") / "out"
    return steps.compress("slicegpt", backbones["tied"], out, *arguments)


def test_the_command_line_pins_the_fraction(folder: Path) -> None:
    decisions = json.loads((folder / "decisions.json").read_text())
    assert decisions["widths"] == [24] * 8 + [32]
    assert [len(values) for values in decisions["eigenvalues"]] == [32] * 9
    config = load_model(folder).config
    assert (config.hidden_size, config.slice_dim, config.tie_word_embeddings) == (32, 24, False)


@pytest.mark.parametrize("name", ["attention_shortcut", "ffn_shortcut"])
def test_a_file_without_a_shortcut_is_refused(folder: Path, name: str, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"model.layers.2.{name}.weight"]
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"'model.layers.2.{name}.weight' is on one side only"):
        load_model(tmp_path)


def test_a_stock_class_refuses_the_sliced_weights(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="mismatch"):
        AutoModelForCausalLM.from_pretrained(folder)
