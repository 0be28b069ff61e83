"""The data of the page's script, as JSON: lines of the tables and the details of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from methods import discover
from workflows.records import SAMPLE
from workflows.records.files import read_decisions
from workflows.records.record import Record
from workflows.report.display import line_id, short_name
from workflows.report.lead import without_twins
from workflows.report.published import Frames
from workflows.report.render import LATEX
from workflows.report.repeat import RepeatCommands
from workflows.report.results import Results, read_texts
from workflows.stats.lines import Line, Panel
from workflows.stats.speeds import with_speed

# Items won and lost with their texts: in a whole page, and at most per task of a run.
TEXTS, MOST = 4000, 10
# Characters of all routes in a page, and points of a curve.
ROUTES, POINTS = 3_000_000, 60
# Decisions with more characters are not in the page.
LONG = 400
AXES = {
    "skip": "skip over all scored tokens (%)",
    "skip_answer": "skip on answer tokens (%)",
    "skip_prompt": "skip on prompt tokens (%)",
    "skip_net": "net skip, added parameters charged (%)",
    "prefill": "speed of a prompt over dense",
    "decode": "speed of decoding over dense",
}
BESIDE = {
    "above_chance": "Above chance (%)",
    "flips": "flips (%)",
    "changed": "changed answers (%)",
    "kl": "KL (nats per token)",
    "agreement": "top-1 agreement (%)",
    "kl_answer": "KL on answers (nats per token)",
    "agreement_answer": "top-1 agreement on answers (%)",
}
NUMBERS = (
    "seeds", "skip", "skip_std", "skip_prompt", "skip_answer", "skip_net", "retain", "retain_std",
    "retain_low", "retain_high", "above_chance", "above_low", "above_high", "flips", "changed",
    "kl", "kl_low", "kl_high", "agreement", "kl_answer", "agreement_answer", "seed_std", "prefill",
    "decode",
)  # fmt: skip


def page_data(frames: Frames, results: Results | None = None) -> dict[str, Any]:
    """All data as JSON values.

    Args:
        frames: Of :func:`workflows.report.tables.make_frames`.
        results: Their records; None where only the frames are here.

    Returns:
        ``lines`` (those of the retain frame, their numbers as there), ``axes`` and ``measures`` of
        the figure, ``latex`` (escapes), ``runs`` (record by record, first seeds), ``run_of`` (line
        -> run), ``items`` (backbone -> task -> item -> texts), ``prompts`` (backbone -> task ->
        tokens that were routed).
    """
    lines = [
        line for match in dict.fromkeys(frames["retain"]["match"]) for line in _lines(frames, match)
    ]
    tasks = [name for name in frames["retain"].columns if ":" in name]
    data: dict[str, Any] = {
        "lines": lines,
        "axes": {name: label for name, label in AXES.items() if _has(lines, name)},
        "measures": {
            "retain": "Retain (%)",
            **{name: label for name, label in BESIDE.items() if _has(lines, name)},
            **{name: short_name(name) for name in tasks},
        },
        "latex": LATEX,
        "runs": {}, "run_of": {}, "items": {}, "prompts": {},
    }  # fmt: skip
    return data if results is None else data | _behind(results)


def _has(lines: list[dict[str, Any]], name: str) -> bool:
    """Whether a number is known of some line."""
    return any(line["numbers"].get(name) is not None for line in lines)


def _lines(frames: Frames, match: str) -> list[dict[str, Any]]:
    """The lines of one protocol; rows with the same weights are one line."""
    retain, speeds = frames["retain"], frames["speeds"]
    own = without_twins(retain[retain["match"] == match].reset_index(drop=True))
    names = set(discover())
    lines = []
    for line in with_speed(own, speeds[speeds["match"] == match]).to_dict("records"):
        numbers = {k: line[k] for k in line if k in NUMBERS or ":" in str(k)}
        lines.append(
            {
                "id": line_id(line),
                **{
                    k: line[k]
                    for k in ("backbone", "row", "title", "kind", "match", "note", "also")
                },
                "target": _value(line["target"]),
                "variant": line["row"] not in names,
                "numbers": {k: _value(v) for k, v in numbers.items()},
            }
        )
    return lines


def _value(value: Any) -> Any:
    """A plain number, or None where there is none; six digits suffice."""
    if value is None or pd.isna(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


def _behind(results: Results) -> dict[str, Any]:
    """Runs, items and prompts of the lines' first seeds."""
    files = {id(r): f for r, f in zip(results.records, results.files, strict=True)}
    data: dict[str, Any] = {"runs": {}, "run_of": {}, "items": {}, "prompts": {}}
    pairs = [(panel, line) for panel in results.panels for line in panel.done]
    most = max(1, min(MOST, TEXTS // (2 * sum(len(line.runs[0]) for _, line in pairs))))
    commands = RepeatCommands.of(results)
    texts: dict[Path, ItemTexts] = {}
    for panel, line in pairs:
        file = files[id(line.first)]
        name = file.parent.relative_to(results.folder).as_posix()
        data["run_of"][line_id(line.labels)] = name
        if name in data["runs"]:
            continue
        base = files[id(panel.reference.first)]
        if base not in texts:
            texts[base] = ItemTexts(base)
        texts_of = data["items"].setdefault(line.backbone, {})
        data["runs"][name] = {
            "file": f"{name}/record.json",
            **_record(line, file),
            "commands": commands.of_file(file),
            "items": _items(panel, line, ItemTexts(file), texts[base], most, texts_of),
        }
    _add_routes(pairs, data)
    return data


def _record(line: Line, file: Path) -> dict[str, Any]:
    """A record for the page: with the scores of all seeds and the decisions of the fit."""
    record, entries = line.first, line.first.to_json()
    scores = [
        {k: getattr(score, k) for k in ("task", "metric", "value", "k", "n")}
        | {"skip": {kind: rate.skip for kind, rate in score.rates.items()}}
        for score in record.headlines.values()
    ]
    names = ("row", "method", "params", "start", "seed", "fit", "rates", "layers", "commit")
    return _short(
        {
            **{k: entries[k] for k in names},
            "parameters": record.backbone.parameters,
            "units": [[u.layer, u.kind, u.parameters, u.executed] for u in record.units],
            "scores": scores,
            "seeds": [
                {"seed": r.seed, "skip": r.rates["all"].skip} | _seed_scores(r)
                for r in line.records
            ],
            "decisions": [
                shown_decision(name, value) for name, value in read_decisions(file).items()
            ],
        }
    )


def _seed_scores(record: Record) -> dict[str, float]:
    return {task: score.value for task, score in record.headlines.items()}


def _short(value: Any) -> Any:
    """The value with its fractions to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _short(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(part) for part in value]
    return value


def shown_decision(name: str, value: Any) -> dict[str, Any]:
    """One entry of decisions.json as it is shown.

    Returns:
        ``name`` with ``curves`` (key -> numbers, at most :data:`POINTS` of ``of``), ``bars`` (one
        number per place), or ``text``.
    """
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        keys = [k for k in value[0] if all(_is_number(one.get(k)) for one in value)]
        places = np.unique(np.linspace(0, len(value) - 1, min(len(value), POINTS)).astype(int))
        if len(value) > 1 and len(keys) > 1 and len(json.dumps(value)) > LONG:
            curves = {k: [value[place][k] for place in places.tolist()] for k in keys}
            return {"name": name, "of": len(value), "curves": curves}
    if isinstance(value, list) and 1 < len(value) <= POINTS and all(map(_is_number, value)):
        return {"name": name, "bars": value}
    text = json.dumps(_short(value))
    if len(text) > LONG:
        text = f"{len(value)} entries, in decisions.json"
    return {"name": name, "text": text}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class ItemTexts:
    """Texts of the items of a run: prompts and answers.

    Args:
        file: Its record.
    """

    def __init__(self, file: Path) -> None:
        self.of: dict[str, list[tuple[int, str]]] = {}
        for line in read_texts(file).sort_values("item").to_dict("records"):
            self.of.setdefault(line["task"], []).append((line["item"], line[SAMPLE]))

    def at(self, task: str, place: int) -> tuple[int, dict[str, Any]] | None:
        """Number and texts of an item by its place among a task's values; None without texts."""
        if task not in self.of:
            return None
        item, sample = self.of[task][place]
        return item, json.loads(sample)


def _items(
    panel: Panel,
    line: Line,
    own: ItemTexts,
    theirs: ItemTexts,
    most: int,
    questions: dict[str, Any],
) -> dict[str, Any]:
    """Task -> items won from and lost to the reference: how many, and the first with texts.

    Args:
        panel: Whose reference is meant.
        line: Its first run.
        own: Texts of that run.
        theirs: Of the reference.
        most: Texts of won and of lost items each.
        questions: Task -> item -> its prompt and the reference's answer; items are added.
    """
    items: dict[str, Any] = {}
    base = panel.reference.runs[0]
    sides: dict[str, Callable[[Any], Any]] = {"won": lambda x: x > 0, "lost": lambda x: x < 0}
    for task, values in line.runs[0].items() if line is not panel.reference else ():
        gain, items[task] = values - base[task], {}
        for side, is_side in sides.items():
            places = np.flatnonzero(is_side(gain)).tolist()
            pairs = [(own.at(task, p), theirs.at(task, p)) for p in places[:most]]
            answers_of = [(mine, question) for mine, question in pairs if mine and question]
            for _, (item, question) in answers_of:
                questions.setdefault(task, {})[item] = question
            answers = {item: _answer(mine) for (item, mine), _ in answers_of}
            items[task][side] = {"number": len(places), "items": answers}
    return items


def _answer(sample: Mapping[str, Any]) -> Any:
    """Scores of the choices, or the text that was written."""
    return sample.get("scores", sample.get("text"))


def _add_routes(pairs: Sequence[tuple[Panel, Line]], data: dict[str, Any]) -> None:
    """Add the prompts, and per run what ran for them, as many as there is room for."""
    runs = {data["run_of"][line_id(line.labels)]: line for _, line in pairs}
    lines = {name: line for name, line in runs.items() if line.first.routes}
    sizes = [len("".join(route.executed)) for line in lines.values() for route in line.first.routes]
    most = max(1, ROUTES * len(sizes) // max(1, sum(sizes)) // max(1, len(lines)))
    for name, line in lines.items():
        prompts = data["prompts"].setdefault(line.backbone, {})
        routes = data["runs"][name]["routes"] = {}
        for route in line.first.routes[:most]:
            prompt = {"tokens": route.tokens, "first_answer": route.first_answer}
            # All rows of a backbone have the same tokens, unless its tokenizer changed in between.
            if prompts.setdefault(route.task, prompt) == prompt:
                routes[route.task] = route.executed
