"""SliceGPT: what rotations leave as it was and what slicing removes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from methods.core.model.backbone import decoder, layers
from methods.core.surgery.sliced import UnweightedNorm, fuse_norms
from methods.slicegpt import Stream
from tests.near import TERMS, assert_near
from tests.toys.models import KINDS, make_scaled
from tests.toys.static import fit_slicegpt, furthest, logits, slicing_texts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_fusing_the_norms_keeps_the_logits(kind: str, dtype: torch.dtype) -> None:
    model = make_scaled(kind, dtype, rms_norm_eps=1e-2)
    before = logits(model)
    assert_near(logits(fuse_norms(model)), before)
    assert not any("layernorm" in name for name, _ in model.named_parameters())


# Every cut turns the stream by a product more; in float64 the eigenvectors are rounded as well.
@pytest.mark.parametrize(
    ("dtype", "terms"), [(torch.float32, 2 * TERMS), (torch.float64, 4 * TERMS)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_sliced_is_the_fused_model(kind: str, dtype: torch.dtype, terms: int) -> None:
    sliced = logits(fit_slicegpt(make_scaled(kind, dtype), 0.0).model)
    assert_near(sliced, logits(fuse_norms(make_scaled(kind, dtype))), terms)
    assert_near(sliced, logits(make_scaled(kind, dtype)), terms)


def test_nothing_sliced_makes_orthogonal_shortcuts() -> None:
    sliced = fit_slicegpt(make_scaled(dtype=torch.float64), 0.0).model
    for layer in layers(sliced):
        for shortcut in (layer.attention_shortcut.weight, layer.ffn_shortcut.weight):
            one = torch.eye(32, dtype=torch.float64)
            torch.testing.assert_close(shortcut @ shortcut.T, one, rtol=0, atol=1e-12)
            assert furthest(shortcut, one) > 0.1


def test_biases_of_writing_matrices_turn_with_them() -> None:
    model = make_scaled(dtype=torch.float64, attention_bias=True, mlp_bias=True)
    before = logits(model)
    assert_near(logits(fit_slicegpt(model, 0.0).model), before)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_orientations_give_the_same_logits(kind: str, fraction: float) -> None:
    pca = fit_slicegpt(make_scaled(kind, torch.float64), fraction).model
    random = fit_slicegpt(make_scaled(kind, torch.float64), fraction, orientation="random").model
    assert furthest(logits(pca), logits(random)) < 1e-10
    before, after = (decoder(model).embed_tokens.weight for model in (pca, random))
    assert furthest(before, after) > 0.1


def test_the_random_orientation_follows_the_seed() -> None:
    def embeddings(seed: int) -> Tensor:
        model = fit_slicegpt(make_scaled(), orientation="random", seed=seed).model
        return decoder(model).embed_tokens.weight

    assert torch.equal(embeddings(1), embeddings(1))
    assert not torch.equal(embeddings(1), embeddings(2))


def test_every_cut_draws_its_own_rotation() -> None:
    """A layer that adds nothing leaves the stream, and so its PCA, alone: only the draw differs."""
    model = make_scaled(dtype=torch.float64)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        nn.init.zeros_(layers(model)[0].get_submodule(name).weight)
    first = layers(fit_slicegpt(model, 0.25, orientation="random").model)[0]
    for shortcut in (first.attention_shortcut.weight, first.ffn_shortcut.weight):
        assert furthest(shortcut.abs(), torch.eye(24)) > 0.1


def confined(kind: str) -> nn.Module:
    """A toy whose embedding, attention and FFN write to 20 directions only, drawn at random."""
    model = make_scaled(kind, torch.float64)
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
    fitted = fit_slicegpt(confined(kind), 12 / 32, do_slice_head=head)
    cuts = 2 * len(layers(fitted.model))
    assert fitted.decisions["widths"] == [20] * cuts + [20 if head else 32]
    assert furthest(logits(fitted.model), expected) < 1e-10
    assert furthest(logits(fit_slicegpt(confined(kind), 13 / 32).model), expected) > 0.1


def test_eigenvalues_fall_and_sum_to_the_damped_squares() -> None:
    model = make_scaled(dtype=torch.float64)
    data = slicing_texts()
    rows = decoder(model).embed_tokens.weight.detach()
    squares = sum(float(rows[ids].square().sum()) for ids in data.documents)
    eigenvalues = np.array(fit_slicegpt(model, data=data).decisions["eigenvalues"])
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


def test_calibration_begins_with_what_enters_the_first_layer() -> None:
    model, data = make_scaled("granite", embedding_multiplier=12.0), slicing_texts()
    for batch, states in zip(data.calibration(), Stream.embed(model, data).states, strict=True):
        entering = model(batch.ids, output_hidden_states=True).hidden_states[0]
        assert torch.equal(states, entering)


def test_pads_and_batches_change_nothing() -> None:
    fits = [
        fit_slicegpt(make_scaled(dtype=torch.float64), data=data).decisions["eigenvalues"]
        for data in (slicing_texts(), slicing_texts(pad=7), slicing_texts(batch_size=1))
    ]
    for other in fits[1:]:
        np.testing.assert_allclose(other, fits[0], rtol=1e-12)


def test_each_cut_sees_the_slicing_in_front_of_it() -> None:
    exact, sliced = (
        np.array(fit_slicegpt(make_scaled(), fraction).decisions["eigenvalues"])
        for fraction in (0.0, 0.5)
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


def test_centring_moves_the_embeddings_and_the_function() -> None:
    plain, centred = (
        fit_slicegpt(make_scaled(), 0.0, center_embeddings=on).model for on in (False, True)
    )
    assert furthest(logits(plain), logits(make_scaled())) < 1e-4
    assert furthest(logits(centred), logits(make_scaled())) > 1e-2
    by_hand = make_scaled()
    rows = decoder(by_hand).embed_tokens.weight
    with torch.no_grad():
        rows -= rows.mean(dim=1, keepdim=True)
    assert furthest(logits(centred), logits(by_hand)) < 1e-4


def test_weights_lie_as_a_file_gives_them_back() -> None:
    # Another layout of the same numbers may move last bits of a product.
    assert all(
        parameter.is_contiguous() for parameter in fit_slicegpt(make_scaled()).model.parameters()
    )


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_sixteen_bits_stay_near(kind: str) -> None:
    wide = fit_slicegpt(make_scaled(kind), 0.25)
    narrow = fit_slicegpt(make_scaled(kind, torch.bfloat16), 0.25)
    assert all(p.dtype is torch.bfloat16 for p in narrow.model.parameters())
    first, second = (np.array(fitted.decisions["eigenvalues"]) for fitted in (wide, narrow))
    np.testing.assert_allclose(second[:, 0], first[:, 0], rtol=0.02)
    assert logits(narrow.model).isfinite().all()
