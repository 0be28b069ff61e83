"""Prefill and decode of a row over the dense model, on texts; one line per case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from methods.core.model.backbone import decoder
from methods.core.routing.decoding import StaticDecoder
from methods.core.routing.routed import router_of
from methods.core.seeds import generator
from methods.kernels.choose import available
from workflows.timing.cases import Case
from workflows.timing.clock import compared
from workflows.timing.meters import joules, peak_memory
from workflows.timing.modes import Bench, Line, forced_gates
from workflows.timing.work import Work

Arguments = dict[str, Any]
# Batches of a decode step whose reads are foretold from a trace.
BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Texts:
    """What models are timed on.

    Args:
        ids: One stream of tokens (N,); behind its end it begins anew.
    """

    ids: Tensor

    @classmethod
    def random(cls, vocabulary: int, tokens: int = 65536) -> Texts:
        """Drawn ids, for weights that are drawn too."""
        return cls(torch.randint(vocabulary, (tokens,), generator=generator(0, "ids")))

    def rows(self, sequences: int, length: int, turn: int = 0) -> Tensor:
        """Ids (sequences, length), others in every turn."""
        count = sequences * length
        places = (torch.arange(count) + turn * count) % len(self.ids)
        return self.ids[places].view(sequences, length)


def time_prefill(
    dense: PreTrainedModel,
    row: PreTrainedModel,
    case: Case,
    texts: Texts,
    bypass: float | None,
    bench: Bench,
) -> Line:
    """A prompt pass with logits of its last token, another prompt in every turn.

    Args:
        dense: The backbone.
        row: Made of it.
        case: Sequences and tokens of each.
        texts: Where prompts come from.
        bypass: Rate that is forced on a routed row; None: its own decisions.
        bench: Device and rounds.
    """
    sequences, length = case
    prompts = [texts.rows(*case, turn).to(bench.device) for turn in range(bench.turns)]
    forced = [_forced(row, ids, bypass) for ids in prompts]
    pairs = zip(prompts, forced, strict=True)
    executed = _joined([_decisions(row, ids, extra) for ids, extra in pairs])
    seconds = bench.time(
        partial(next, _passes(row, prompts, forced)),
        partial(next, _passes(dense, prompts, [{}] * len(prompts))),
    )
    needs = [
        Work.of(model).prompt_flops(decided, sequences, length)
        for model, decided in ((row, executed), (dense, None))
    ]
    found = compared(*seconds, needs[0] / needs[1])
    memory = peak_memory(
        partial(next, _passes(model, prompts[:1], extra[:1]))
        for model, extra in ((row, forced), (dense, [{}]))
    )
    line = {"mode": "prefill", "case": _name(case), "bypass": _skipped(executed)}
    return line | found | memory


def time_decode(
    dense: PreTrainedModel,
    row: PreTrainedModel,
    case: Case,
    texts: Texts,
    bypass: float | None,
    bench: Bench,
) -> Line:
    """One more token per sequence in every turn, behind ``context`` tokens at first; eager mode.

    Arguments as in :func:`time_prefill`. ``predicted`` is the bound at several batch sizes, as the
    decisions on single tokens of all sequences foretell it.
    """
    sequences, context = case
    ids = texts.rows(sequences, context + bench.turns).to(bench.device)
    extra = _forced(row, ids, bypass)
    caches = [
        _cache(row, ids[:, :context], _part(extra, 0, context)),
        _cache(dense, ids[:, :context], {}),
    ]
    tokens = list(ids[:, context:].split(1, dim=1))
    parts = [_part(extra, context + turn, context + turn + 1) for turn in range(bench.turns)]
    seconds = bench.time(
        partial(next, _steps(row, tokens, parts, caches[0])),
        partial(next, _steps(dense, tokens, [{}] * len(tokens), caches[1])),
    )
    executed = _decisions(row, ids, extra)
    return _decode_line("decode", (row, dense), case, executed, caches, seconds)


def time_static(
    dense: PreTrainedModel,
    row: PreTrainedModel,
    case: Case,
    texts: Texts,
    bypass: float | None,
    bench: Bench,
) -> Line:
    """The same steps in a static cache, on a GPU as one CUDA graph each.

    Arguments as in :func:`time_prefill`. ``masked``: without kernels both branches of a routed unit
    run, which is no skipping.
    """
    sequences, context = case
    ids = texts.rows(sequences, context + bench.turns).to(bench.device)
    extra = _forced(row, ids, bypass)
    # One place more for the token that nothing reads.
    decoders = [
        StaticDecoder(model, sequences, ids.shape[1] + 1, forced=bypass is not None)
        for model in (row, dense)
    ]
    decoders[0].prefill(ids[:, :context], **_part(extra, 0, context))
    decoders[1].prefill(ids[:, :context])
    tokens = list(ids[:, context:].split(1, dim=1))
    parts = [_part(extra, context + turn, context + turn + 1) for turn in range(bench.turns)]
    seconds = bench.time(
        partial(next, _static_steps(decoders[0], tokens, parts)),
        partial(next, _static_steps(decoders[1], tokens, [{}] * len(tokens))),
    )
    executed, caches = _decisions(row, ids, extra), [decoder.cache for decoder in decoders]
    line = _decode_line("static", (row, dense), case, executed, caches, seconds)
    line["masked"] = executed is not None and not available(next(row.parameters()))
    return line | joules([_replayed(decoder) for decoder in decoders], sequences)


def _decode_line(
    mode: str,
    models: tuple[PreTrainedModel, PreTrainedModel],
    case: Case,
    executed: Tensor | None,
    caches: Sequence[Cache],
    seconds: tuple[list[float], list[float]],
) -> Line:
    """What was measured of decode steps of a row and the dense model, beside what they read."""
    size = torch.finfo(models[1].dtype).bits // 8
    steps = None if executed is None else executed[..., case[1] :].permute(2, 0, 1)
    works = [Work.of(model) for model in models]
    needs = [
        work.step_bytes(decided, cache, size)
        for work, decided, cache in zip(works, (steps, None), caches, strict=True)
    ]
    found = compared(*seconds, needs[0] / needs[1])
    line = {"mode": mode, "case": _name(case), "bypass": _skipped(steps), **found}
    if executed is not None:
        trace = executed.transpose(1, 2).flatten(0, 1)
        whole = works[1].step_weights(None)
        line["predicted"] = {
            str(batch): works[0].predicted_weights(trace, batch) / whole for batch in BATCHES
        }
    return line


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
        if decoder.gates is not None:
            decoder.gates.copy_(extra["gates"])
        decoder.step()
        yield


def _replayed(decoder: StaticDecoder) -> Callable[[], None]:
    """One step, again and again at the same place of the cache."""
    back = decoder.mark()

    def step() -> None:
        back()
        decoder.step()

    return step


@torch.no_grad()
def _cache(model: PreTrainedModel, ids: Tensor, extra: Arguments) -> Cache:
    output = model(ids, use_cache=True, logits_to_keep=1, **extra)
    cache: Cache = output.past_key_values
    return cache


@torch.no_grad()
def _decisions(model: PreTrainedModel, ids: Tensor, extra: Arguments) -> Tensor | None:
    """Who executes which unit (B, U, T), as forced or found; None where no unit is routed."""
    if router_of(model) is None or "gates" in extra:
        return extra.get("gates")
    executed: Tensor = decoder(model)(input_ids=ids, use_cache=False, **extra).executed
    return executed


def _joined(executed: Sequence[Tensor | None]) -> Tensor | None:
    known = [each for each in executed if each is not None]
    return torch.cat(known) if known else None


def _forced(model: PreTrainedModel, ids: Tensor, bypass: float | None) -> Arguments:
    """Gates of a rate as arguments of a forward pass; nothing where the row decides itself."""
    router = router_of(model)
    if bypass is None or router is None:
        return {}
    rows, length = ids.shape
    return {"gates": forced_gates(router, rows, length, bypass, str(ids.device))}


def _part(extra: Arguments, first: int, stop: int) -> Arguments:
    return {name: gates[..., first:stop] for name, gates in extra.items()}


def _skipped(executed: Tensor | None) -> float | None:
    return None if executed is None else 1 - float(executed.double().mean())


def _name(case: Case) -> str:
    return "x".join(map(str, case))
