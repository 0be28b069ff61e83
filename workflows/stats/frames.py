"""The frames that become tables. Numbers are percent, except in the frame of scores: fractions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workflows.records.record import Record
from workflows.stats.budget import (
    prompt_skip,
    task_mean,
    text_skip,
)
from workflows.stats.distances import KL, SCALES
from workflows.stats.lines import Line, Panel
from workflows.stats.measures import ABOVE, ABOVE_RETAIN
from workflows.stats.notes import missed, note, twins
from workflows.stats.resample import RETAIN
from workflows.stats.sampling import Sample, interval

LEAD = [
    "backbone", "target", "match", "row", "title", "kind", "seeds", "skip", "skip_std",
    "skip_prompt", "skip_answer", "skip_net", "skip_authors", "retain", "retain_std",
    "seed_std", "retain_low", "retain_high", "above_chance", "above_low", "above_high", "flips",
    "changed",
]  # fmt: skip
# Columns that only a suite with texts for it has.
DISTANCES = ["kl", "kl_low", "kl_high", "agreement", "kl_answer", "agreement_answer"]


def retain_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """One line per (backbone, target, protocol, row).

    Returns:
        The columns of ``LEAD``, those of ``DISTANCES`` that any line has, one column
        ``task:metric`` per scored task, ``same_weights`` (titles of other lines, split by ``; ``)
        and ``note``. ``seed_std`` is empty: it needs runs of another suite.
    """
    frame = pd.DataFrame([_retain_line(panel, line) for panel in panels for line in panel.lines])
    tasks = [name for name in frame.columns if ":" in name]
    distances = [name for name in DISTANCES if name in frame]
    full = frame.reindex(columns=[*LEAD, *distances, *tasks, "same_weights", "note"])
    numbers = [*LEAD[LEAD.index("skip") :], "target", *distances, *tasks]
    return full.assign(**{name: full[name].astype(float).round(4) for name in numbers})


def protocol_column(retain: pd.DataFrame) -> pd.Series[Any]:
    """Column ``match`` of the retain frame, empty for lines without a protocol."""
    return retain["match"].where((retain["kind"] == "dynamic") & retain["target"].notna())


def _retain_line(panel: Panel, line: Line) -> dict[str, Any]:
    labels = line.labels | {"kind": line.first.kind, "seeds": len(line.records)}
    if not line.done:
        return labels | {"note": f"not applicable: {line.first.reason}"}
    sample = panel.samples[RETAIN][line.name]
    low, high = interval(sample.draws)
    return labels | {
        **_skips(panel, line),
        "skip_net": _mean(run.rates["all"].skip_net for run in line.records),
        "skip_authors": _mean(run.skip_authors for run in line.records),
        "retain": 100 * sample.value,
        "retain_std": _deviation(line, sample.points.tolist()),
        "retain_low": 100 * low,
        "retain_high": 100 * high,
        **_beside(panel, line),
        **_distances(panel, line),
        **_score_columns(line),
        "same_weights": "; ".join(twins(panel, line)),
        "note": note(panel, line),
    }


def _beside(panel: Panel, line: Line) -> dict[str, float]:
    """The measures beside Retain in percent, with the interval of Above chance."""
    samples = {name: by_line[line.name] for name, by_line in panel.measures.samples.items()}
    columns = {name: 100 * sample.value for name, sample in samples.items()}
    if ABOVE in samples:
        low, high = interval(samples[ABOVE].draws)
        columns |= {"above_low": 100 * low, "above_high": 100 * high}
    return columns


def _distances(panel: Panel, line: Line) -> dict[str, float]:
    """KL (nats per token) with its interval, agreement (percent); nothing if not compared."""
    by_line = {name: of[line.name] for name, of in panel.distances.items() if line.name in of}
    columns = {name: SCALES[name] * sample.value for name, sample in by_line.items()}
    if KL in by_line:
        columns["kl_low"], columns["kl_high"] = interval(by_line[KL].draws)
    return columns


def measure_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """Every measure beside Retain, one line per row and measure; percent, KL in nats per token.

    Columns: backbone, target, match, row, title, measure (see measures.py and distances.py), value,
    std (over seeds), low, high (95 % interval), tasks (of the mean), left_out (tasks that may enter
    and do not; of KL and agreement neither, which are over texts), small_leads (of Above chance:
    resamples that divided by a quarter of a lead).
    """
    lines = []
    for panel in panels:
        small = panel.measures.small_leads
        for name, by_line in panel.measures.samples.items():
            tasks = panel.measures.tasks[name]
            may = panel.retain_tasks if name == ABOVE_RETAIN else panel.measure_tasks
            means = {
                "tasks": ", ".join(tasks),
                "left_out": ", ".join(task for task in may if task not in tasks),
                "small_leads": 100 * small[name] if name in small else None,
            }
            lines += [_measure_line(n, name, by_line[n.name]) | means for n in panel.done]
        for name, by_line in panel.distances.items():
            compared = [line for line in panel.done if line.name in by_line]
            lines += [_measure_line(n, name, by_line[n.name], SCALES[name]) for n in compared]
    columns = (
        "backbone target match row title measure value std low high tasks left_out small_leads"
    )
    return pd.DataFrame(lines, columns=columns.split())


def _measure_line(line: Line, name: str, sample: Sample, scale: float = 100) -> dict[str, Any]:
    low, high = interval(sample.draws)
    return line.labels | {
        "measure": name,
        "value": scale * sample.value,
        "std": _deviation(line, sample.points.tolist(), scale),
        "low": scale * low,
        "high": scale * high,
    }


def _skips(panel: Panel, line: Line) -> dict[str, float | None]:
    """Realised skip over all, prompt and answer tokens, in percent, and deviations over seeds."""
    kinds: dict[str, list[float | None]] = {
        "skip": [record.rates["all"].skip for record in line.records],
        "skip_prompt": [prompt_skip(record) for record in line.records],
        "skip_answer": [task_mean(record, panel.retain_tasks, "answer") for record in line.records],
    }
    columns: dict[str, float | None] = {}
    for name, values in kinds.items():
        numbers = [value for value in values if value is not None]
        columns[name] = _mean(values)
        columns[f"{name}_std"] = _deviation(line, numbers)
    return columns


def _mean(values: Iterable[float | None], scale: float = 100) -> float | None:
    """The mean of those that are known, fractions in percent; None if none is."""
    known = [value for value in values if value is not None]
    return scale * float(np.mean(known)) if known else None


def _deviation(line: Line, values: Sequence[float], scale: float = 100) -> float | None:
    """Standard deviation over seeds, in points; None with one seed or where none matters."""
    if not line.first.stochastic or len(values) < 2:
        return None
    return scale * float(np.std(values, ddof=1))


def _score_columns(line: Line) -> dict[str, float]:
    """``task:metric`` -> mean over seeds; in percent, except perplexities."""
    columns: dict[str, list[float]] = {}
    for record in line.records:
        for score in record.scores:
            if score.primary:
                scale = 100 if score.higher_is_better else 1
                name = f"{score.task}:{score.metric}"
                columns.setdefault(name, []).append(scale * score.value)
    return {name: float(np.mean(values)) for name, values in columns.items()}


def score_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One line per run and metric: value, k of n, standard error, skip on the task; fractions."""
    fields = ("task", "metric", "filter", "primary", "value", "k", "n", "stderr")
    lines = [
        {
            "backbone": record.backbone.name,
            "row": record.row,
            "target": record.budget,
            "match": record.match,
            "seed": record.seed,
            **{name: getattr(score, name) for name in fields},
            "skip": score.rates["all"].skip,
            "tokens": score.rates["all"].tokens,
        }
        for record in records
        for score in record.scores
    ]
    return pd.DataFrame(lines).astype({"k": "Int64"})


