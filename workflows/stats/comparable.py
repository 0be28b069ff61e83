"""Which records may be compared in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from workflows.records import IDLE
from workflows.records.parts import Score
from workflows.records.record import Record

# Field of a score that must be equal in a column -> words for an error.
SAME_SCORE = {
    "prompt_hash": "on different prompts of",
    "split": "on different splits of",
    "n": "on different numbers of items of",
    "version": "with different versions of",
    "shots": "with different numbers of demonstrations of",
    "chat_template": "with and without a chat template on",
    "chance": "with different chances of",
    "higher_is_better": "with more and with less as better on",
}
# The same, in records that have it: older ones do not.
SAME_DOCUMENTS = {"doc_hash": "on different documents of"}
# Field of a headline score that must be equal for a task -> words for an error.
SAME_HEADLINE = {
    "metric": "by different headline metrics of",
    "filter": "with different filters of the headline metric of",
}


def check_comparable(records: Sequence[Record]) -> None:
    """Refuse records whose scores measure different things.

    Raises:
        ValueError: Headline metrics of a task, or splits, prompts, documents, items or task
            versions of a column differ, harness versions or ``share_prefix`` differ, one name
            stands for two backbones, texts of KL differ on a backbone, seeds of a row were fitted
            with different params, or a record does not say by which protocol its budget was met.
    """
    for record in records:
        _check_protocol(record)
    finished = [record for record in records if record.done]
    _check_seeds(finished)
    columns: dict[Any, tuple[Score, Record]] = {}
    for record in finished:
        for key, score, fields in _columns(record):
            first, other = columns.setdefault(key, (score, record))
            difference = score_difference(first, score, fields)
            if difference:
                raise ValueError(
                    f"rows '{other.row}' and '{record.row}' were scored {difference}; "
                    "score them again under one suite"
                )
    _refuse(finished, "harness versions (lm_eval)", lambda record: record.versions.get("lm_eval"))
    counted = "ways of counting a context of several answers (share_prefix)"
    batched = [record for record in finished if not record.evaluation.equal_lengths]
    _refuse(batched, counted, lambda record: record.evaluation.share_prefix)
    for name in dict.fromkeys(record.backbone.name for record in records):
        same = [record for record in records if record.backbone.name == name]
        _refuse(same, f"backbones under the name '{name}'", lambda record: record.backbone.hash)
        compared = [record for record in same if record.fidelity is not None]
        _refuse(
            compared, "texts of KL (data.fidelity)", lambda one: one.fidelity and one.fidelity.texts
        )


def _check_seeds(records: Sequence[Record]) -> None:
    """Runs of a line differ in their seeds alone; a param that one of them lacks is newer."""
    lines: dict[Any, Record] = {}
    for record in records:
        first = lines.setdefault(record.key[:-1], record)
        for name, ours, theirs in _shared_params(first, record):
            if ours != theirs:
                raise ValueError(
                    f"row '{record.row}' was fitted with {name} {ours} (seed {first.seed}) "
                    f"and {theirs} (seed {record.seed}); fit one of them again"
                )


def _shared_params(first: Record, record: Record) -> Iterator[tuple[str, Any, Any]]:
    """Name and both values of each param that two runs of a line have, their starts' too."""
    pairs = [(first.params, record.params)]
    if first.start is not None and record.start is not None:
        pairs.append((first.start.params, record.start.params))
    for ours, theirs in pairs:
        for name in sorted(ours.keys() & theirs.keys() - IDLE):
            yield name, ours[name], theirs[name]


def _columns(record: Record) -> Iterator[tuple[Any, Score, Mapping[str, str]]]:
    """Key of each column, the record's score in it, and the fields that must be equal there."""
    for task, score in record.headlines.items():
        yield task, score, SAME_HEADLINE
    for score in record.scores:
        key = (record.backbone.name, score.task, score.metric, score.filter)
        yield key, score, SAME_SCORE
        if score.doc_hash is not None:
            yield (*key, "documents"), score, SAME_DOCUMENTS


def _check_protocol(record: Record) -> None:
    """A dynamic row with a budget names its protocol; every other row names none."""
    applies = record.kind == "dynamic" and record.budget is not None
    if applies != (record.match is not None):
        statement = (
            "has no protocol (match), but needs pooled or split"
            if applies
            else f"has protocol '{record.match}', but a row of its kind has none"
        )
        raise ValueError(f"row '{record.row}' {statement}; fit it again")


def score_difference(
    first: Score, score: Score, fields: Mapping[str, str] = MappingProxyType(SAME_SCORE)
) -> str:
    """The first field in which two scores differ, in words after "were scored"; else empty."""
    for field, words in fields.items():
        values = getattr(first, field), getattr(score, field)
        if values[0] != values[1]:
            return f"{words} '{score.task}' ({values[0]} and {values[1]})"
    return ""


def _refuse(records: Sequence[Record], what: str, setting: Callable[[Record], Any]) -> None:
    for record in records:
        if setting(record) != setting(records[0]):
            raise ValueError(
                f"rows '{records[0].row}' and '{record.row}' have different {what}: "
                f"{setting(records[0])} and {setting(record)}; score them again"
            )


def code_by_part(records: Sequence[Record]) -> dict[str, list[str]]:
    """File or folder of the checkout -> hashes of its code in the records."""
    hashes: dict[str, set[str]] = {}
    for record in records:
        for part, code in [*record.code.items(), *(record.fit_code or {}).items()]:
            hashes.setdefault(part, set()).add(code)
    return {part: sorted(hashes[part]) for part in sorted(hashes)}
