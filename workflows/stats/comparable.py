"""Which records may stand in one table, and what a reader must be told of those that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from workflows.records.record import Record, Score

# Rows that a caution names before it counts them.
NAMED = 6
# Around the name of a part of the code, among settings.
CODE, FITTED = "code of ", " when fitted"
# Setting -> value -> rows.
Mixtures = dict[str, dict[Any, list[str]]]
# Per score: what must be equal, or two numbers of one column measure different things.
SAME_SCORE = {
    "prompt_hash": "on different prompts of",
    "split": "on different splits of",
    "n": "on different numbers of items of",
    "version": "with different versions of",
    "shots": "with different numbers of demonstrations of",
    "chat_template": "with and without a chat template on",
    "higher_is_better": "with more and with less as better on",
}
# Per task: what must be equal of its headline, or one column holds two metrics.
SAME_HEADLINE = {
    "metric": "by different headline metrics of",
    "filter": "with different filters of the headline metric of",
}


def check_comparable(records: Sequence[Record]) -> None:
    """Refuse records whose scores do not measure the same thing.

    Raises:
        ValueError: Headline metrics of a task, or splits, prompts, items or task versions of a
            column differ, harness versions or ``share_prefix`` differ, one name stands for two
            backbones, or a record does not say by which protocol its budget was met.
    """
    for record in records:
        _check_protocol(record)
    done = [record for record in records if record.done]
    seen: dict[Any, tuple[Score, Record]] = {}
    for record in done:
        for key, score, fields in _columns(record):
            known, other = seen.setdefault(key, (score, record))
            difference = score_difference(known, score, fields)
            if difference:
                raise ValueError(
                    f"rows '{other.row}' and '{record.row}' were scored {difference}; "
                    "evaluate them again under one suite"
                )
    _refuse(done, "harness versions (lm_eval)", lambda record: record.versions.get("lm_eval"))
    counted = "ways of counting a context of several answers (share_prefix)"
    _refuse(done, counted, lambda record: record.evaluation.share_prefix)
    for name in dict.fromkeys(record.backbone.name for record in records):
        same = [record for record in records if record.backbone.name == name]
        _refuse(same, f"backbones under the name '{name}'", lambda record: record.backbone.hash)


def _columns(record: Record) -> Iterator[tuple[Any, Score, Mapping[str, str]]]:
    """Key of each column with the record's score there, and what its scores must share."""
    for task, score in record.headlines.items():
        yield task, score, SAME_HEADLINE
    for score in record.scores:
        name = record.backbone.name
        yield (name, score.task, score.metric, score.filter), score, SAME_SCORE


def _check_protocol(record: Record) -> None:
    """A row that decides per token meets a budget by one protocol; every other run names none."""
    applies = record.kind == "dynamic" and record.budget is not None
    if applies != (record.match is not None):
        said = "says no protocol of matching" if applies else f"says '{record.match}'"
        raise ValueError(
            f"row '{record.row}' {said} (match), {'pooled or split' if applies else 'null'} "
            "belongs there; fit it again"
        )


def score_difference(
    known: Score, score: Score, fields: Mapping[str, str] = MappingProxyType(SAME_SCORE)
) -> str:
    """What two scores do not share, as words behind "were scored"; mostly empty."""
    for field, words in fields.items():
        values = getattr(known, field), getattr(score, field)
        if values[0] != values[1]:
            return f"{words} '{score.task}' ({values[0]} and {values[1]})"
    return ""


def _refuse(records: Sequence[Record], what: str, read: Callable[[Record], Any]) -> None:
    for record in records:
        if read(record) != read(records[0]):
            raise ValueError(
                f"rows '{records[0].row}' and '{record.row}' have different {what}: "
                f"{read(records[0])} and {read(record)}; evaluate them again"
            )


def cautions(records: Sequence[Record]) -> list[str]:
    """One sentence for everything that a table of these records cannot tell by itself.

    Settings that differ between records and may move last digits, code that was not committed, and
    rows whose seed matters and that ran under one.
    """
    done = [record for record in records if record.done]
    sentences = []
    for name, mixtures in _by_backbone(done):
        sentences += [
            f"The records of '{name}' differ in {what}: {_listed(groups)}."
            for what, groups in mixtures.items()
            if not what.startswith(CODE)
        ]
        if parts := code_parts({what: _sizes(groups) for what, groups in mixtures.items()}):
            sentences.append(f"The records of '{name}' differ in code: {parts}.")
    dirty = dict.fromkeys(record.row for record in done if record.dirty)
    if dirty:
        sentences.append(f"Made from code that was not committed: {', '.join(dirty)}.")
    if alone := _one_seed(done):
        sentences.append(
            f"One seed only: {alone}. Intervals, ranks and ≈ that rest on them say what other "
            "items would do, not what another seed or another kind of CPU would."
        )
    return sentences


