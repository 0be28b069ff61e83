"""Answers scored from one pass over the context they share.

The contexts of a batch are run once, padded on the left, so that their last column predicts the
first token of every answer. The rest of an answer, but for its last token, is run on a copy of its
context's keys and values, padded on the right. So the tokens of a row stand in adjacent columns,
and windows of attention, evicted keys and routers that read positions meet what they meet in one
pass: exact for rows that decide a token by itself and those before it. An answer that begins
another shares its row.

The head runs on scored positions only, and log-probabilities are float32 whatever the model is.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from lm_eval.models.huggingface import eval_logger
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import Cache, PreTrainedModel

from methods.core.model.backbone import decoder
from methods.core.model.ledger import Tally

# As lm-eval hands them over: the texts (the key of its cache), ids of the context, of the answer.
Request = tuple[tuple[str, str] | None, list[int], list[int]]


class Counting(Protocol):
    """What is used of the harness's ``CountingLM``."""

    model: PreTrainedModel
    device: torch.device
    batch_size: int
    max_length: int
    tallies: dict[str, Tally]
    log: Any
    kinds: Any
    cache_hook: Any


class Asked(NamedTuple):
    """An answer to score: the number of its request, its ids."""

    number: int
    answer: list[int]


class Row(NamedTuple):
    """A row of a pass: the ids it feeds, and the answers that are read from it."""

    fed: list[int]
    asked: list[Asked]


class Found(NamedTuple):
    """What a scored position says of one token of an answer."""

    number: int
    log: float
    greedy: bool


def answer_requests(
    lm: Counting, requests: Sequence[Request], disable_tqdm: bool = False
) -> list[tuple[float, bool]]:
    """Log-likelihood of every answer and whether greedy decoding would write it, in their order.

    Args:
        lm: Whose model decides causally; its tallies count every position once.
        requests: Contexts and answers of at least one token.
        disable_tqdm: No progress bar.

    Raises:
        ValueError: A context or an answer is empty, or an answer exceeds the context window.
    """
    contexts, size = by_context(requests, lm.max_length), int(lm.batch_size)
    logs, greedy = [0.0] * len(requests), [True] * len(requests)
    with tqdm(total=len(requests), disable=disable_tqdm, desc="answers") as progress:
        for start in range(0, len(contexts), size):
            batch = contexts[start : start + size]
            for found in _score(lm, batch, size):
                logs[found.number] += found.log
                greedy[found.number] &= found.greedy
            for number in (asked.number for row in batch for asked in row.asked):
                _keep(lm, requests[number], (logs[number], greedy[number]))
                progress.update(1)
    return list(zip(logs, greedy, strict=True))


def _keep(lm: Counting, request: Request, answer: tuple[float, bool]) -> None:
    """Hand an answer to the cache of lm-eval; windows of a rolling likelihood are none."""
    text = request[0]
    if text is not None:
        lm.cache_hook.add_partial("loglikelihood", text, answer)


def by_context(requests: Sequence[Request], max_length: int) -> list[Row]:
    """Every distinct context as it is fed, the longest first, with the answers that share it.

    As in lm-eval, a context and its answer without the last token are cut from the left to
    ``max_length``; answers of other lengths may then have contexts of their own.

    Raises:
        ValueError: See :func:`answer_requests`.
    """
    rows = defaultdict[tuple[int, ...], list[Asked]](list)
    cut = 0
    for number, (_, context, answer) in enumerate(requests):
        check_lengths(len(context), len(answer), max_length)
        kept = max_length + 1 - len(answer)
        cut += len(context) > kept
        rows[tuple(context[-kept:])].append(Asked(number, answer))
    if cut:
        eval_logger.warning(f"{cut} contexts are cut from the left to {max_length} tokens")
    ordered = sorted(rows, key=lambda context: (-len(context), context))
    return [Row(list(context), rows[context]) for context in ordered]


def check_lengths(context: int, answer: int, max_length: int) -> None:
    """An answer is scored from the token before it, in one window.

    Args:
        context: Its tokens.
        answer: Its tokens.
        max_length: The context window.

    Raises:
        ValueError: Either is empty, or the answer exceeds the window.
    """
    if not context or not 0 < answer <= max_length:
        raise ValueError(
            f"a context of {context} and an answer of {answer} tokens: each has one at least, an "
            f"answer at most {max_length}"
        )


