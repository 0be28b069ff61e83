"""Scoring a loaded model: tasks with lm-eval, text files by their perplexity.

lm-eval builds the prompts, calls the model and computes the metrics. This file asks it for one task
at a time, and turns its answer into scores (one mapping per metric), items (one row per item and
metric, for the paired statistics) and tallies (what ran for how many tokens).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from methods.core.model.ledger import Rates, Tally
from workflows.evaluation import sandbox
from workflows.evaluation.answers import RIGHT_OR_WRONG, check_targets, chosen, guess
from workflows.evaluation.harness import ANSWER, KINDS, CountingLM, simple_evaluate
from workflows.evaluation.loading import (
    CannotRun,
    check_metric,
    explained,
    listed_metrics,
    load,
    task_manager,
)  # fmt: skip
from workflows.evaluation.perplexity import one_hash, perplexity
from workflows.evaluation.store import ScoreStore, TaskScores
from workflows.evaluation.tasklist import TaskEntry
from workflows.evaluation.tasknames import runs_programs
from workflows.evaluation.traces import sample_text
from workflows.records import SAMPLE

SEEDS = {
    "random_seed": 0,
    "numpy_random_seed": 1234,
    "torch_random_seed": 1234,
    "fewshot_random_seed": 1234,
}
# Metrics whose items are pairs: a log-likelihood, and its number of words or bytes.
PER_UNIT = ("word_perplexity", "byte_perplexity", "bits_per_byte")

# Largest difference of lm-eval's value and the mean over items, if the value is such a mean.
CLOSE = 1e-6


@dataclass
class Scores:
    """Scores of one model on all tasks.

    Args:
        scores: One mapping per task and metric.
        items: One frame per task, with one row per item and metric.
        tallies: Counted tokens per kind, summed over tasks. Perplexities, whose tokens no budget is
            calibrated on, count only where nothing else is scored.
        not_run: ``task`` and ``reason`` of each task that cannot be scored here.
    """

    scores: list[dict[str, Any]] = field(default_factory=list)
    items: list[pd.DataFrame] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    not_run: list[dict[str, str]] = field(default_factory=list)


def score(
    lm: CountingLM,
    entries: Sequence[TaskEntry],
    task_folders: Sequence[Path],
    store: ScoreStore | None = None,
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> Scores:
    """Score every entry, with one call of lm-eval per entry.

    So each entry has its own skip rates, its own number of demonstrations and its own template.

    Args:
        lm: The model in the harness.
        entries: What to score.
        task_folders: Folders of own tasks, in addition to this project's.
        store: Read first; new scores are written to it. None: every entry is scored.
        reasons: Task -> why it cannot be scored, if that is known before it is tried.

    Raises:
        ValueError: A task does not have the metric, has no items, or no task can be run.
    """
    manager = task_manager(entries, task_folders)
    total = Scores(tallies={kind: Tally(lm.ledger) for kind in KINDS})
    texts = {kind: Tally(lm.ledger) for kind in KINDS}
    for entry in tqdm(entries, desc="tasks"):
        result = None if store is None else store.read(entry)
        if result is None:
            try:
                result = _score_one(lm, entry, manager, reasons.get(entry.task))
            except CannotRun as error:
                total.not_run.append({"task": entry.task, "reason": str(error)})
                continue
            if store is not None:
                store.write(entry, result)
        rates = rates_by_kind(result.tallies)
        total.scores += [score | {"rates": rates} for score in result.scores]
        total.items.append(result.items)
        into = texts if entry.is_perplexity else total.tallies
        for kind in KINDS:
            into[kind].merge(result.tallies[kind])
    if not total.scores:
        why = "; ".join(f"'{task['task']}': {task['reason']}" for task in total.not_run)
        raise ValueError(f"no task can be run here ({why})")
    if not any(tally.tokens for tally in total.tallies.values()):
        total.tallies = texts
    return total


def _score_one(
    lm: CountingLM, entry: TaskEntry, manager: TaskManager, reason: str | None
) -> TaskScores:
    """Score an entry, unless there is a reason why it cannot be scored.

    Raises:
        CannotRun: With the reason.
        ValueError: See :func:`score`.
    """
    if reason is None and runs_programs(entry):
        reason = sandbox.reason_not_to_run()
    if reason is not None:
        raise CannotRun(reason)
    lm.reset()
    result = perplexity(lm, entry) if entry.is_perplexity else run_task(lm, entry, manager)
    if lm.long_requests:
        warnings.warn(
            f"task '{entry.task}': {lm.long_requests} of {lm.requests} prompts are longer than the "
            f"context window of {lm.max_length} tokens and cut",
            stacklevel=2,
        )
    return TaskScores(*result, lm.tallies)


def run_task(
    lm: CountingLM, entry: TaskEntry, manager: TaskManager
) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Scores and items of one task or group of lm-eval.

    Raises:
        CannotRun: It cannot be built here, or its headline metric is no mean over items.
        ValueError: It does not have the entry's metric.
    """
    group = load(entry, manager)
    with explained(entry.task):
        output = simple_evaluate(
            model=lm,
            tasks=[group],
            task_manager=manager,
            limit=entry.limit,
            apply_chat_template=entry.chat_template,
            bootstrap_iters=0,
            log_samples=True,
            confirm_run_unsafe_code=False,
            **SEEDS,
        )
    samples = output["samples"]
    tasks = {task.task_name: task for task in group.get_all_tasks()}
    values = output["results"][entry.task]
    better = {k: v for name in samples for k, v in output["higher_is_better"][name].items()}
    shots = max(output["n-shot"][name] for name in samples)
    metrics = [key for key in values if "," in key and "_stderr," not in key]
    primary = _headline(entry, metrics, listed_metrics(list(tasks.values())))
    check_targets(tasks, samples)
    frames, scores = [], []
    for key in metrics:
        metric, filter_name = key.split(",", 1)
        frame = _items(entry.task, samples, metric, filter_name, tasks, key == primary)
        # lm-eval gives no direction for a metric that a task's own code computes.
        value, more = float(values[key]), better.get(metric) is not False
        valueless = frame["value"].isna().any()
        if key == primary and (valueless or (more and abs(value - frame["value"].mean()) > CLOSE)):
            names = ", ".join(sorted({key.split(",")[0] for key in metrics} - {metric}))
            raise CannotRun(
                f"its metric '{metric}' is no mean over items, which the tables compare one by one "
                f"(other metrics: {names or 'none'})"
            )
        if not valueless:
            # Texts are stored once, with the headline metric.
            whole = frame.drop(columns="guess")
            frames.append(whole if key == primary else whole.drop(columns=SAMPLE))
        scores.append(
            {
                "task": entry.task,
                "metric": metric,
                "filter": filter_name,
                "primary": key == primary,
                "higher_is_better": more,
                "value": value,
                **_spread(frame["value"]),
                "chance": chance_of(entry, metric, frame),
                "shots": int(shots),
                "split": entry.split,
                "chat_template": entry.chat_template,
                "version": output["versions"][entry.task],
                "prompt_hash": one_hash(frame["prompt_hash"]),
                "doc_hash": one_hash(frame["doc_hash"]),
            }
        )
    return scores, pd.concat(frames, ignore_index=True)