def code_differences(records: Sequence[Record]) -> list[str]:
    """What :func:`cautions` says of code, part by part: hashes and the rows of each."""
    done = [record for record in records if record.done]
    return [
        f"{name}, {what}: {_listed(groups)}"
        for name, mixtures in _by_backbone(done)
        for what, groups in mixtures.items()
        if what.startswith(CODE)
    ]


def code_parts(sizes: Mapping[str, Sequence[int]]) -> str:
    """``methods/core, workflows/demo between 23 and 7 rows``; empty where no code differs.

    Args:
        sizes: Setting -> rows of each of its values; what is no code is left out.
    """
    found: dict[str, list[str]] = {}
    for what, (*most, last) in sizes.items():
        part = what.removeprefix(CODE)
        between = f"between {', '.join(map(str, most))} and {last} rows"
        told = part.removesuffix(FITTED) in found.get(between, [])
        if what.startswith(CODE) and not told:
            found.setdefault(between, []).append(part)
    return "; ".join(f"{', '.join(parts)} {between}" for between, parts in found.items())


def code_by_part(records: Sequence[Record]) -> dict[str, list[str]]:
    """File or folder of the checkout -> hashes of what stood there when records were made."""
    found: dict[str, set[str]] = {}
    for record in records:
        for part, code in [*record.code.items(), *(record.fit_code or {}).items()]:
            found.setdefault(part, set()).add(code)
    return {part: sorted(found[part]) for part in sorted(found)}


def _one_seed(records: Sequence[Record]) -> str:
    """The rows whose seed matters and that ran under a single one at some target."""
    seeds: dict[tuple[str, str, float | None, str | None], set[int]] = {}
    for record in records:
        if record.stochastic:
            key = record.backbone.name, record.row, record.budget, record.match
            seeds.setdefault(key, set()).add(record.seed)
    alone = [row for (_, row, _, _), found in seeds.items() if len(found) == 1]
    return "all rows that train or draw" if len(alone) == len(seeds) > 1 else _named(alone)


def _by_backbone(records: Sequence[Record]) -> Iterator[tuple[str, Mixtures]]:
    """Of each backbone every setting with more than one value, and the rows of each value."""
    for name in dict.fromkeys(record.backbone.name for record in records):
        groups: Mixtures = {}
        for record in (record for record in records if record.backbone.name == name):
            for what, value in settings(record).items():
                groups.setdefault(what, {}).setdefault(value, []).append(record.row)
        yield name, {what: values for what, values in groups.items() if len(values) > 1}


def _sizes(groups: Mapping[Any, Sequence[str]]) -> list[int]:
    return [len(set(rows)) for rows in groups.values()]


def settings(record: Record) -> dict[str, Any]:
    """What may move last digits of a finished run, by the name it has in sentences.

    Code goes by file or folder, so that a method's own is held against that method's only.
    """
    evaluation, hardware = record.evaluation, record.hardware
    found = {
        **{f"{CODE}{part}": code for part, code in record.code.items()},
        **{f"{CODE}{part}{FITTED}": code for part, code in (record.fit_code or {}).items()},
        "backbone": record.backbone.hash,
        "batch size": evaluation.batch_size,
        "context window": evaluation.max_length,
        "end tokens": ", ".join(map(str, evaluation.end_tokens)) or None,
        "device": evaluation.device.split(":")[0],
        "processor": hardware.get("processor"),
        "accelerator": hardware.get("accelerator"),
        "instruction set": hardware.get("cpu_capability"),
        **{f"version of {name}": number for name, number in record.versions.items()},
    }
    return {what: value for what, value in found.items() if value is not None}


def _listed(groups: dict[Any, list[str]]) -> str:
    """``a (dense, lora), b (hero)``; long lists are counted."""
    return ", ".join(f"{value} ({_named(rows)})" for value, rows in groups.items())


def _named(rows: Sequence[str]) -> str:
    names = list(dict.fromkeys(rows))
    return ", ".join(names) if len(names) <= NAMED else f"{len(names)} rows"
