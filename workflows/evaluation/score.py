"""Scoring a loaded model: tasks through lm-eval, text files by perplexity; frames and numbers."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import torch
from lm_eval.tasks import TaskManager
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from methods.core.model.ledger import Rates, Tally
from workflows.evaluation import sandbox
from workflows.evaluation.harness import ANSWER, KINDS, CountingLM, simple_evaluate
from workflows.evaluation.kept import KeptTasks
from workflows.evaluation.loading import CannotRun, explained, load
from workflows.evaluation.stock import stock_names
from workflows.evaluation.taskfiles import check_files, read_index
from workflows.evaluation.tasklist import OWN_TASKS, TaskEntry, foreign
from workflows.evaluation.traces import sample_text
from workflows.records import SAMPLE
from workflows.runtime.files import read_text

SEEDS = {
    "random_seed": 0,
    "numpy_random_seed": 1234,
    "torch_random_seed": 1234,
    "fewshot_random_seed": 1234,
}
# Metrics whose items are pairs: a log-likelihood, and the words or bytes that it is of.
PER_UNIT = ("word_perplexity", "byte_perplexity", "bits_per_byte")

# How far the mean of items may be from the value that lm-eval made of them.
CLOSE = 1e-6

Found = tuple[list[dict[str, Any]], pd.DataFrame, dict[str, Tally]]


@dataclass
class Scored:
    """Scores of one model.

    Args:
        scores: One mapping per task and metric.
        items: One line per task, item, metric: what paired statistics need.
        tallies: Counted tokens per kind, pooled over tasks.
        not_run: ``task`` and ``reason`` of each that could not be scored here.
    """

    scores: list[dict[str, Any]] = field(default_factory=list)
    items: list[pd.DataFrame] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    not_run: list[dict[str, str]] = field(default_factory=list)


def score(
    lm: CountingLM,
    entries: Sequence[TaskEntry],
    task_folders: Sequence[Path],
    kept: KeptTasks | None = None,
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> Scored:
    """Score every entry, one lm-eval call per task.

    One call per task keeps routing statistics apart and lets each task have its own number of
    demonstrations and its own template.

    Args:
        lm: The model under the harness.
        entries: What to score.
        task_folders: Folders of own tasks beside this project's.
        kept: Where tasks that were scored before lie, and this one's are put.
        reasons: Task -> why it cannot be scored, as far as known before.

    Raises:
        ValueError: A metric is not among the task's, a task has no items, or none can be run.
    """
    manager = task_manager(entries, task_folders)
    result = Scored(tallies={kind: Tally(lm.ledger) for kind in KINDS})
    for entry in tqdm(entries, desc="tasks"):
        found = None if kept is None else kept.read(entry)
        if found is None:
            try:
                found = _score_one(lm, entry, manager, reasons.get(entry.task))
            except CannotRun as error:
                result.not_run.append({"task": entry.task, "reason": str(error)})
                continue
            if kept is not None:
                kept.write(entry, *found)
        scores, items, tallies = found
        result.scores += [s | {"rates": rates_by_kind(tallies)} for s in scores]
        result.items.append(items)
        for kind in KINDS:
            result.tallies[kind].merge(tallies[kind])
    if not result.scores:
        told = "; ".join(f"'{task['task']}': {task['reason']}" for task in result.not_run)
        raise ValueError(f"no task can be run here ({told})")
    return result


def _score_one(lm: CountingLM, entry: TaskEntry, manager: TaskManager, reason: str | None) -> Found:
    """Scores, items and tallies of an entry; a reason against it holds before anything runs."""
    if reason is None and entry.runs_programs:
        reason = sandbox.reason_not_to_run()
    if reason is not None:
        raise CannotRun(reason)
    lm.reset()
    run = perplexity(lm, entry) if entry.is_perplexity else run_task(lm, entry, manager)
    if lm.cut:
        warnings.warn(
            f"task '{entry.task}': {lm.cut} of {lm.asked} prompts are longer than the context "
            f"window of {lm.max_length} tokens and cut",
            stacklevel=2,
        )
    return (*run, lm.tallies)


def task_manager(entries: Sequence[TaskEntry], task_folders: Sequence[Path]) -> TaskManager:
    """Knows the tasks here, and those of lm-eval beside the ones that entries name.

    To read all of lm-eval's takes many seconds; only a group may have members anywhere among them,
    and a tag, which an own group may list.
    """
    folders = [OWN_TASKS, *task_folders]
    for folder in folders:
        check_files(folder)
    others = foreign(entries, read_index(folders))
    stock = stock_names(tuple(others))
    tag = any(name not in stock and not defined for name, defined in others.items())
    every = tag or any(found.group for found in stock.values())
    beside = set() if every else {found.folder for found in stock.values()}
    return TaskManager(
        include_path=[str(folder) for folder in (*sorted(beside), *folders)],
        include_defaults=every,
    )


def run_task(
    lm: CountingLM, entry: TaskEntry, manager: TaskManager
) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """One lm-eval task or group: its metrics and one line per item and metric.

    Raises:
        CannotRun: It cannot be built here, or its headline metric has no value per item.
        ValueError: It has no such metric.
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
    values = output["results"][entry.task]
    better = {k: v for name in samples for k, v in output["higher_is_better"][name].items()}
    shots = max(output["n-shot"][name] for name in samples)
    metrics = [key for key in values if "," in key and "_stderr," not in key]
    headline = entry.metric or metrics[0].split(",")[0]
    if headline not in {key.split(",")[0] for key in metrics}:
        names = ", ".join(sorted({key.split(",")[0] for key in metrics}))
        raise ValueError(f"task '{entry.task}' has no metric '{headline}' (it has: {names})")
    frames, scores = [], []
    primary = next(key for key in metrics if key.split(",")[0] == headline)
    for key in metrics:
        metric, chosen = key.split(",", 1)
        frame = _items(entry.task, samples, metric, chosen)
        # lm-eval knows no direction of a metric that is a task's own and says none.
        value, more = float(values[key]), better.get(metric) is not False
        valueless = frame["value"].isna().any()
        if key == primary and (valueless or (more and abs(value - frame["value"].mean()) > CLOSE)):
            names = ", ".join(sorted({key.split(",")[0] for key in metrics} - {metric}))
            raise CannotRun(
                f"its metric '{metric}' is no mean over items, which the tables compare one by one "
                f"(other metrics: {names or 'none'})"
            )
        if not valueless:
            # Texts stand once, beside the headline metric.
            frames.append(frame if key == primary else frame.drop(columns=SAMPLE))
        scores.append(
            {
                "task": entry.task,
                "metric": metric,
                "filter": chosen,
                "primary": key == primary,
                "higher_is_better": more,
                "value": value,
                **_spread(frame["value"]),
                "shots": int(shots),
                "split": entry.split,
                "chat_template": entry.chat_template,
                "version": output["versions"][entry.task],
                "prompt_hash": _digest(frame["prompt_hash"]),
            }
        )
    return scores, pd.concat(frames, ignore_index=True)


