"""What every row promises, whatever its method: parametrised over the discovered rows.

One row alone: ``pytest -n0 tests/contract -k my-row``.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from methods import load_method, load_model
from methods.base import Request
from methods.core.model.backbone import count, empty_backbone, layers, load_backbone
from methods.core.model.card import CARD, read_card
from methods.core.model.checkpoint import DECISIONS, TRAINED, load
from methods.core.model.folder import read_config
from methods.core.model.ledger import Tally
from methods.core.routing.calibration import skip_rates, weigh
from methods.core.routing.steering import unit_shares
from tests import steps
from tests.contract.fits import IDS, QUICK, ROWS, SEED, Runs, budget_of, digests, logits
from tests.toys.models import CONFIGS, make_backbone
from tests.toys.texts import VOCABULARY

# LaCo merges no full-attention layer with one of a window, and BlockPruner gives no attention
# the cache slot of another kind: this toy has both.
REFUSED = [("laco", "qwen2"), ("blockpruner", "qwen2")]
# Every row on one family; those that cost nothing to fit on every family.
CASES = [
    (row, kind)
    for row in ROWS
    for kind in CONFIGS
    if (kind == "llama" or not ROWS[row].trained) and (row, kind) not in REFUSED
]
DYNAMIC = [row for row in ROWS if ROWS[row].kind == "dynamic"]
CAUSAL = [case for case in CASES if ROWS[case[0]].causal]

FRESH = """
import sys, torch
from methods import load_model
threads, ids, *folders = sys.argv[1:]
torch.set_num_threads(int(threads))
ids = torch.load(ids)
with torch.no_grad():
    torch.save([load_model(f)(ids).logits for f in folders], "logits.pt")
