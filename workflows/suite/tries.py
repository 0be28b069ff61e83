"""Tries of a trained row: in which order, which one wins, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from methods.core.budget import LayerSet
from workflows.stats.budget import PROMPT_TOLERANCE, met
from workflows.suite.job import Job
from workflows.suite.table import read_choices

# What was tried and how it went: learning_rate, candidates, lora_rate, updates, seed, skip,
# skip_prompt (of ``split``), right, loss.
Try = Mapping[str, Any]
# Params that are chosen.
CHOSEN = ("learning_rate", "candidates", "lora_rate")
# What a choice may be for.
PLACE = ("budget", "match")
# The loss that stands for a try that diverged.
DIVERGED = 1e9


class BudgetMissedError(ValueError):
    """No try of a row meets its budget, or every one diverged."""


def tune(
    job: Job,
    rates: Sequence[float],
    sets: Sequence[LayerSet],
    shares: Sequence[float],
    attempt: Callable[..., Try],
) -> list[Try]:
    """Try all rates, then the other sets and the other shares of LoRA, each at the best so far.

    If a set or a share wins, the rates beside the best one are tried with it too.

    Args:
        job: Of the row.
        rates: The grid.
        sets: Sets of layers besides the row's own; with none of them a try names no candidates.
        shares: Rates of LoRA relative to the others (param ``lora_rate``), besides the row's own.
        attempt: Fits with these params and returns the try.

    Raises:
        BudgetMissedError: No try meets the budget, or every one diverged.
    """
    own = {"candidates": "auto"} if sets else {}
    tries = [attempt(learning_rate=rate, **own) for rate in rates]
    for key, values in (("candidates", sets), ("lora_rate", shares)):
        before = choice_of(best_try(job, tries))
        tries += [attempt(**{**before, key: value}) for value in values]
        now = choice_of(best_try(job, tries))
        if now != before:
            place = sorted(rates).index(now["learning_rate"])
            beside = sorted(rates)[max(0, place - 1) : place + 2]
            beside.remove(now["learning_rate"])
            tries += [attempt(**{**now, "learning_rate": other}) for other in beside]
    if all(one["loss"] == DIVERGED for one in tries):
        raise BudgetMissedError(f"{job.row}: every try diverged")
    if not meets(job, best_try(job, tries)):
        raise BudgetMissedError(f"{job.row}: no try meets the budget {job.budget}")
    return tries


def choice_of(one: Try) -> dict[str, Any]:
    """The params of a try that are chosen."""
    return {key: one[key] for key in CHOSEN if key in one}


def meets(job: Job, attempt: Try) -> bool:
    """Whether a try meets the job's budget; one that diverged has no answers."""
    return attempt["loss"] < DIVERGED and met(job.budget, attempt.get("skip", job.budget))


def best_try(job: Job, tries: Sequence[Try]) -> Try:
    """The try with the most right answers among those that meet the job's budget.

    Those that also hold it on prompts come first. If none meets it, among all.
    """

    def merit(one: Try) -> tuple[bool, bool, float, float]:
        prompts = met(job.budget, one.get("skip_prompt", job.budget), PROMPT_TOLERANCE)
        return meets(job, one), prompts, one["right"], -one["loss"]

    return max(tries, key=merit)


def read_outcome(file: Path) -> dict[str, Any]:
    """What earlier calls wrote; empty if there is no file.

    Raises:
        ValueError: It is no file of this step.
    """
    if not file.is_file():
        return {"params": {}, "tries": {}}
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        read_choices(content)
        return {"params": dict(content["params"]), "tries": dict(content["tries"])}
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, ValueError):
        raise ValueError(f"--out {file} is there and no file of this step") from None


def enter(outcome: dict[str, Any], job: Job, tries: Sequence[Try]) -> None:
    """Enter the best of the tries for their budget and protocol, and the tries themselves.

    They take the place of earlier tries of as many updates; those of other lengths stay on record.
    """
    place = {"budget": job.budget, "match": job.match}
    place = {key: value for key, value in place.items() if value is not None}

    def others(lines: Sequence[Mapping[str, Any]], **more: Any) -> list[Mapping[str, Any]]:
        here = place | more
        keys = (*PLACE, *more)
        return [line for line in lines if {key: line[key] for key in keys if key in line} != here]

    chosen = choice_of(best_try(job, tries))
    params, before = outcome["params"], outcome["tries"]
    entries = [{**place, "params": chosen}, *others(params.get(job.row, []))]
    # The first that fits a job holds: what is for all jobs comes last.
    params[job.row] = sorted(entries, key=lambda entry: -len(entry))
    earlier = others(before.get(job.row, []), updates=tries[0]["updates"])
    before[job.row] = [*earlier, *({**place, **one} for one in tries)]
