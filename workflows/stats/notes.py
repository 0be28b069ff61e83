"""The note of a line in the table of Retain: what a reader should know beside its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from workflows.records.record import Record
from workflows.stats.budget import (
    TEXT_TOLERANCE,
    far_in_training,
    met,
    misses,
    must_skip,
    one_way,
    task_mean,
    text_skip,
)
from workflows.stats.lines import Line, Panel


def note(panel: Panel, line: Line) -> str:
    """The note of a line: budget, candidates, causality, one-way gates, code."""
    sentences = [
        missed(line, panel.retain_tasks),
        _ended_training(line),
        _off_on_texts(line),
    ]
    words = [sentence for sentence in sentences if sentence]
    if share := must_skip(line.first):
        words.append(f"must skip {100 * share:.0f} % of its candidates")
    # Only models whose decisions pads would change are scored in batches of one length.
    if line.first.evaluation.equal_lengths:
        words.append("not causal")
        if panel.reference.first.evaluation.share_prefix and not line.first.evaluation.share_prefix:
            words.append("contexts count once per answer")
    if stuck := sum(one_way(record.units) for record in line.records):
        words.append(f"gates all one way{_of(line, stuck)}")
    if any(record.dirty for record in line.records):
        words.append("code not committed")
    return "; ".join(words)


def twins(panel: Panel, line: Line) -> list[str]:
    """Titles of other lines with the same weights, and their target if it differs."""
    twins = []
    for other in panel.done:
        if other is not line and None not in line.weights and other.weights == line.weights:
            target = "" if other.budget in (None, line.budget) else f" at {100 * other.budget:g} %"
            twins.append(f"{other.first.title}{target}")
    return twins


def missed(line: Line, retain_tasks: Sequence[str]) -> str:
    """By how much runs missed their budget; empty if all met it. Each run counts by itself.

    Under ``split`` a row that meets the budget on answers, where all tasks weigh alike, can be off
    it over all tokens, and as a mean over tasks; that is told too.
    """
    misses_of: dict[str, list[float]] = {}
    for record in line.records:
        for kind, excess in _all_misses(record, retain_tasks).items():
            who = "" if kind == "all" else f"{kind} "
            side = "over" if excess > 0 else "under"
            misses_of.setdefault(f"{who}{side} budget by", []).append(abs(excess))
    return "; ".join(
        f"{words} {_most(excesses)}{_of(line, len(excesses))}"
        for words, excesses in sorted(misses_of.items())
    )


def _all_misses(record: Record, retain_tasks: Sequence[str]) -> dict[str, float]:
    """Kind of token or of mean -> skip - budget of a run, a fraction, where it was missed."""
    found, budget = misses(record, retain_tasks), record.budget
    if record.match != "split" or budget is None:
        return found
    rates = {
        "all tokens": record.rates["all"].skip,
        "mean over tasks": task_mean(record, retain_tasks, "all"),
    }
    return found | {
        kind: rate - budget
        for kind, rate in rates.items()
        if rate is not None and not met(budget, rate)
    }


def _most(fractions: Sequence[float]) -> str:
    """The largest in percent, with ``up to`` if they differ."""
    least, most = (f"{100 * value:.1f}" for value in (min(fractions), max(fractions)))
    return most if least == most else f"up to {most}"


def _ended_training(line: Line) -> str:
    """Where training ended, in the run that ended farthest from its budget; else empty."""
    far = [(record, skips) for record in line.records if (skips := far_in_training(record))]
    if not far:
        return ""
    budget = line.budget or 0.0
    record, skips = max(far, key=lambda run: max(abs(skip - budget) for skip in run[1].values()))
    of = {"pooled": "", "prompt": " of prompts", "answer": " of answer tokens"}
    text = " and ".join(f"{100 * skip:.1f} % skip{of[kind]}" for kind, skip in skips.items())
    if record.fit is not None and record.fit.threshold is not None:
        text += f", threshold {record.fit.threshold:.2f}"
    which = f" (worst of {len(far)} such runs)" if len(far) > 1 else _of(line, 1)
    return f"ended training at {text}{which}"


def _off_on_texts(line: Line) -> str:
    """The skips where KL is read that are far from the budget: nothing matches them there."""
    skips = {"": text_skip(line.records), " on answers": text_skip(line.records, "answer")}
    far = {
        kind: skip
        for kind, skip in skips.items()
        if skip is not None and not met(line.budget, skip, TEXT_TOLERANCE)
    }
    return "; ".join(f"KL{kind} at {100 * skip:.1f} % skip" for kind, skip in far.items())


def _of(line: Line, runs: int) -> str:
    """How many runs of a line a note is about; empty if all."""
    return "" if runs == len(line.records) else f" in {runs} of {len(line.records)} runs"
