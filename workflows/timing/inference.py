"""Time of prefill and decoding of a row over the dense model, on texts; one line per case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from methods.core.model.backbone import attention, count, decoder, ffn, is_finished, layers
from methods.core.routing.decoding import StaticDecoder
from methods.core.routing.routed import router_of
from methods.core.routing.router import Router
from methods.core.seeds import generator
from methods.kernels.choose import MOST_ROWS, available
from methods.kernels.operands import attention_weights, branches
from workflows.timing.cases import Case, case_name
from workflows.timing.clock import time_ratio
from workflows.timing.meters import joules, peak_memory
from workflows.timing.modes import Bench, Timing, forced_decisions
from workflows.timing.pair import Models
from workflows.timing.work import Work, prompt_rates, step_rates

Arguments = dict[str, Any]
Seconds = list[list[float]]  # of each model, call by call
# Batch sizes for which the reads of a decoding step are predicted from a trace.
BATCHES = (1, 2, 4, 8, 16, 32)
RANDOM_TOKENS = 65536


@dataclass(frozen=True)
class Texts:
    """What models are timed on.

    Args:
        ids: One stream of tokens (N,), repeated without end.
    """

    ids: Tensor

    @classmethod
    def random(cls, vocabulary: int) -> Texts:
        """Random ids, for models with random weights."""
        return cls(torch.randint(vocabulary, (RANDOM_TOKENS,), generator=generator(0, "ids")))

    def rows(self, sequences: int, length: int, turn: int = 0) -> Tensor:
        """Ids (sequences, length), different in every turn."""
        count = sequences * length
        places = (torch.arange(count) + turn * count) % len(self.ids)
        return self.ids[places].view(sequences, length)


def time_prefill(
    models: Models,
    case: Case,
    texts: Texts,
    rate: float | None,
    bench: Bench,
) -> Timing:
    """Time a prompt pass with logits of its last token, with another prompt in every turn.

    Args:
        models: The backbone, a row made from it, and the backbone without the row's units.
        case: Sequences, tokens per sequence.
        texts: Source of the prompts.
        rate: Share of the units that a routed row is forced to skip; None: its own decisions.
        bench: Device and rounds.
    """
    sequences, length = case
    row = models.row
    prompts = [texts.rows(*case, turn).to(bench.device) for turn in range(bench.turns)]
    forced = [_forced_decisions(row, ids, rate) for ids in prompts]
    pairs = zip(prompts, forced, strict=True)
    executed = _join([_decisions(row, ids, extra) for ids, extra in pairs])
    plain: list[Arguments] = [{}] * len(prompts)

    def measure(*timed: PreTrainedModel) -> Seconds:
        passes = [_passes(model, prompts, forced if model is row else plain) for model in timed]
        return bench.time(*[partial(next, each) for each in passes])

    seconds = measure(row, models.dense)
    works = [Work.of(model) for model in (row, models.dense)]
    needs = [
        work.prompt_flops(decided, sequences, length)
        for work, decided in zip(works, (executed, None), strict=True)
    ]
    saved = 0.0 if executed is None else works[0].saved(*prompt_rates(executed))
    nearer = _timed_bound(models, measure, saved)
    times = time_ratio(*seconds, bound=needs[0] / needs[1], timed_bound=nearer)
    memory = peak_memory(
        partial(next, _passes(model, prompts[:1], extra[:1]))
        for model, extra in ((row, forced), (models.dense, plain))
    )
    line = {"mode": "prefill", "case": case_name(case), "bypass": _skip(executed)}
    return line | times | memory


def time_decode(
    models: Models,
    case: Case,
    texts: Texts,
    rate: float | None,
    bench: Bench,
) -> Timing:
    """Time decoding steps in eager mode: one token per sequence in every turn, after a context.

    Arguments as in :func:`time_prefill`; the tokens of a case are its context. ``predicted``:
    weights that a step reads over dense's at several batch sizes, from decisions about single
    tokens of context and steps, without keys and values.
    """

    def begin(
        model: PreTrainedModel, prompt: Tensor, before: Arguments,
        tokens: Sequence[Tensor], later: Sequence[Arguments],
    ) -> tuple[Cache, Iterator[None]]:  # fmt: skip
        cache = _cache(model, prompt, before)
        return cache, _steps(model, tokens, later, cache)

    return _time_steps("decode", models, case, texts, rate, bench, begin)


def time_static(
    models: Models,
    case: Case,
    texts: Texts,
    rate: float | None,
    bench: Bench,
) -> Timing:
    """Time decoding steps in a static cache, on a GPU each as one CUDA graph.

    Arguments as in :func:`time_decode`. ``masked``: some routed unit has no kernels, so it runs for
    every token and skips nothing. ``eager``: the router has no kernels, so each of its operations
    is a launch.
    """
    decoders = list[StaticDecoder]()

    def begin(
        model: PreTrainedModel, prompt: Tensor, before: Arguments,
        tokens: Sequence[Tensor], later: Sequence[Arguments],
    ) -> tuple[Cache, Iterator[None]]:  # fmt: skip
        # One place more: after the timed steps, ``joules`` repeats one further step.
        room = prompt.shape[1] + bench.turns + 1
        static = StaticDecoder(model, len(prompt), room, forced=rate is not None)
        static.prefill(prompt, **before)
        decoders.append(static)
        return static.cache, _static_steps(static, tokens, later)

    line = _time_steps("static", models, case, texts, rate, bench, begin)
    row, sequences = models.row, case[0]
    router = router_of(row)
    kernels = available(next(row.parameters())) and sequences <= MOST_ROWS
    line["masked"] = router is not None and not (kernels and _has_kernels(row, router))
    line["eager"] = router is not None and not line["masked"] and not router.by_kernels
    return line | joules([_replay(static) for static in decoders[:2]], sequences)


def _has_kernels(model: PreTrainedModel, router: Router) -> bool:
    """Whether kernels can compute every routed unit."""
    for index, unit in enumerate(router.units):
        layer = layers(model)[unit.layer]
        if unit.kind != "attention" and (
            not is_finished(layer) or branches(ffn(layer), router.alternative(index)) is None
        ):
            return False
        if unit.kind != "ffn" and attention_weights(attention(layer)) is None:
            return False
    return True


def _time_steps(
    mode: str,
    models: Models,
    case: Case,
    texts: Texts,
    rate: float | None,
    bench: Bench,
    begin: Callable[..., tuple[Cache, Iterator[None]]],
) -> Timing:
    """The line of decoding steps: their times, and bounds from the bytes that they read.

    ``begin`` takes a model, its context (B, T) with arguments, then the tokens of all steps, each
    (B, 1), with theirs. It returns the cache after the context and an iterator that takes a step.
    It is called for the row first, then for dense.
    """
    row, context = models.row, case[1]
    ids = texts.rows(case[0], context + bench.turns).to(bench.device)
    extra = _forced_decisions(row, ids, rate)
    tokens = list(ids[:, context:].split(1, dim=1))
    parts = [_part(extra, context + turn, context + turn + 1) for turn in range(bench.turns)]
    plain: list[Arguments] = [{}] * len(tokens)
    caches = list[Cache]()

    def measure(*timed: PreTrainedModel) -> Seconds:
        steps = []
        for model in timed:
            before, later = (_part(extra, 0, context), parts) if model is row else ({}, plain)
            cache, each = begin(model, ids[:, :context], before, tokens, later)
            caches.append(cache)
            steps.append(partial(next, each))
        return bench.time(*steps)

    seconds = measure(row, models.dense)
    executed = _decisions(row, ids, extra)
    size = torch.finfo(models.dense.dtype).bits // 8
    steps = None if executed is None else executed[..., context:].permute(2, 0, 1)
    works = [Work.of(model) for model in (row, models.dense)]
    needs = [
        work.step_bytes(decided, cache, size)
        for work, decided, cache in zip(works, (steps, None), caches, strict=True)
    ]
    saved = entries = 0.0
    if steps is not None:
        whole, read, left = (
            works[0].cache_numbers(decided, caches[1])
            for decided in (None, steps, torch.zeros_like(steps))
        )
        saved, entries = works[0].saved(*step_rates(steps)) + whole - read, whole - left
    nearer = _timed_bound(models, measure, saved, entries)
    times = time_ratio(*seconds, bound=needs[0] / needs[1], timed_bound=nearer)
    line = {"mode": mode, "case": case_name(case), "bypass": _skip(steps), **times}
    if executed is not None:
        trace = executed.transpose(1, 2).flatten(0, 1)
        weights = works[1].step_weights(None)
        line["predicted"] = {
            str(batch): works[0].predicted_weights(trace, batch) / weights for batch in BATCHES
        }
    return line


def _timed_bound(
    models: Models, measure: Callable[..., Seconds], saved: float, entries: float = 0.0
) -> float | None:
    """The ratio to dense if what the row leaves out took no time; None without a bare model.

    Of the time that the bare model does not take, the numbers left out have their share.

    Args:
        models: What is timed.
        measure: Times models in turn: bare and dense, apart from the row, whose data stay in the
            processor's cache while only two models run.
        saved: Parameters that did not run, or numbers that were not read.
        entries: Keys and values of the attention that the bare model lacks.
    """
    if models.bare is None:
        return None
    share = saved / (count(models.dense) - count(models.bare) + entries)
    bare, dense = map(np.array, measure(models.bare, models.dense))
    return 1 - share * (1 - float(np.median(bare / dense)))


def _passes(
    model: PreTrainedModel, prompts: Sequence[Tensor], extras: Sequence[Arguments]
) -> Iterator[None]:
    for ids, extra in zip(prompts, extras, strict=True):
        with torch.no_grad():
            model(ids, use_cache=False, logits_to_keep=1, **extra)
        yield


def _steps(
    model: PreTrainedModel, tokens: Sequence[Tensor], extras: Sequence[Arguments], cache: Cache
) -> Iterator[None]:
    for token, extra in zip(tokens, extras, strict=True):
        with torch.no_grad():
            model(token, past_key_values=cache, use_cache=True, **extra)
        yield


def _static_steps(
    decoder: StaticDecoder, tokens: Sequence[Tensor], extras: Sequence[Arguments]
) -> Iterator[None]:
    for token, extra in zip(tokens, extras, strict=True):
        decoder.token.copy_(token)
        if decoder.decisions is not None:
            decoder.decisions.copy_(extra["forced"])
        decoder.step()
        yield


def _replay(decoder: StaticDecoder) -> Callable[[], None]:
    """A function that repeats one step at the same place of the cache."""
    go_back = decoder.mark()

    def step() -> None:
        go_back()
        decoder.step()

    return step


@torch.no_grad()
def _cache(model: PreTrainedModel, ids: Tensor, extra: Arguments) -> Cache:
    output = model(ids, use_cache=True, logits_to_keep=1, **extra)
    cache: Cache = output.past_key_values
    return cache


@torch.no_grad()
def _decisions(model: PreTrainedModel, ids: Tensor, extra: Arguments) -> Tensor | None:
    """Decisions (B, U, T), forced or the row's own; None if no unit is routed."""
    if router_of(model) is None or "forced" in extra:
        return extra.get("forced")
    executed: Tensor = decoder(model)(input_ids=ids, use_cache=False, **extra).executed
    return executed


def _join(executed: Sequence[Tensor | None]) -> Tensor | None:
    decisions = [each for each in executed if each is not None]
    return torch.cat(decisions) if decisions else None


def _forced_decisions(model: PreTrainedModel, ids: Tensor, rate: float | None) -> Arguments:
    """Forced decisions as an argument of a forward pass; empty if the row decides itself."""
    router = router_of(model)
    if rate is None or router is None:
        return {}
    rows, length = ids.shape
    return {"forced": forced_decisions(router, rows, length, rate, str(ids.device))}


def _part(extra: Arguments, first: int, stop: int) -> Arguments:
    return {name: decisions[..., first:stop] for name, decisions in extra.items()}


def _skip(executed: Tensor | None) -> float | None:
    return None if executed is None else 1 - float(executed.double().mean())