def continuations(context: Row) -> list[Row]:
    """What is fed behind a context: its answers without their last tokens, each beginning once."""
    rows: list[Row] = []
    longer = [asked for asked in context.asked if len(asked.answer) > 1]
    # Behind every sequence in this order stand its own beginnings.
    for asked in sorted(longer, key=lambda asked: asked.answer[:-1], reverse=True):
        fed = asked.answer[:-1]
        if rows and rows[-1].fed[: len(fed)] == fed:
            rows[-1].asked.append(asked)
        else:
            rows.append(Row(fed, [asked]))
    return rows


def _score(lm: Counting, contexts: list[Row], size: int) -> Iterator[Found]:
    """Run a batch of contexts, then what follows them, ``size`` rows at a time."""
    following = [(n, row) for n, context in enumerate(contexts) for row in continuations(context)]
    ids, valid = _padded(contexts, left=True)
    # All contexts end in the last column, which predicts the first tokens.
    lm.kinds.first = ids.shape[1] - 1
    scored = torch.zeros_like(valid)
    scored[:, -1] = True
    reads = [
        (n, asked.number, asked.answer[0])
        for n, context in enumerate(contexts)
        for asked in context.asked
    ]
    cache, found = _run(lm, ids, valid, scored, reads, use_cache=bool(following))
    yield from found
    for start in range(0, len(following), size):
        part = following[start : start + size]
        ids, real = _padded([row for _, row in part], left=False)
        source, reads, offset = torch.tensor([n for n, _ in part]), [], 0
        for _, row in part:
            reads += [
                (offset + place, asked.number, token)
                for asked in row.asked
                for place, token in enumerate(asked.answer[1:])
            ]
            offset += len(row.fed)
        mask = torch.cat([valid[source], real], dim=1)
        yield from _run(lm, ids, mask, real, reads, past_key_values=selected(cache, source))[1]


@torch.no_grad()
def _run(
    lm: Counting,
    ids: Tensor,
    mask: Tensor,
    scored: Tensor,
    reads: list[tuple[int, int, int]],
    **options: Any,
) -> tuple[Any, list[Found]]:
    """One pass of the decoder, counted, with the head on its scored positions.

    Args:
        lm: Whose model and tallies.
        ids: Tokens (B, T).
        mask: True on tokens, (B, past + T).
        scored: Which positions predict a token of an answer (B, T).
        reads: (place among the scored positions, number of the request, token) of all predictions.
        options: Of the decoder: its cache.

    Returns:
        The cache and what the scored positions say.
    """
    lm.log.passes.clear()
    device, length = lm.device, ids.shape[1]
    places = (mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -length:]
    output = decoder(lm.model)(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        position_ids=places.to(device),
        **options,
    )
    real = mask[:, -length:]
    for kind, where in (("prompt", real & ~scored), ("likelihood", scored)):
        executed = lm.log.passes[-1]
        ran = None if executed is None else executed.transpose(0, 1)[:, where.to(device)]
        lm.tallies[kind].add(ran, int(where.sum()))
    head: Callable[[Tensor], Tensor] = lm.model.lm_head
    logs = head(output.last_hidden_state[scored.to(device)]).log_softmax(-1, torch.float32)
    at, numbers, tokens = torch.tensor(reads).to(device).unbind(1)
    said, best = logs[at, tokens], logs.argmax(-1)[at] == tokens
    found = list(map(Found, numbers.tolist(), said.tolist(), best.tolist()))
    return output.past_key_values, found


def _padded(rows: Sequence[Row], left: bool) -> tuple[Tensor, Tensor]:
    """Ids (B, T), 0 on pads, and True on tokens (B, T)."""
    parts = [torch.tensor(row.fed) for row in rows]
    side = "left" if left else "right"
    ids = pad_sequence(parts, batch_first=True, padding_side=side)
    ones = [torch.ones_like(part, dtype=torch.bool) for part in parts]
    return ids, pad_sequence(ones, batch_first=True, padding_side=side)


def selected(cache: Cache, rows: Tensor) -> Cache:
    """A cache of the given rows of another one (n,), which stays as it is; rows may repeat."""
    made = copy.copy(cache)
    made.layers = [copy.copy(layer) for layer in cache.layers]
    # Puts new tensors in place of all old ones.
    made.reorder_cache(rows)  # type: ignore[arg-type]
    return made
