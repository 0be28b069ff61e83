"""Sentences on what tables lack, and on records that differ in settings, code or machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workflows.records.record import Record
from workflows.report.results import Results, counted_tasks, falling_tasks
from workflows.stats.folders import shared_panels
from workflows.stats.lines import Panel

# A caution names so many rows; more are counted.
NAMED = 6
# Keys of a suite of which records hold nothing.
KEYS_OF_PARTS = "data", "backbones"
# Before and after the name of a part of the code, in the name of a setting.
CODE, FITTED = "code of ", " when fitted"
# Setting -> value -> rows.
Mixtures = dict[str, dict[Any, list[str]]]


def all_cautions(results: Results) -> list[str]:
    """All sentences on the tables of a suite: what they lack, and what differs in them."""
    return [*gap_cautions(results), *part_cautions(results.configs), *cautions(results.records)]


def gap_cautions(results: Results) -> list[str]:
    """Sentences on what tables lack: runs without a record, and tasks that do not count."""
    sentences = [f"No record yet: {', '.join(results.missing)}."] if results.missing else []
    if results.outdated:
        sentences.append(
            f"The suite now has other params for these runs: {', '.join(results.outdated)}."
        )
    if results.other_models:
        files = ", ".join(results.other_models)
        sentences.append(
            f"Times of an earlier model are left out: {files}; delete them to time again."
        )
    if results.incomplete:
        sentences.append(
            f"Not all cases were timed (see the logs): {', '.join(results.incomplete)}."
        )
    every = [*results.records, *results.repeats]
    rows: dict[tuple[str, str], list[str]] = {}
    for record in every:
        for missing in record.not_run:
            rows.setdefault((missing.task, missing.reason), []).append(record.row)
    rows_with_scores = {record.row for record in every if record.done}
    for (task, reason), names in rows.items():
        of = "" if set(names) == rows_with_scores else f" for {', '.join(dict.fromkeys(names))}"
        counted = "; the skip of rows that ran it counts its tokens" if of else ""
        sentences.append(f"{task} is in no table because it was not run{of}: {reason}{counted}.")
    if perplexities := falling_tasks(results.settings["retain_tasks"], every):
        sentences.append(
            f"Retain leaves out {', '.join(perplexities)}: of the headline metric lower is better."
        )
    several = len({panel.reference.backbone for panel in results.panels}) > 1
    tasks_of_suite = counted_tasks(results.settings["retain_tasks"], every)
    row = results.settings["reference_row"]
    for panel in results.panels:
        on = f" on {panel.reference.backbone}" if several else ""
        tasks = [task for task in tasks_of_suite if task not in panel.retain_tasks]
        if tasks:
            sentences.append(
                f"Retain{on} leaves out {', '.join(tasks)}: '{row}' solves none of its items."
            )
        if more := [task for task in panel.measure_tasks if task not in panel.retain_tasks]:
            sentences.append(
                f"Above chance, flips and changed answers{on} may count tasks that the Retain "
                f"lacks: {', '.join(more)}; measures.csv lists the tasks of each."
            )
    return list(dict.fromkeys(sentences))


def cautions(records: Sequence[Record]) -> list[str]:
    """Sentences on settings that differ, code that was not committed, and rows with one seed."""
    finished = [record for record in records if record.done]
    sentences = []
    for name, mixtures in _by_backbone(finished):
        sentences += [
            f"The records of '{name}' differ in {what}: {_list_rows(groups)}."
            for what, groups in mixtures.items()
            if not what.startswith(CODE)
        ]
        code = [what.removeprefix(CODE) for what in mixtures if what.startswith(CODE)]
        parts = [part for part in code if part.removesuffix(FITTED) not in {*code} - {part}]
        if parts:
            sentences.append(f"The records of '{name}' differ in the code of {', '.join(parts)}.")
    dirty = dict.fromkeys(record.row for record in finished if record.dirty)
    if dirty:
        sentences.append(f"Made from code that was not committed: {', '.join(dirty)}.")
    if alone := _one_seed(finished):
        sentences.append(
            f"One seed only: {alone}. Their own intervals cover other items, but not another seed; "
            "a difference covers seeds where the other row has several. No interval covers another "
            "kind of processor."
        )
    return sentences


def part_cautions(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on data and backbones in which the parts of a suite differ; records do not say it.

    Args:
        configs: Of the parts. A file counts by its name: parts may run on several machines.
    """
    specs_of: dict[str, list[dict[str, str]]] = {}
    for config in configs:
        for top in KEYS_OF_PARTS:
            for name, spec in config.get(top, {}).items():
                texts = {key: str(value).rsplit("/", 1)[-1] for key, value in spec.items()}
                specs_of.setdefault(f"{top}.{name}", []).append(texts)
    sentences = []
    for part, specs in specs_of.items():
        keys = dict.fromkeys(key for spec in specs for key in spec)
        apart = [key for key in keys if len({spec.get(key) for spec in specs}) > 1]
        forms = dict.fromkeys(
            ", ".join(f"{key} {spec[key]}" if key in spec else f"no {key}" for key in apart)
            for spec in specs
        )
        if apart:
            sentences.append(f"The parts of the suite differ in {part}: {'; '.join(forms)}.")
    return sentences