"""


@pytest.fixture(scope="module")
def fresh_logits(runs: Runs, request: pytest.FixtureRequest) -> dict[tuple[str, str], torch.Tensor]:
    """Logits of every case that was selected, from one process that only loads."""
    torch.save(IDS, runs.home / "ids.pt")
    (runs.home / "fresh.py").write_text(FRESH)
    asking = [item for item in request.session.items if "fresh_logits" in item.fixturenames]
    cases = [(item.callspec.params["row"], item.callspec.params["kind"]) for item in asking]
    folders = [runs.fit(row, kind) for row, kind in cases]
    code = f"import os; os.chdir({str(runs.home)!r}); exec(open('fresh.py').read())"
    done = steps.python("-c", code, torch.get_num_threads(), runs.home / "ids.pt", *folders)
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, torch.load(runs.home / "logits.pt"), strict=True))


def decided(model: Any, ids: torch.Tensor) -> torch.Tensor | None:
    with torch.no_grad():
        return getattr(model.model(ids, use_cache=False), "executed", None)


@pytest.mark.parametrize(("row", "kind"), CASES)
def test_the_result_is_a_causal_lm(row: str, kind: str, runs: Runs) -> None:
    model = load_model(runs.fit(row, kind))
    assert not model.training
    assert logits(model).shape == (3, 14, VOCABULARY)
    written = model.generate(IDS, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert written.shape == (3, 17)


@pytest.mark.parametrize(("row", "kind"), REFUSED)
def test_a_refusal_says_why_and_holds_no_model(row: str, kind: str, runs: Runs) -> None:
    folder = runs.fit(row, kind)
    reason = read_card(folder).not_applicable
    assert reason is not None
    assert [path.name for path in folder.iterdir()] == [CARD]
    with pytest.raises(ValueError, match="holds no model") as refusal:
        load_model(folder)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("row", ROWS)
def test_the_same_seed_decides_the_same(row: str, runs: Runs) -> None:
    first, second = runs.fit(row), runs.fit_again(row)
    for name in (DECISIONS, TRAINED, "model.safetensors"):
        pair = [folder / name for folder in (first, second)]
        assert pair[0].is_file() == pair[1].is_file()
        if pair[0].is_file():
            assert pair[0].read_bytes() == pair[1].read_bytes()
    cards = [read_card(folder) for folder in (first, second)]
    assert cards[0].structure == cards[1].structure
    assert cards[0].weights_hash == cards[1].weights_hash


@pytest.mark.parametrize(("row", "kind"), CASES)
def test_the_realised_skip_meets_the_budget(row: str, kind: str, runs: Runs) -> None:
    loaded = load(runs.fit(row, kind))
    tally = Tally(loaded.ledger)
    for start in range(20):
        ids = torch.randint(0, 60, (4, 32), generator=torch.Generator().manual_seed(start))
        executed = decided(loaded.model, ids)
        tally.add(None if executed is None else executed.transpose(0, 1).flatten(1), ids.numel())
    rates = tally.rates()
    dense = load_backbone(runs.backbones[kind])
    budget = budget_of(row)
    if budget is None:
        assert ROWS[row].kind != "reference" or rates.skip == pytest.approx(0, abs=1e-9)
        return
    sizes = loaded.ledger.sizes.tolist() or [count(layers(dense.model)[0])]
    # A budget lies between two numbers of units.
    assert abs(rates.skip - budget) <= max(0.05, max(sizes) / dense.parameters / 2)
    assert rates.skip > 0
    assert rates.skip_net <= rates.skip
    trace = json.loads((runs.fit(row, kind) / DECISIONS).read_text()).get("calibration")
    if trace:
        best = min((step["skip"] for step in trace), key=lambda skip: abs(skip - budget))
        probe = weigh(runs.texts(row, dense.tokenizer, kind).probe(), "pooled")
        shares = unit_shares(loaded.ledger.units, dense.parameters)
        (found,) = (skip_rates(loaded.model, probe) @ shares).tolist()
        assert (best, found) == (pytest.approx(budget, abs=0.01), pytest.approx(best))
    elif ROWS[row].kind == "dynamic":
        assert rates.skip == pytest.approx(budget, abs=0.02)


@pytest.mark.parametrize(("row", "kind"), CASES)
def test_a_fresh_process_gives_equal_logits(
    row: str, kind: str, runs: Runs, fresh_logits: dict[tuple[str, str], torch.Tensor]
) -> None:
    folder = runs.fit(row, kind)
    backbone = load_backbone(runs.backbones[kind])
    card = read_card(folder)
    assert torch.equal(fresh_logits[row, kind], logits(load_model(folder)))
    assert card.backbone.hash == backbone.hash
    if ROWS[row].kind == "reference" and not ROWS[row].trained:
        assert torch.equal(fresh_logits[row, kind], logits(backbone.model))
    if ROWS[row].budgeted:
        assert not torch.equal(fresh_logits[row, kind], logits(backbone.model))


@pytest.mark.parametrize("row", ROWS)
def test_a_loaded_model_is_the_fitted_one(row: str, runs: Runs, tmp_path: Path) -> None:
    """What is saved loses nothing: the model in memory and the one from disk agree."""
    folder = runs.fit(row)
    backbone = load_backbone(runs.backbones["llama"])
    data = runs.texts(row, backbone.tokenizer)
    method = load_method(row, QUICK.get(row, {}))
    budget = budget_of(row)
    fitted = method.fit(backbone, data, Request(budget, SEED, tmp_path))
    assert torch.equal(logits(fitted.model.eval()), logits(load_model(folder)))


@pytest.mark.parametrize("row", ROWS)
def test_a_moved_folder_loads(row: str, runs: Runs, tmp_path: Path) -> None:
    expected = logits(load_model(runs.fit(row)))
    alone = shutil.copytree(runs.fit(row), tmp_path / "alone")
    # Whoever may read one file may read all.
    assert len({file.stat().st_mode for file in alone.iterdir()}) == 1
    assert torch.equal(logits(load_model(alone)), expected)
    assert torch.equal(logits(load_model(runs.fit_again(row))), expected)


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row].kind != "static"])
def test_another_or_a_missing_backbone_is_refused(row: str, runs: Runs, tmp_path: Path) -> None:
    folder = runs.fit(row)
    other = make_backbone(tmp_path / "other", seed=5)
    with pytest.raises(ValueError, match="is another backbone"):
        load_model(folder, other)
    with pytest.raises(ValueError, match="name its folder"):
        load_model(folder, tmp_path / "gone")
    same = shutil.copytree(runs.backbones["llama"], tmp_path / "same")
    assert torch.equal(logits(load_model(folder, same)), logits(load_model(folder)))


@pytest.mark.parametrize(("row", "kind"), CASES)
def test_build_works_without_numbers(row: str, kind: str, runs: Runs) -> None:
    card = read_card(runs.fit(row, kind))
    method = load_method(row, card.params)
    built = method.build(empty_backbone(read_config(runs.backbones[kind])), card.structure or {})
    assert all(parameter.is_meta for parameter in built.parameters())
    loaded = load_model(runs.fit(row, kind))
    shapes = {name: p.shape for name, p in built.named_parameters()}
    assert shapes == {name: p.shape for name, p in loaded.named_parameters()}


@pytest.mark.parametrize("row", ROWS)
def test_a_cost_counts_the_parameters_that_a_fit_trains(row: str, runs: Runs) -> None:
    budget = budget_of(row)
    method, backbone = load_method(row, QUICK.get(row, {})), runs.backbones["llama"]
    cost = method.cost(empty_backbone(read_config(backbone)), Request(budget, SEED, Path()))
    assert cost.trained == (read_card(runs.fit(row)).fit or {})["trained_parameters"]


@pytest.mark.parametrize(("row", "kind"), CAUSAL)
def test_cached_decoding_equals_the_full_forward(row: str, kind: str, runs: Runs) -> None:
    model = load_model(runs.fit(row, kind))
    with torch.no_grad():
        step = model(IDS[:, :6], use_cache=True)
        parts = [step.logits]
        for t in range(6, IDS.shape[1]):
            step = model(IDS[:, t : t + 1], past_key_values=step.past_key_values, use_cache=True)
            parts.append(step.logits)
    torch.testing.assert_close(torch.cat(parts, 1), logits(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("row", "kind"), CAUSAL)
def test_padding_changes_nothing(row: str, kind: str, side: str, runs: Runs) -> None:
    model = load_model(runs.fit(row, kind))
    pads, ones = torch.zeros(3, 4, dtype=torch.int64), torch.ones_like(IDS)
    pair = ([pads, IDS], [pads, ones]) if side == "left" else ([IDS, pads], [ones, pads])
    ids, mask = (torch.cat(parts, dim=1) for parts in pair)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = logits(model, ids, attention_mask=mask, position_ids=positions)[mask.bool()]
    torch.testing.assert_close(padded, logits(model).flatten(0, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("row", ROWS)
def test_a_batch_does_not_mix_its_rows(row: str, runs: Runs) -> None:
    if not ROWS[row].causal:
        pytest.skip("tokens of a batch compete by design")
    model = load_model(runs.fit(row))
    alone = torch.cat([logits(model, IDS[n : n + 1]) for n in range(3)])
    torch.testing.assert_close(alone, logits(model), rtol=1e-4, atol=1e-4)


def by_steps(model: Any, ids: torch.Tensor, forced: torch.Tensor | None) -> torch.Tensor:
    """Logits (B, T, V) of one call per token; ``forced`` (B, U, T) are its decisions."""
    cache, parts = None, []
    for t in range(ids.shape[1]):
        at = {} if forced is None else {"forced": forced[..., t : t + 1]}
        with torch.no_grad():
            step = model(ids[:, t : t + 1], past_key_values=cache, use_cache=True, **at)
        cache = step.past_key_values
        parts.append(step.logits)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("row", ROWS)
def test_in_16_bits_a_row_decides_and_says_what_it_does_in_32(
    row: str, runs: Runs, tmp_path: Path
) -> None:
    """Loaded, converted, saved, with a cache and under autocast."""
    folder = runs.fit(row)
    exact, model = load_model(folder), load_model(folder, dtype=torch.bfloat16)
    before, after = decided(exact, IDS), decided(model, IDS)
    forced = None
    if before is not None:
        assert float((after == before).double().mean()) > 0.95
        assert torch.equal(after, decided(load_model(folder).bfloat16(), IDS))
        # A decision that falls otherwise moves logits more than all rounding.
        forced = before[:1]
    extra, expected = {"forced": forced} if forced is not None else {}, None

    def near(found: torch.Tensor) -> bool:
        assert found.dtype is torch.bfloat16
        return float((found.float() - expected).norm()) < 0.1 * float(expected.norm())

    expected = logits(exact, IDS[:1], **extra)
    assert near(logits(model, IDS[:1], **extra))
    assert near(logits(load_model(folder).bfloat16(), IDS[:1], **extra))
    assert near(by_steps(model, IDS[:1], forced))
    with torch.autocast("cpu", torch.bfloat16):
        assert near(logits(exact, IDS[:1], **extra))
        assert near(by_steps(exact, IDS[:1], forced))
    assert model.generate(IDS, max_new_tokens=3, eos_token_id=None).shape == (3, 17)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    dtypes = [{n: p.dtype for n, p in each.named_parameters()} for each in (model, again)]
    assert dtypes[0] == dtypes[1]
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("row", ROWS)
def test_decisions_are_json_without_nan(row: str, runs: Runs) -> None:
    text = (runs.fit(row) / DECISIONS).read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    decisions = json.loads(text, parse_constant=refuse)
    assert isinstance(decisions, dict)
    if ROWS[row].budgeted:
        assert decisions


@pytest.mark.parametrize("row", ROWS)
def test_wrong_params_are_refused_by_name(row: str) -> None:
    with pytest.raises(ValueError, match="unknown param 'nonsense'"):
        load_method(row, {"nonsense": 1})
    method = load_method(row)
    for field in dataclasses.fields(method.params):
        with pytest.raises(ValueError, match=f"param '{field.name}'"):
            load_method(row, {field.name: {"not": ["a", "value"]}})


@pytest.mark.parametrize("row", DYNAMIC)
def test_dynamic_rows_leave_the_backbone_its_bits(row: str, runs: Runs) -> None:
    dense = load_backbone(runs.backbones["llama"])
    assert digests(dense.model) <= digests(load_model(runs.fit(row)))
    assert not (runs.fit(row) / "model.safetensors").exists()


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row].stochastic])
def test_another_seed_decides_otherwise(row: str, runs: Runs, tmp_path: Path) -> None:
    arguments = runs.arguments(row, seed=SEED + 1)
    other = steps.fit(row, runs.backbones["llama"], tmp_path / "other", *arguments)
    assert not torch.equal(logits(load_model(other)), logits(load_model(runs.fit(row))))
    assert read_card(other).weights_hash != read_card(runs.fit(row)).weights_hash


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row].kind != "static"])
def test_stored_weights_that_do_not_fit_are_refused(row: str, runs: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(runs.fit(row), tmp_path / "copy")
    save_file({"odd": torch.zeros(1)}, folder / TRAINED)
    with pytest.raises(ValueError, match="does not fit the model"):
        load_model(folder)


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row].kind == "static"])
def test_a_static_row_records_no_threshold_of_gates(row: str, runs: Runs) -> None:
    assert not {"threshold", "trained_skip"} & set(read_card(runs.fit(row)).fit or {})


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row].kind == "static"])
def test_a_stored_model_missing_a_tensor_is_refused(row: str, runs: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(runs.fit(row), tmp_path / "copy")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors[next(name for name in tensors if name.endswith("up_proj.weight"))]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="do not fit"):
        load_model(folder)
