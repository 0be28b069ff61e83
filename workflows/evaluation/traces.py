"""What a page shows of a run beside its numbers: texts of items, and routes of a few prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from workflows.evaluation.harness import CountingLM
from workflows.records import SAMPLE

# Of a prompt its end is kept, but of the first item of a task everything: it is routed again.
CHARACTERS = 2000
# Of a routed prompt the last tokens are kept.
TOKENS = 128


def sample_text(sample: Mapping[str, Any], first: bool) -> str:
    """What one item asked and got, as JSON.

    Args:
        sample: What lm-eval kept of the item.
        first: Whether it is the first of its task.

    Returns:
        ``prompt``; ``choices`` (continuations that were compared) with their ``scores``
        (log-likelihoods), or the ``text`` that was written; ``target``: the number of the right
        choice, else the text that was wanted.
    """
    contexts = [str(arguments[0]) for arguments in sample["arguments"]]
    choices = [str(a[1]) for a in sample["arguments"] if len(a) > 1 and isinstance(a[1], str)]
    if len(set(contexts)) > 1:
        # Contexts that differ are compared, as in WinoGrande.
        choices = [c + rest for c, rest in zip(contexts, choices, strict=False)]
    prompt = contexts[0] if len(set(contexts)) == 1 else ""
    found = list(sample["filtered_resps"])
    told: dict[str, Any] = {
        "prompt": prompt if first else prompt[-CHARACTERS:],
        "target": _target(sample["target"], choices),
    }
    if choices:
        told |= {"choices": choices, "scores": [_score(one) for one in found[: len(choices)]]}
    elif found:
        while isinstance(found, Sequence) and not isinstance(found, str) and found:
            found = found[0]
        told["text"] = str(found)[:CHARACTERS]
    return json.dumps(told, ensure_ascii=False)


def _score(answer: Any) -> float:
    """A log-likelihood, alone or beside whether it is the greedy one."""
    return round(float(answer[0] if isinstance(answer, Sequence) else answer), 4)


def _target(target: Any, choices: Sequence[str]) -> int | str:
    if isinstance(target, int) and not isinstance(target, bool) and target < len(choices):
        return target
    stripped = [choice.strip() for choice in choices]
    told = str(target)
    return stripped.index(told.strip()) if told.strip() in stripped else told[:CHARACTERS]


@torch.no_grad()
def routes(lm: CountingLM, items: pd.DataFrame) -> list[dict[str, Any]]:
    """What ran for each token of the first item of each task, with the answer that was wanted.

    Args:
        lm: A routed model under the harness.
        items: With their :data:`SAMPLE`.

    Returns:
        Per task ``task``, ``tokens`` (the last :data:`TOKENS` that are fed, as text),
        ``first_answer`` (number of the first one whose output is scored) and ``executed``: per
        unit a string of ``0`` and ``1``, one per token.
    """
    known = items[items[SAMPLE].notna()] if SAMPLE in items else items[:0]
    found = []
    for task, part in known.groupby("task", sort=False):
        prompt, answer = _fed(json.loads(part.sort_values("item")[SAMPLE].iloc[0]))
        if not prompt or not answer:
            continue
        context, rest = lm._encode_pair(prompt, answer)
        ids = (context + rest)[:-1][-lm.max_length :]
        first = len(ids) - len(rest)
        lm.kinds.first = first
        lm.log.passes.clear()
        lm.model(torch.tensor([ids], device=lm.device))
        executed = lm.log.passes[-1]
        assert executed is not None
        left = max(0, len(ids) - TOKENS)
        found.append(
            {
                "task": str(task),
                "tokens": [
                    lm.tok_decode([token], skip_special_tokens=False) for token in ids[left:]
                ],
                "first_answer": max(0, first - left),
                "executed": [
                    "".join("01"[ran] for ran in unit[left:]) for unit in executed[0].tolist()
                ],
            }
        )
    return found


def _fed(sample: Mapping[str, Any]) -> tuple[str, str]:
    """Context and wanted answer."""
    prompt, target = sample["prompt"], sample["target"]
    if isinstance(target, int):
        return prompt, sample["choices"][target]
    return prompt, target if prompt[-1:].isspace() else f" {target}"
