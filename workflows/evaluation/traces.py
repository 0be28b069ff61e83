"""What a page shows of a run in addition to its numbers: texts of items, routes of some prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from workflows.evaluation.harness import CountingLM
from workflows.records import SAMPLE

# Characters that are stored of a prompt, from its end. The prompt of a task's first item is stored
# as a whole, because :func:`routes` runs it again.
CHARACTERS = 2000
# Tokens that are stored of a routed prompt, from its end.
TOKENS = 128


def sample_text(task: Any, sample: Mapping[str, Any], first: bool) -> str:
    """Texts of one item, as JSON.

    Args:
        task: Of lm-eval.
        sample: lm-eval's log of the item.
        first: Whether it is the first of its task.

    Returns:
        ``prompt``; either ``choices`` (the continuations that were compared) with their ``scores``
        (log-likelihoods), or the generated ``text``, before any filter; ``target``: the number of
        the right choice, else the right text.
    """
    arguments, target = list(sample["arguments"]), sample["target"]
    if task.OUTPUT_TYPE == "multiple_choice":
        # For acc_mutual_info as many again follow, without their context.
        arguments = arguments[: len(task.doc_to_choice(sample["doc"]))]
    contexts = [str(argument[0]) for argument in arguments]
    choices = [str(a[1]) for a in arguments if len(a) > 1 and isinstance(a[1], str)]
    if len(set(contexts)) > 1:
        # The contexts differ and the continuation is the same, as in WinoGrande.
        choices = [c + rest for c, rest in zip(contexts, choices, strict=False)]
    if getattr(task, "multiple_input", 0):
        # lm-eval's target is that continuation, and its text the number of the right context.
        target = task.doc_to_text(sample["doc"])
    prompt = contexts[0] if len(set(contexts)) == 1 else ""
    texts: dict[str, Any] = {
        "prompt": prompt if first else prompt[-CHARACTERS:],
        "target": _target(target, choices),
    }
    if choices:
        scores = [_score(one) for one in sample["filtered_resps"][: len(choices)]]
        texts |= {"choices": choices, "scores": scores}
    elif sample["resps"]:
        text: Any = sample["resps"]
        while isinstance(text, Sequence) and not isinstance(text, str) and text:
            text = text[0]
        texts["text"] = str(text)[:CHARACTERS]
    return json.dumps(texts, ensure_ascii=False)


def _score(answer: Any) -> float:
    """A log-likelihood, given alone or in a pair with whether the answer is the greedy one."""
    return round(float(answer[0] if isinstance(answer, Sequence) else answer), 4)


def _target(target: Any, choices: Sequence[str]) -> int | str:
    """Number of the right choice, or the right text if that is no choice; the first of several."""
    if isinstance(target, list) and target:
        target = target[0]
    if isinstance(target, int) and not isinstance(target, bool) and 0 <= target < len(choices):
        return target
    stripped = [choice.strip() for choice in choices]
    text = str(target)
    return stripped.index(text.strip()) if text.strip() in stripped else text[:CHARACTERS]


@torch.no_grad()
def routes(lm: CountingLM, items: pd.DataFrame) -> list[dict[str, Any]]:
    """What runs for each token of the first item of each task, with the right answer as its end.

    Args:
        lm: A routed model in the harness.
        items: With the column :data:`SAMPLE`.

    Returns:
        Per task ``task``, ``tokens`` (the last :data:`TOKENS` input tokens, as text),
        ``first_answer`` (number of the first answer token) and ``executed``: per unit a string of
        ``0`` and ``1``, one per token.
    """
    texts = items[items[SAMPLE].notna()] if SAMPLE in items else items[:0]
    lines = []
    for task, part in texts.groupby("task", sort=False):
        prompt, answer = _prompt_and_answer(json.loads(part.sort_values("item")[SAMPLE].iloc[0]))
        if not prompt or not answer:
            continue
        context, rest = lm._encode_pair(prompt, answer)
        ids = (context + rest)[:-1][-lm.max_length :]
        first = len(ids) - len(rest)
        lm.marker.first = first
        lm.log.passes.clear()
        lm.model(torch.tensor([ids], device=lm.device))
        executed = lm.log.passes[-1]
        assert executed is not None
        start = max(0, len(ids) - TOKENS)
        lines.append(
            {
                "task": str(task),
                "tokens": [
                    lm.tok_decode([token], skip_special_tokens=False) for token in ids[start:]
                ],
                "first_answer": max(0, first - start),
                "executed": [
                    "".join("01"[ran] for ran in unit[start:]) for unit in executed[0].tolist()
                ],
            }
        )
    return lines


def _prompt_and_answer(sample: Mapping[str, Any]) -> tuple[str, str]:
    """Prompt of an item and its right answer."""
    prompt, target = sample["prompt"], sample["target"]
    if isinstance(target, int):
        return prompt, sample["choices"][target]
    return prompt, target if prompt[-1:].isspace() else f" {target}"