def code_differences(records: Sequence[Record]) -> list[str]:
    """What :func:`cautions` says of code, part by part: hashes and the rows of each."""
    finished = [record for record in records if record.done]
    return [
        f"{name}, {what}: {_list_rows(groups)}"
        for name, mixtures in _by_backbone(finished)
        for what, groups in mixtures.items()
        if what.startswith(CODE)
    ]


def folder_cautions(first: Sequence[Panel], second: Sequence[Panel]) -> Iterator[str]:
    """One sentence for every setting in which a line of both folders differs."""
    for one, two in shared_panels(first, second):
        theirs = {line.name: settings(line.first) for line in two.done}
        sentences = [
            f"The folders differ in {what}: {value} and {theirs[line.name].get(what)}."
            for line in one.done
            if line.name in theirs
            for what, value in settings(line.first).items()
            if value != theirs[line.name].get(what)
        ]
        yield from dict.fromkeys(sentences)


def _one_seed(records: Sequence[Record]) -> str:
    """Rows whose seed matters and that ran one seed at some target; which, if more at another."""
    seeds: dict[tuple[Any, ...], set[int]] = {}
    for record in records:
        if record.stochastic:
            seeds.setdefault(record.key[:-1], set()).add(record.seed)
    alone = [place for place, numbers in seeds.items() if len(numbers) == 1]
    if len(alone) == len(seeds) > 1:
        return "all rows that train or draw"
    several = {row for (_, row, _, _), numbers in seeds.items() if len(numbers) > 1}
    return _name_rows(
        [
            f"{row} at {budget:.0%}" + (f" ({match})" if match else "")
            if row in several and budget is not None
            else row
            for _, row, budget, match in alone
        ]
    )


def _by_backbone(records: Sequence[Record]) -> Iterator[tuple[str, Mixtures]]:
    """For each backbone, every setting with more than one value, and the rows of each value."""
    for name in dict.fromkeys(record.backbone.name for record in records):
        groups: Mixtures = {}
        for record in (record for record in records if record.backbone.name == name):
            for what, value in settings(record).items():
                groups.setdefault(what, {}).setdefault(value, []).append(record.row)
        yield name, {what: values for what, values in groups.items() if len(values) > 1}


def settings(record: Record) -> dict[str, Any]:
    """Settings that may change the last digits of a finished run: name in sentences -> value.

    Code is compared by file or folder, so that methods are not compared with each other.
    """
    evaluation, hardware = record.evaluation, record.hardware
    values = {
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
    return {what: value for what, value in values.items() if value is not None}


def _list_rows(groups: dict[Any, list[str]]) -> str:
    """``a (dense, lora), b (hero)``; long lists are counted."""
    return ", ".join(f"{value} ({_name_rows(rows)})" for value, rows in groups.items())


def _name_rows(rows: Sequence[str]) -> str:
    names = list(dict.fromkeys(rows))
    return ", ".join(names) if len(names) <= NAMED else f"{len(names)} rows"