def budget_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """Target and realised skip, in percent of the dense parameters.

    Columns: backbone, target, match, row, title, seeds, skip (mean over scored tokens),
    skip_prompt, skip_answer (see budget.py), the deviation of each over seeds (_std), skip_net,
    skip_authors, skip_by_task and skip_prompt_by_task (means over the tasks of the Retain, of all
    tokens and of prompt tokens), skip_answer_by_token, token_std (spread over tokens),
    skip_likelihood and skip_generated (over all tokens of the kind), missed (which runs lie off by
    more than the protocol allows, and by how much). Where rows were compared on texts, also
    skip_texts and skip_texts_answer: on all tokens of these texts, and on their answer tokens.
    """
    lines = []
    for panel, line in ((own, line) for own in panels for line in own.done):
        lines.append(
            line.labels
            | {
                "seeds": len(line.records),
                **_skips(panel, line),
                "skip_net": _mean(run.rates["all"].skip_net for run in line.records),
                "skip_authors": _mean(run.skip_authors for run in line.records),
                **_other_weights(panel, line),
                "token_std": _mean(run.rates["all"].skip_std for run in line.records),
                "skip_likelihood": _kind_mean(line, "likelihood"),
                "skip_generated": _kind_mean(line, "generated"),
                "missed": missed(line, panel.retain_tasks),
                **_text_skips(line),
            }
        )
    return pd.DataFrame(lines)


