"""Functions of the HumanEval task files: programs from completions, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any

from workflows.evaluation import sandbox

KS = (1, 10, 100)
FENCE = "```"


def pass_at(k: int, samples: int, passed: int) -> float:
    """The probability that at least one of k programs passes, which are drawn from n.

    Formula: 1 - C(n - c, k) / C(n, k), which is unbiased.
    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", section 2.1.

    Args:
        k: Number of drawn programs, at most n.
        samples: n, number of all programs.
        passed: c, number of programs that passed.
    """
    return 1 - comb(samples - passed, k) / comb(samples, k)


def score_completion(doc: dict[str, Any], results: list[str] | list[list[str]]) -> dict[str, float]:
    """``pass@k`` of completions that continue the prompt.

    Args:
        doc: A problem of HumanEval.
        results: One completion, or one list of n.

    Raises:
        ValueError: No sandbox can be made here; nothing was run.
    """
    completions = results[0]
    return _score(doc, [completions] if isinstance(completions, str) else completions)


def score_block(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """``pass@1`` of a completion inside a block of code, up to the block's end."""
    return _score(doc, [results[0].split(FENCE)[0]])


def every_sample(resps: Any, docs: Any) -> list[list[str]]:
    """A filter of lm-eval that keeps all n completions of each problem."""
    return [list(samples) for samples in resps]


def _score(doc: dict[str, Any], completions: Sequence[str]) -> dict[str, float]:
    passed = sum(
        sandbox.run(
            doc["prompt"] + completion, doc["entry_point"], doc["test"], doc["prompt"]
        ).passed
        for completion in completions
    )
    n = len(completions)
    return {f"pass@{k}": pass_at(k, n, passed) for k in KS if k <= n}
