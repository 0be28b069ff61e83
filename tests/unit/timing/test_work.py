"""The work behind a bound: counted again from every matrix that multiplies."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from methods import load_method
from methods.core.model.backbone import count
from methods.core.routing.routed import router_of
from methods.core.surgery.layers import remove_sublayers
from methods.core.training.lora import fold_lora
from tests.toys.models import keep_layers, make_model, wrap
from tests.toys.routed import build_variant
from tests.unit.core.routing.test_decoding import model_of
from workflows.timing.bounds import prefill_flops
from workflows.timing.inference import Texts, time_decode, time_prefill, time_static
from workflows.timing.modes import Bench, forced_decisions, shape_of
from workflows.timing.pair import Models, build_pair
from workflows.timing.work import Work

BENCH = Bench("cpu", rounds=2, warmup=1)
# Norms, zeros in what the router puts together, and its first gate, which reads no memory.
SMALL = 0.02


class Seen(TorchFunctionMode):
    """Every matrix that multiplies rows: its address, the rows, its numbers and its bias's."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, int, int]] = []
        self.alive: list[Tensor] = []

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if function is nn.functional.linear and output.numel():
            matrix, bias = [*args[1:], *(kwargs or {}).values(), None][:2]
            numbers = matrix.numel() + (0 if bias is None else bias.numel())
            self.calls.append((matrix.data_ptr(), output.numel() // len(matrix), numbers))
            # So that no other takes its address.
            self.alive.append(matrix)
        return output


def hero(**params: Any) -> Any:
    dense = make_model("llama", hidden_size=64, intermediate_size=176)
    structure = {"layers": [3, 4, 5], "seed": 0, "threshold": 0.5}
    model: Any = load_method("hero", params).build(wrap(dense), structure)
    return model.eval()


def test_a_prompt_costs_what_its_matrices_multiply() -> None:
    model = hero()
    router = router_of(model)
    assert router is not None
    forced = forced_decisions(router, 2, 16, 0.4, "cpu")
    ids = Texts.random(60).rows(2, 16)
    with Seen() as seen, torch.no_grad():
        model(ids, use_cache=False, logits_to_keep=1, forced=forced)
    linear = sum(2 * rows * numbers for _, rows, numbers in seen.calls)
    work = Work.of(model)
    scores = 2 * sum(work.widths) * 16 * 32
    found = work.prompt_flops(forced, 2, 16) - scores
    assert found == pytest.approx(linear, rel=SMALL)
    # Another rate is another number, by what the decisions say.
    closed = torch.zeros_like(forced)
    assert work.prompt_flops(closed, 2, 16) < found + scores
    sizes, rate = shape_of(model), 1 - float(forced.double().mean())
    assert prefill_flops(sizes, 2, 16, rate) == pytest.approx(found + scores, rel=SMALL)


def test_a_gate_that_decides_for_attention_and_ffn_counts_once() -> None:
    assert Work.of(hero(unit="block")).again == Work.of(hero()).again > 0


@pytest.mark.parametrize("row", ["diffskip", "flexidepth", "skipgpt-rt", "hero+lora"])
def test_the_sizes_of_a_router_are_those_of_one_routed_layer(row: str) -> None:
    model = build_variant(row)
    router, sizes = router_of(model), shape_of(model)
    assert router is not None
    adapters = count(*router.alternatives())
    assert sizes.routed == len({unit.layer for unit in router.units})
    assert sizes.routed * sizes.adapter == adapters
    runs = sizes.routed if row != "hero+lora" else 1
    assert runs * sizes.router == count(router) - adapters


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_step_reads_what_one_sequence_needs(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Packed weights are no modules that a hook could see.
    monkeypatch.setattr("methods.hero.router.use_host", lambda hidden, weight: False)
    model = hero()
    router = router_of(model)
    assert router is not None
    forced = forced_decisions(router, batch, 20, 0.6, "cpu")
    ids = Texts.random(60).rows(batch, 20)
    with torch.no_grad():
        cache = model(ids[:, :8], use_cache=True, forced=forced[..., :8]).past_key_values
        read = 0
        for turn in range(8, 20):
            now = slice(turn, turn + 1)
            with Seen() as seen:
                model(ids[:, now], past_key_values=cache, use_cache=True, forced=forced[..., now])
            read += sum({matrix: numbers for matrix, _, numbers in seen.calls}.values())
    steps = forced[..., 8:].permute(2, 0, 1)
    assert Work.of(model).step_weights(steps) == pytest.approx(read / 12, rel=SMALL)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_at_a_larger_shape_little_is_left_out(rate: float) -> None:
    """Multiplications of a prompt and weights of a step, within half a percent."""
    model = large()
    router = router_of(model)
    assert router is not None
    work, ids = Work.of(model), Texts.random(8192).rows(1, 33)
    forced = forced_decisions(router, 1, 33, rate, "cpu")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        cache = model(ids[:, :32], logits_to_keep=1, forced=forced[..., :32]).past_key_values
    # The counter knows no attention of the CPU.
    scores = 2 * 32 * 32 * sum(work.widths)
    found = work.prompt_flops(forced[..., :32], 1, 32) - scores
    assert counter.get_total_flops() == pytest.approx(found, rel=0.005)
    with Seen() as seen, torch.no_grad():
        model(ids[:, 32:], past_key_values=cache, forced=forced[..., 32:])
    read = sum({matrix: numbers for matrix, _, numbers in seen.calls}.values())
    steps = forced[..., 32:].permute(2, 0, 1)
    assert work.step_weights(steps) == pytest.approx(read, rel=0.005)


@cache
def large() -> Any:
    return build_pair("hero", "cpu_512", 0.25, "float32", "cpu")[1]


def test_skipped_attention_reads_no_cache() -> None:
    model = build_variant("skipgpt-rt")
    work = Work.of(model)
    with torch.no_grad():
        cache = model(Texts.random(60).rows(1, 9), use_cache=True).past_key_values
    closed = torch.zeros(4, 1, len(work.ledger.units), dtype=torch.bool)
    everything = work.step_bytes(~closed, cache, 1) - work.step_weights(~closed)
    assert everything == sum(2 * layer.keys.numel() for layer in cache.layers)
    assert work.step_bytes(closed, cache, 1) == work.step_weights(closed)
    assert work.step_bytes(~closed, cache, 4) == 4 * work.step_bytes(~closed, cache, 1)


def test_a_lost_attention_has_neither_queries_nor_a_cache() -> None:
    held = []
    for lost in ([], [0, 2]):
        model = remove_sublayers(make_model(), lost, [])
        work = Work.of(model)
        with torch.no_grad():
            cache = model(Texts.random(60).rows(1, 9), use_cache=True).past_key_values
        assert work.widths == tuple(0 if n in lost else 32 for n in range(6))
        held.append(work.step_bytes(None, cache, 1) - work.step_weights(None))
    assert held[1] == held[0] * 4 / 6 > 0


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_a_trace_foretells_batches(batch: int) -> None:
    model = hero()
    router = router_of(model)
    assert router is not None
    work = Work.of(model)
    trace = forced_decisions(router, 1, 4000, 0.7, "cpu")[0].T
    others = forced_decisions(router, batch, 3000, 0.7, "cpu").permute(2, 0, 1)
    foretold = work.predicted_weights(trace, batch)
    assert foretold == pytest.approx(work.step_weights(others), rel=0.02)
    assert foretold > work.predicted_weights(trace, 1)


@pytest.mark.parametrize("row", ["hero", None])
def test_a_line_says_what_was_measured(row: str | None) -> None:
    dense = make_model("llama", hidden_size=64, intermediate_size=176)
    model = keep_layers(dense, [0, 1, 4]) if row is None else hero()
    texts = Texts.random(60)
    lines = [
        timed(Models.of(dense, model), (2, 8), texts, None, BENCH)
        for timed in (time_prefill, time_decode, time_static)
    ]
    for line in lines:
        assert len(line["raw"]) == 2
        assert (line["bypass"] is None) == (row is None)
        assert (line["bound"] < 1) == (row is None)
        assert (line["timed_bound"] is None) == (row is None)
    assert ("predicted" in lines[1]) == (row is not None)
    assert lines[2]["bypass"] == lines[1]["bypass"]
    assert lines[2]["masked"] == (row is not None)
    if row is None:
        layer = sum(p.numel() for p in dense.model.layers[0].parameters())
        whole = Work.of(dense)
        assert Work.of(model).always == whole.always - 3 * layer
        assert lines[1]["bound"] == pytest.approx(
            (whole.always - 3 * layer + whole.head + 3 * 2 * 2 * 11 * 16 * 2)
            / (whole.always + whole.head + 6 * 2 * 2 * 11 * 16 * 2), rel=0.02,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("row", "kind", "masked"),
    [
        ("hero", "llama", False),
        ("hero", "qwen2", False),
        ("hero", "granite", True),
        ("hero", "olmo2", True),
        ("skipgpt-rt", "llama", False),
        ("skipgpt-rt", "qwen2", True),
        ("d-llm", "llama", False),
        ("d-llm", "qwen2", True),
    ],
)
def test_a_line_is_masked_if_a_unit_has_no_kernels(
    row: str, kind: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Granite multiplies the FFN's update, OLMo 2 norms it, and this Qwen2 has windows."""
    monkeypatch.setattr("workflows.timing.inference.available", lambda tensor: True)
    dense, start = (
        make_model(kind, **({"sliding_window": 64} if kind == "qwen2" else {})) for _ in range(2)
    )
    structure = {"layers": [2, 3], "seed": 0, "threshold": 0.5}
    model: Any = load_method(row).build(wrap(start), structure)
    fold_lora(model)
    line = time_static(Models.of(dense, model.eval()), (2, 8), Texts.random(60), None, BENCH)
    assert line["masked"] == masked
    assert line["eager"] == (row != "hero" and not masked)


def test_forced_decisions_are_those_that_are_timed() -> None:
    dense, model = make_model("llama", hidden_size=64, intermediate_size=176), hero()
    for timed in (time_prefill, time_decode, time_static):
        closed, opened = (
            timed(Models.of(dense, model), (2, 8), Texts.random(60), rate, BENCH)
            for rate in (1.0, 0.0)
        )
        assert (closed["bypass"], opened["bypass"]) == (1.0, 0.0)
        assert opened["timed_bound"] == 1
        assert closed["bound"] < 0.9 * opened["bound"]


@pytest.mark.parametrize(
    ("row", "lost"),
    [
        ("hero", {"mlp"}),
        ("skipgpt-rt", {"mlp", "self_attn"}),
        ("d-llm", {"mlp", "self_attn"}),
        ("mindskip", {"self_attn"}),
    ],
)
def test_the_bare_model_is_dense_without_the_sublayers_of_units(row: str, lost: set[str]) -> None:
    dense, model = make_model(), model_of(row)
    router, bare = router_of(model), Models.of(dense, model).bare
    assert router is not None and bare is not None
    routed = {unit.layer for unit in router.units}
    for number, left in enumerate(bare.model.layers):
        present = {name for name in ("mlp", "self_attn") if count(getattr(left, name))}
        assert present == {"mlp", "self_attn"} - (lost if number in routed else set())
    held = {weight.data_ptr() for weight in dense.parameters()}
    assert {weight.data_ptr() for weight in bare.parameters()} < held


def test_a_timed_bound_is_what_is_left_of_the_time_of_the_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FFNs and norms take three quarters of dense; all FFNs are left out for the adapters."""
    dense, model = make_model("llama", hidden_size=64, intermediate_size=176), hero()
    seconds = iter([[[0.5, 0.5], [1.0, 2.0]], [[0.25, 0.5], [1.0, 2.0]]] * 3)
    monkeypatch.setattr(Bench, "time", lambda *_: next(seconds))
    router = router_of(model)
    assert router is not None
    ffns = sum(unit.parameters for unit in router.units)
    adapters = sum(count(router.alternative(n)) for n in range(len(router.units)))
    left_out = (ffns - adapters) / (ffns + 64 * len(router.units))
    for timed in (time_prefill, time_decode, time_static):
        texts = Texts.random(60)
        line = timed(Models.of(dense, model), (2, 8), texts, 1.0, BENCH)
        assert line["timed_bound"] == pytest.approx(1 - 0.75 * left_out)
        assert line["over_dense"] == 0.375
        assert line["realised_share"] == pytest.approx(0.625 / (0.75 * left_out))


def test_keys_and_values_count_where_one_sequence_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sequences one skips all units: every weight is read, half of the keys and values."""
    dense, model = make_model(), model_of("skipgpt-rt")
    models = Models.of(dense, model)
    router = router_of(model)
    assert router is not None and models.bare is not None
    runs = torch.tensor([True, False])[:, None, None]
    monkeypatch.setattr(
        "workflows.timing.inference.forced_decisions",
        lambda router, rows, length, *_: runs.expand(rows, len(router.units), length),
    )
    seconds = iter([[[0.5, 0.5], [1.0, 1.0]], [[0.25, 0.25], [1.0, 1.0]]])
    monkeypatch.setattr(Bench, "time", lambda *_: next(seconds))
    line = time_decode(models, (2, 8), Texts.random(60), 0.5, BENCH)
    with torch.no_grad():
        cache = model(Texts.random(60).rows(2, 8), use_cache=True).past_key_values
    layers = {unit.layer for unit in router.units}
    entries = sum(2 * cache.layers[layer].keys.numel() for layer in layers)
    lacks = count(dense) - count(models.bare)
    assert line["timed_bound"] == pytest.approx(1 - 0.75 * entries / 2 / (lacks + entries))


def test_texts_go_on_and_begin_anew() -> None:
    texts = Texts(torch.arange(10))
    assert texts.rows(2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert texts.rows(2, 3, turn=1).tolist() == [[6, 7, 8], [9, 0, 1]]