def _items(
    task: str, samples: Mapping[str, list[dict[str, Any]]], metric: str, chosen: str
) -> pd.DataFrame:
    """One line per item of one metric and filter; those of a group are numbered through.

    Args:
        task: Name of the entry.
        samples: Task -> what lm-eval kept of its items; several of a group.
        metric: Its values are NaN where an item has none of its own.
        chosen: The filter.
    """
    rows = [
        {
            "task": task,
            "metric": metric,
            "filter": chosen,
            "subtask": name,
            "item": int(sample["doc_id"]),
            "value": _number(metric, sample[metric]),
            "doc_hash": sample["doc_hash"],
            "prompt_hash": sample["prompt_hash"],
            SAMPLE: sample_text(sample, first=number == 0),
        }
        for name in sorted(samples)
        for number, sample in enumerate(
            sorted(samples[name], key=lambda sample: int(sample["doc_id"]))
        )
        if sample["filter"] == chosen and metric in sample
    ]
    frame = pd.DataFrame(rows)
    if list(samples) == [task]:
        return frame.drop(columns="subtask")
    return frame.assign(item=range(len(frame)))


def _number(metric: str, value: Any) -> float:
    """Value of one item: of a likelihood, nats per word or byte; NaN of what is no number."""
    if metric in PER_UNIT:
        loglikelihood, units = value
        # An empty document has no byte, and no nats to share among them.
        return float(-loglikelihood / max(units, 1))
    return math.nan if isinstance(value, Sequence) else float(value)


def _spread(values: pd.Series[float]) -> dict[str, Any]:
    """Items n, successes k where items are right or wrong, and the standard error of the mean."""
    n = len(values)
    if values.isna().any():
        return {"n": n, "k": None, "stderr": None}
    binary = bool(values.isin([0.0, 1.0]).all())
    error = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    return {"n": n, "k": int(values.sum()) if binary else None, "stderr": error}


def perplexity(lm: CountingLM, entry: TaskEntry) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Perplexity per token of a text file, in windows that do not overlap.

    The text is tokenised once and cut into windows of the context length; each window's first
    token is given, every other is predicted. exp of the mean negative log-likelihood.

    Raises:
        ValueError: The text is shorter than two tokens.
    """
    text = read_text(Path(str(entry.file)))
    ids = torch.tensor(lm.tok_encode(text))
    windows = [w for w in ids.split(lm.max_length) if len(w) > 1][: entry.limit]
    if not windows:
        raise ValueError(f"text file {entry.file} holds fewer than two tokens")
    lines = []
    for number, window in enumerate(tqdm(windows, desc=entry.task, leave=False)):
        lm.log.passes.clear()
        with torch.no_grad():
            logits = lm.model(window[None].to(lm.device)).logits[0, :-1].float()
        loss = cross_entropy(logits, window[1:].to(lm.device), reduction="sum").item()
        executed = lm.log.passes[-1]
        lm.tallies["prompt"].add(None if executed is None else executed[0], len(window))
        lines.append(
            {
                "task": entry.task,
                "metric": "perplexity",
                "filter": "none",
                "item": number,
                "value": loss / (len(window) - 1),
                "doc_hash": hashlib.sha256(window.numpy().tobytes()).hexdigest(),
                "tokens": len(window) - 1,
            }
        )
    frame = pd.DataFrame(lines)
    frame["prompt_hash"] = frame["doc_hash"]
    tokens = int(frame["tokens"].sum())
    mean = float((frame["value"] * frame["tokens"]).sum() / tokens)
    described = {
        "task": entry.task,
        "metric": "perplexity",
        "filter": "none",
        "primary": True,
        "higher_is_better": False,
        "value": math.exp(mean),
        "n": tokens,
        "k": None,
        "stderr": None,
        "shots": 0,
        "split": "text",
        "chat_template": False,
        "version": 1,
        "prompt_hash": _digest(frame["prompt_hash"]),
    }
    return [described], frame.drop(columns="tokens")


def pool(tallies: dict[str, Tally]) -> Tally:
    """All counted tokens of a run in one tally."""
    pooled = Tally(next(iter(tallies.values())).ledger)
    for tally in tallies.values():
        pooled.merge(tally)
    return pooled


def rates_by_kind(tallies: dict[str, Tally]) -> dict[str, Any]:
    """Skip rates as JSON: over all counted tokens, per kind, and of the answer kinds together."""
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


def _digest(hashes: pd.Series[str]) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]
