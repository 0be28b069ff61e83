"""Answers with the same context are scored from one pass over that context.

Two steps per batch. First the contexts run once, padded on the left: the last column predicts the
first token of every answer. Then the answers run, each on a copy of the keys and values of its
context, padded on the right. The last token of an answer does not run, because it predicts nothing
that is scored. If one answer is the beginning of another, both use the same row.

In both steps the tokens of a row are in adjacent columns. So attention windows, evicted keys and
routers that read positions see the same as in a single pass. The result is exact if the decision
about a token depends on that token and earlier ones only.

The head runs on scored positions only. Log-probabilities are float32, whatever the model's dtype.
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
from methods.core.model.families import logits_of
from methods.core.model.ledger import Tally
from workflows.evaluation.fidelity import POSITIONS

# A request of lm-eval: the two texts (key of its cache), ids of the context, ids of the answer.
Request = tuple[tuple[str, str] | None, list[int], list[int]]
# A prediction: place among the scored positions, number of the request, token.
Read = tuple[int, int, int]


class Counting(Protocol):
    """The attributes of the harness's ``CountingLM`` that are used here."""

    model: PreTrainedModel
    device: torch.device
    batch_size: int
    max_length: int
    tallies: dict[str, Tally]
    log: Any
    marker: Any
    cache_hook: Any


class Answer(NamedTuple):
    """An answer to score.

    Args:
        number: Of its request.
        ids: Its tokens.
    """

    number: int
    ids: list[int]


class PassRow(NamedTuple):
    """A row of a pass.

    Args:
        ids: Input tokens.
        answers: The answers that are scored from it.
    """

    ids: list[int]
    answers: list[Answer]


class TokenScore(NamedTuple):
    """Score of one token of an answer.

    Args:
        number: Of the answer's request.
        log: The token's log-probability.
        greedy: Whether it is the most probable token.
    """

    number: int
    log: float
    greedy: bool


def answer_requests(
    lm: Counting, requests: Sequence[Request], disable_tqdm: bool = False
) -> list[tuple[float, bool]]:
    """Log-likelihood of every answer, and whether greedy decoding would write it.

    Args:
        lm: Its model decides causally; its tallies count every position once.
        requests: Contexts and answers of at least one token each.
        disable_tqdm: No progress bar.

    Returns:
        One pair per request, in the order of requests.

    Raises:
        ValueError: A context or an answer is empty, or an answer exceeds the context window.
    """
    contexts, size = by_context(requests, lm.max_length), int(lm.batch_size)
    logs, greedy = [0.0] * len(requests), [True] * len(requests)
    with tqdm(total=len(requests), disable=disable_tqdm, desc="answers") as progress:
        for start in range(0, len(contexts), size):
            batch = contexts[start : start + size]
            for token in _score(lm, batch, size):
                logs[token.number] += token.log
                greedy[token.number] &= token.greedy
            for number in (answer.number for row in batch for answer in row.answers):
                _cache_answer(lm, requests[number], (logs[number], greedy[number]))
                progress.update(1)
    return list(zip(logs, greedy, strict=True))


def _cache_answer(lm: Counting, request: Request, result: tuple[float, bool]) -> None:
    """Add a result to lm-eval's cache; windows of a rolling likelihood have no texts, no entry."""
    texts = request[0]
    if texts is not None:
        lm.cache_hook.add_partial("loglikelihood", texts, result)


def by_context(requests: Sequence[Request], max_length: int) -> list[PassRow]:
    """Every distinct context, the longest first, with its answers.

    As in lm-eval, a context and its answer without the last token are cut from the left to
    ``max_length``. After that, answers of different lengths may have different contexts.

    Raises:
        ValueError: See :func:`answer_requests`.
    """
    rows = defaultdict[tuple[int, ...], list[Answer]](list)
    cut = 0
    for number, (_, context, answer) in enumerate(requests):
        check_lengths(len(context), len(answer), max_length)
        space = max_length + 1 - len(answer)
        cut += len(context) > space
        rows[tuple(context[-space:])].append(Answer(number, answer))
    if cut:
        eval_logger.warning(f"{cut} contexts are cut from the left to {max_length} tokens")
    ordered = sorted(rows, key=lambda context: (-len(context), context))
    return [PassRow(list(context), rows[context]) for context in ordered]


def check_lengths(context: int, answer: int, max_length: int) -> None:
    """Refuse an answer that does not fit into one window with the token before it.

    Args:
        context: Number of its tokens.
        answer: Number of its tokens.
        max_length: The context window.

    Raises:
        ValueError: Either is empty, or the answer exceeds the window.
    """
    if not context or not 0 < answer <= max_length:
        raise ValueError(
            f"a context of {context} and an answer of {answer} tokens: each has one at least, an "
            f"answer at most {max_length}"
        )