def _other_weights(panel: Panel, line: Line) -> dict[str, float | None]:
    """Skips weighed otherwise than budgets: all and prompt tokens by task, answers by token."""
    tasks, runs = panel.retain_tasks, line.records
    return {
        "skip_answer_by_token": _kind_mean(line, "answer"),
        "skip_by_task": _mean(task_mean(run, tasks, "all") for run in runs),
        "skip_prompt_by_task": _mean(task_mean(run, tasks, "prompt") for run in runs),
    }


def _kind_mean(line: Line, kind: str) -> float | None:
    return _mean(run.rates[kind].skip for run in line.records if kind in run.rates)


def _text_skips(line: Line) -> dict[str, float]:
    """Skip on the texts on which a line was compared with the dense model, in percent."""
    kinds = {"skip_texts": "all", "skip_texts_answer": "answer"}
    skips = {name: text_skip(line.records, kind) for name, kind in kinds.items()}
    return {name: 100 * skip for name, skip in skips.items() if skip is not None}


def cost_frame(panels: Sequence[Panel]) -> pd.DataFrame:
    """Cost of every row, means over seeds.

    Columns: backbone, target, match, row, title, trained_parameters, training_tokens (updates
    times tokens per update), fit_seconds, fit_memory_mb, scored_tokens, scoring_seconds,
    scoring_memory_mb, device. A plain model has no fit: its fit columns are empty. Where rows were
    compared with the dense model on texts, also fidelity_seconds, which scoring_seconds leaves out.
    """
    lines = []
    for line in (line for panel in panels for line in panel.done):
        fits = [record.fit for record in line.records if record.fit is not None]
        fitted = {
            f"fit_{name}": float(np.mean([getattr(fit, key) for fit in fits])) if fits else None
            for name, key in (("seconds", "seconds"), ("memory_mb", "peak_memory_mb"))
        }
        parameters = fits[0].trained_parameters if fits else None
        compared = [r.fidelity.seconds for r in line.records if r.fidelity is not None]
        lines.append(
            line.labels
            | {
                "trained_parameters": parameters,
                "training_tokens": _training_tokens(line.first) if parameters else None,
                **fitted,
                "scored_tokens": _mean((run.rates["all"].tokens for run in line.records), 1),
                "scoring_seconds": _mean((run.evaluation.seconds for run in line.records), 1),
                "scoring_memory_mb": _mean(
                    (run.evaluation.peak_memory_mb for run in line.records), 1
                ),
                "device": line.first.evaluation.device,
                **({"fidelity_seconds": float(np.mean(compared))} if compared else {}),
            }
        )
    whole = {"trained_parameters": "Int64", "training_tokens": "Int64"}
    return pd.DataFrame(lines).astype(whole)


def _training_tokens(record: Record) -> int | None:
    params = record.params
    if "updates" not in params or "batch_tokens" not in params:
        return None
    return int(params["updates"]) * int(params["batch_tokens"])


def layer_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Share of tokens that ran each dense layer's units, one line per row, first seeds only.

    Units of one layer are averaged by their parameters. A removed layer has 0, a layer without
    units 1, and layers that a shallower backbone lacks are NaN. Rows that narrow layers or remove
    parts of them have no line: records do not say how much of a layer is left.

    Returns:
        Columns backbone, target, match (empty where it is the same under every protocol), row,
        title (see :func:`unit_title`), kind, and one per layer, named by its number.
    """
    lines: dict[tuple[Any, ...], dict[Any, Any]] = {}
    for record in (record for record in records if record.done):
        if record.kind == "static" and not (record.units or record.layers.removed):
            continue
        labels = run_labels(record) | {"title": unit_title(record)}
        shares = [1.0] * record.layers.dense
        for layer in record.layers.removed:
            shares[layer] = 0.0
        for layer in {unit.layer for unit in record.units}:
            units = [unit for unit in record.units if unit.layer == layer]
            executed = sum(unit.parameters * unit.executed for unit in units)
            shares[layer] = executed / sum(unit.parameters for unit in units)
        lines.setdefault(tuple(labels.values()), labels | dict(enumerate(shares)))
    return pd.DataFrame(list(lines.values())).astype({"target": float})


def run_labels(record: Record) -> dict[str, Any]:
    """The columns that say of which line a run is; ``target`` in percent."""
    budget = record.budget
    return {
        "backbone": record.backbone.name,
        "target": None if budget is None else round(100 * budget, 6),
        "match": record.match,
        "row": record.row,
        "title": record.title,
        "kind": record.kind,
    }


def unit_title(record: Record) -> str:
    """Title of a row; with its kind of unit where that is one sublayer only."""
    kinds = {unit.kind for unit in record.units}
    if kinds == {"ffn"}:
        return f"{record.title}, FFN only"
    return f"{record.title}, attention only" if kinds == {"attention"} else record.title