def _headline(entry: TaskEntry, metrics: Sequence[str], listed: Collection[str] | None) -> str:
    """Key of the entry's metric, else of the first one whose direction a task file gives.

    Args:
        entry: Of the task.
        metrics: Keys of lm-eval: metric,filter.
        listed: See :func:`listed_metrics`.

    Raises:
        ValueError: There is none.
    """
    names = [key.split(",")[0] for key in metrics]
    check_metric(entry, names)
    for key, name in zip(metrics, names, strict=True):
        if entry.metric in (None, name) and (listed is None or name in listed):
            return key
    raise ValueError(
        f"task '{entry.task}' computes {', '.join(names) or 'no metric'}, but the metric_list of "
        f"its file names {', '.join(sorted(listed or ())) or 'none'}"
    )


def _items(
    task: str,
    samples: Mapping[str, list[dict[str, Any]]],
    metric: str,
    filter_name: str,
    tasks: Mapping[str, Any],
    headline: bool,
) -> pd.DataFrame:
    """One row per item, for one metric and filter.

    Args:
        task: Name of the entry.
        samples: Task -> lm-eval's log of its items. A group has several tasks; its items get new
            numbers from 0.
        metric: An item without a value of its own gets None.
        filter_name: Of lm-eval: what it extracts from a generated text.
        tasks: Task -> lm-eval's object.
        headline: Whether tables compare rows by this metric.

    Raises:
        ValueError: ``headline``, and the value of an item is the number NaN.
    """
    rows = [
        {
            "task": task,
            "metric": metric,
            "filter": filter_name,
            "subtask": name,
            "item": int(sample["doc_id"]),
            "value": _number(metric, sample[metric]),
            "choice": chosen(tasks[name], sample, metric),
            "guess": guess(tasks[name], sample, metric),
            "doc_hash": sample["doc_hash"],
            "prompt_hash": sample["prompt_hash"],
            SAMPLE: sample_text(tasks[name], sample, first=number == 0),
        }
        for name in sorted(samples)
        for number, sample in enumerate(
            sorted(samples[name], key=lambda sample: int(sample["doc_id"]))
        )
        if sample["filter"] == filter_name and metric in sample
    ]
    nan = sum(row["value"] is not None and math.isnan(row["value"]) for row in rows)
    if nan and headline:
        raise ValueError(
            f"metric '{metric}' is NaN for {nan} of {len(rows)} items of task '{task}'"
        )
    frame = pd.DataFrame(rows)
    if list(samples) == [task]:
        return frame.drop(columns="subtask")
    return frame.assign(item=range(len(frame)))