def continuations(context: PassRow) -> list[PassRow]:
    """The rows that run after a context: its answers without their last tokens.

    An answer that is the beginning of another one has no row of its own.
    """
    rows: list[PassRow] = []
    longer = [answer for answer in context.answers if len(answer.ids) > 1]
    # In this order the beginnings of a sequence follow directly after it.
    for answer in sorted(longer, key=lambda answer: answer.ids[:-1], reverse=True):
        ids = answer.ids[:-1]
        if rows and rows[-1].ids[: len(ids)] == ids:
            rows[-1].answers.append(answer)
        else:
            rows.append(PassRow(ids, [answer]))
    return rows


def _score(lm: Counting, contexts: list[PassRow], size: int) -> Iterator[TokenScore]:
    """Run a batch of contexts, then their answers, ``size`` rows at a time."""
    following = [(n, row) for n, context in enumerate(contexts) for row in continuations(context)]
    ids, valid = _pad(contexts, left=True)
    # All contexts end in the last column, which predicts the first tokens of their answers.
    lm.marker.first = ids.shape[1] - 1
    scored = torch.zeros_like(valid)
    scored[:, -1] = True
    reads = [
        (n, answer.number, answer.ids[0])
        for n, context in enumerate(contexts)
        for answer in context.answers
    ]
    cache, tokens = _run(lm, ids, valid, scored, reads, use_cache=bool(following))
    yield from tokens
    for start in range(0, len(following), size):
        part = following[start : start + size]
        ids, real = _pad([row for _, row in part], left=False)
        source, reads, offset = torch.tensor([n for n, _ in part]), [], 0
        for _, row in part:
            reads += [
                (offset + place, answer.number, token)
                for answer in row.answers
                for place, token in enumerate(answer.ids[1:])
            ]
            offset += len(row.ids)
        mask = torch.cat([valid[source], real], dim=1)
        yield from _run(lm, ids, mask, real, reads, past_key_values=select_rows(cache, source))[1]


@torch.no_grad()
def _run(
    lm: Counting,
    ids: Tensor,
    mask: Tensor,
    scored: Tensor,
    reads: list[Read],
    **options: Any,
) -> tuple[Any, list[TokenScore]]:
    """One pass of the decoder, with the head on scored positions; counts what ran.

    Args:
        lm: Its model runs, its tallies count.
        ids: Tokens (B, T).
        mask: True on tokens, (B, past + T).
        scored: Which positions predict a token of an answer (B, T).
        reads: Every prediction.
        options: More arguments of the decoder: its cache.

    Returns:
        The cache, and one score per prediction.
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
        part = None if executed is None else executed.transpose(0, 1)[:, where.to(device)]
        lm.tallies[kind].add(part, int(where.sum()))
    states = output.last_hidden_state[scored.to(device)]
    return output.past_key_values, list(_token_scores(logits_of(lm.model), states, reads))


def _token_scores(
    head: Callable[[Tensor], Tensor], states: Tensor, reads: list[Read]
) -> Iterator[TokenScore]:
    """Scores of predictions at states (n, D), each of which has one; per answer in their order."""
    parts = defaultdict[int, list[Read]](list)
    for place, number, token in reads:
        parts[place // POSITIONS].append((place % POSITIONS, number, token))
    for n, part in enumerate(states.split(POSITIONS)):
        logs = head(part).log_softmax(-1, torch.float32)
        at, numbers, tokens = torch.tensor(parts[n]).to(part.device).unbind(1)
        values, best = logs[at, tokens], logs.argmax(-1)[at] == tokens
        yield from map(TokenScore, numbers.tolist(), values.tolist(), best.tolist())


def _pad(rows: Sequence[PassRow], left: bool) -> tuple[Tensor, Tensor]:
    """Ids (B, T), 0 on pads; mask (B, T), True on tokens."""
    parts = [torch.tensor(row.ids) for row in rows]
    side = "left" if left else "right"
    ids = pad_sequence(parts, batch_first=True, padding_side=side)
    ones = [torch.ones_like(part, dtype=torch.bool) for part in parts]
    return ids, pad_sequence(ones, batch_first=True, padding_side=side)


def select_rows(cache: Cache, rows: Tensor) -> Cache:
    """A new cache with rows (n,) of another one, which does not change; rows may repeat."""
    selection = copy.copy(cache)
    selection.layers = [copy.copy(layer) for layer in cache.layers]
    # A shallow copy is enough: this replaces all tensors by new ones.
    selection.reorder_cache(rows)  # type: ignore[arg-type]
    return selection
