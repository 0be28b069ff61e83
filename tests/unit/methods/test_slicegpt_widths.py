"""SliceGPT: how many directions are kept, what the result weighs, and how it is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from methods import load_method, load_model
from methods.base import Request
from methods.core.model.backbone import count, decoder, empty_backbone
from methods.core.model.ledger import Ledger, Tally
from methods.core.surgery.sliced import fuse_norms
from methods.slicegpt import width_for
from tests import steps
from tests.toys.models import CONFIGS, KINDS, make_model, make_scaled, wrap
from tests.toys.static import fit_slicegpt, furthest, logits


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_follow_the_formula(kind: str, head: bool) -> None:
    shape = CONFIGS[kind]
    layer_count, full, width, ffn, keys = shape["num_hidden_layers"], 32, 24, 64, 16
    ends = [width] * (layer_count - 1) + [width if head else full]
    expected = 64 * width + 64 * ends[-1]
    for end in ends:
        expected += 2 * full * width + 2 * keys * width + 2 * ffn * width + ffn * end
        expected += width * width + width * end
        expected += {"qwen2": full + 2 * keys, "qwen3": 2 * 8}.get(kind, 0)
    fitted = fit_slicegpt(make_scaled(kind), 0.25, do_slice_head=head)
    assert count(fitted.model) == expected
    method = load_method("slicegpt")
    built = method.build(empty_backbone(make_model(kind).config), fitted.structure)
    assert count(built) == expected


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [0.15, 0.40])
def test_a_budget_takes_the_nearest_width(kind: str, budget: float, head: bool) -> None:
    model = make_scaled(kind)
    total = count(model)
    fitted = fit_slicegpt(model, None, budget, do_slice_head=head)
    trace = {row["setting"]: row["skip"] for row in fitted.decisions["budget_search"]}
    assert sorted(trace) == list(range(1, 33))
    width = fitted.structure["width"]
    assert trace[width] == 1 - count(fitted.model) / total
    assert abs(trace[width] - budget) == min(abs(skip - budget) for skip in trace.values())
    assert fitted.decisions["slice_fraction"] == 1 - width / 32
    # Shortcuts are charged: with every direction kept the model is larger than the dense one.
    assert trace[32] < 0


def test_a_budget_beyond_the_smallest_width_is_not_applicable() -> None:
    dense, method = wrap(make_scaled("llama")), load_method("slicegpt", {"round_to": 16})
    least = 1 - count(fit_slicegpt(make_scaled("llama"), 0.5, round_to=16).model) / dense.parameters
    assert method.skip_reason(dense, Request(least, 0, Path())) is None
    reason = method.skip_reason(dense, Request(0.97, 0, Path()))
    assert reason is not None and f"directions in reach hold {least:.1%}" in reason


def test_biases_of_writing_matrices_are_counted() -> None:
    model = make_scaled(attention_bias=True, mlp_bias=True)
    total = count(model)
    fitted = fit_slicegpt(model, None, 0.25, do_slice_head=True)
    trace = {row["setting"]: row["skip"] for row in fitted.decisions["budget_search"]}
    assert trace[fitted.structure["width"]] == 1 - count(fitted.model) / total


def test_widths_of_a_search_are_rounded() -> None:
    trace = fit_slicegpt(make_scaled(), None, 0.25, round_to=5).decisions["budget_search"]
    assert [row["setting"] for row in trace] == [30, 25, 20, 15, 10, 5]


def test_a_pinned_fraction_wins_over_the_budget() -> None:
    fitted = fit_slicegpt(make_scaled(), 0.5, budget=0.1)
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
    assert width_for(full, fraction, round_to) == width


@pytest.mark.parametrize(
    "params", [{"slice_fraction": -0.1}, {"slice_fraction": 1.0}, {"round_to": 0}]
)
def test_params_that_fit_no_backbone_are_refused_at_once(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"param '{next(iter(params))}'"):
        load_method("slicegpt", params)


def test_params_that_leave_no_direction_are_refused() -> None:
    with pytest.raises(ValueError, match="param 'slice_fraction' is 0.99"):
        fit_slicegpt(make_scaled(), 0.99)
    with pytest.raises(ValueError, match="param 'round_to' is 33"):
        fit_slicegpt(make_scaled(), None, 0.25, round_to=33)


def test_neither_budget_nor_fraction_is_not_applicable() -> None:
    reason = load_method("slicegpt").skip_reason(wrap(make_scaled()), Request(None, 0, Path()))
    assert "how much to slice" in reason


def test_a_tied_head_is_untied_and_paid_for() -> None:
    model = make_scaled("tied")
    total = count(model)
    fitted = fit_slicegpt(model, 0.0)
    assert fitted.model.config.tie_word_embeddings is False
    # 64 x 32 for the head, two shortcuts of 32 x 32 per layer, two norms per layer and one less.
    assert count(fitted.model) == total + 64 * 32 + 4 * (2 * 32 * 32 - 2 * 32) - 32
    centred = fit_slicegpt(make_scaled("tied"), 0.0, center_embeddings=True).model
    by_hand = fuse_norms(make_scaled("tied"))
    rows = decoder(by_hand).embed_tokens.weight
    with torch.no_grad():
        rows -= rows.mean(dim=1, keepdim=True)
    assert furthest(logits(centred), logits(by_hand)) < 1e-4


def test_the_config_tells_stream_and_heads_apart() -> None:
    config = fit_slicegpt(make_scaled("qwen2"), 0.25).model.config
    assert (config.hidden_size, config.head_dim) == (32, 8)
    assert (config.norm_dim, config.slice_dim) == (32, 24)


def test_the_authors_rate_divides_by_the_fused_model() -> None:
    model = make_scaled("tied")
    total = count(model)
    sliced = fit_slicegpt(model, 0.25).model
    fused = total + 64 * 32 + 4 * (2 * 32 * 32 - 2 * 32) - 32
    tally = Tally(Ledger.of(sliced, total, 4))
    tally.add(None, 1)
    rates = tally.rates()
    assert rates.skip == pytest.approx(1 - count(sliced) / total)
    assert load_method("slicegpt").authors_skip(rates) == pytest.approx(1 - count(sliced) / fused)


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
    return steps.fit("slicegpt", backbones["tied"], out, *arguments)


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
    with pytest.raises(ValueError, match=f"'model.layers.2.{name}.weight' is only in the file or"):
        load_model(tmp_path)