def chance_of(entry: TaskEntry, metric: str, items: pd.DataFrame) -> float | None:
    """The score of a guess: what the entry says, else the mean over items, by ``metric`` alone.

    None for a metric that is not known to say right or wrong, and for one that a function of the
    task's own makes: nothing says what a guess would get.
    The values of a run decide nothing, so that all runs have the same.
    """
    if entry.chance is not None:
        return entry.chance
    mean = float(items["guess"].mean(skipna=False))
    return mean if metric in RIGHT_OR_WRONG and not math.isnan(mean) else None


def _number(metric: str, value: Any) -> float | None:
    """Value of one item: a number, or nats per word or byte; None if it is neither."""
    if metric in PER_UNIT:
        loglikelihood, units = value
        # An empty document has no bytes and no nats.
        return float(-loglikelihood / max(units, 1))
    return None if isinstance(value, Sequence) else float(value)


def _spread(values: pd.Series[float]) -> dict[str, Any]:
    """Number of items n, number k of right ones if all are 0 or 1, standard error of the mean."""
    n = len(values)
    if values.isna().any():
        return {"n": n, "k": None, "stderr": None}
    binary = bool(values.isin([0.0, 1.0]).all())
    error = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    return {"n": n, "k": int(values.sum()) if binary else None, "stderr": error}


def pool(tallies: dict[str, Tally]) -> Tally:
    """One tally over all counted tokens."""
    total = Tally(next(iter(tallies.values())).ledger)
    for tally in tallies.values():
        total.merge(tally)
    return total


def rates_by_kind(tallies: dict[str, Tally]) -> dict[str, Any]:
    """Skip rates as JSON: of each kind of tokens, of both kinds of answer tokens, of all tokens."""
    answers = pool({kind: tallies[kind] for kind in ANSWER})
    kinds = {**tallies, "answer": answers, "all": pool(tallies)}
    return {kind: _rates(tally.rates()) for kind, tally in kinds.items() if tally.tokens}


def _rates(rates: Rates) -> dict[str, Any]:
    return {
        "tokens": rates.tokens,
        "skip": rates.skip,
        "skip_net": rates.skip_net,
        "skip_std": rates.skip_std,
    }
