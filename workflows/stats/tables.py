"""From records and item frames to the frames that become tables; percent from here on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workflows.stats.budget import flag
from workflows.stats.retain import Floats, Retain, summarise

Record = Mapping[str, Any]
LEAD = [
    "backbone", "target", "row", "title", "kind", "seeds", "skip", "skip_std", "skip_net",
    "skip_authors", "retain", "retain_std", "retain_low", "retain_high",
]  # fmt: skip


def retain_frame(
    records: Sequence[Record],
    items: Mapping[int, pd.DataFrame],
    retain_tasks: Sequence[str],
    reference_row: str,
) -> pd.DataFrame:
    """One line per (backbone, target, row), in the order of the records.

    Args:
        records: All runs of one suite.
        items: Index of a record -> its frame of items.
        retain_tasks: Tasks of the Retain.
        reference_row: Row whose scores are 100 %.

    Returns:
        The columns of ``LEAD``, one column ``task:metric`` per scored task, and ``note``.

    Raises:
        ValueError: The reference is missing, or two runs were scored on different prompts.
    """
    check_prompts(records)
    lines = []
    for backbone in dict.fromkeys(record["backbone"]["name"] for record in records):
        group = [n for n, r in enumerate(records) if r["backbone"]["name"] == backbone]
        references = [
            n for n in group if records[n]["row"] == reference_row and records[n]["status"] == "ok"
        ]
        if not references:
            raise ValueError(f"backbone '{backbone}' has no record of the row '{reference_row}'")
        base = item_values(items[references[0]], records[references[0]], retain_tasks)
        for _, same in _by_line(records, group).items():
            lines.append(_line([records[n] for n in same], [items.get(n) for n in same], base))
    return _ordered(pd.DataFrame(lines))


def check_prompts(records: Sequence[Record]) -> None:
    """Scores of one task compare only when every run saw the same prompts.

    Raises:
        ValueError: Two prompt hashes of one task differ.
    """
    seen: dict[tuple[str, str, str], tuple[str, str]] = {}
    for record in records:
        for score in record.get("scores", []):
            key = (record["backbone"]["name"], score["task"], score["metric"])
            known, row = seen.setdefault(key, (score["prompt_hash"], record["row"]))
            if known != score["prompt_hash"]:
                raise ValueError(
                    f"rows '{row}' and '{record['row']}' were scored on different prompts of "
                    f"'{score['task']}'; evaluate them again under one suite"
                )


def item_values(frame: pd.DataFrame, record: Record, tasks: Sequence[str]) -> dict[str, Floats]:
    """Task -> values (n,) of the headline metric, ordered by item."""
    values = {}
    for score in record["scores"]:
        if score["primary"] and score["task"] in tasks:
            same = (
                (frame["task"] == score["task"])
                & (frame["metric"] == score["metric"])
                & (frame["filter"] == score["filter"])
            )
            values[score["task"]] = (
                frame[same].sort_values("item")["value"].to_numpy(dtype=np.float64)
            )
    return values


def _by_line(records: Sequence[Record], group: Sequence[int]) -> dict[Any, list[int]]:
    """(row, target) -> indices of its seeds."""
    lines: dict[Any, list[int]] = {}
    for index in group:
        lines.setdefault((records[index]["row"], records[index]["budget"]), []).append(index)
    return lines


def _line(
    runs: Sequence[Record], frames: Sequence[pd.DataFrame | None], base: Mapping[str, Floats]
) -> dict[str, Any]:
    """One line of the table: a row at a target, over its seeds."""
    first = runs[0]
    line: dict[str, Any] = {
        "backbone": first["backbone"]["name"],
        "target": None if first["budget"] is None else 100 * first["budget"],
        "row": first["row"],
        "title": first["title"],
        "kind": first["kind"],
        "seeds": len(runs),
    }
    if any(run["status"] != "ok" for run in runs):
        return line | {"note": f"not applicable: {first['reason']}"}
    skips = [run["rates"]["all"]["skip"] for run in runs]
    values = [
        item_values(frame, run, list(base))
        for run, frame in zip(runs, frames, strict=True)
        if frame is not None
    ]
    kept = summarise(values, base, first["stochastic"])
    many = first["stochastic"] and len(runs) > 1
    return line | {
        "skip": 100 * float(np.mean(skips)),
        "skip_std": 100 * float(np.std(skips, ddof=1)) if many else None,
        "skip_net": 100 * float(np.mean([run["rates"]["all"]["skip_net"] for run in runs])),
        "skip_authors": 100 * float(np.mean([run["skip_authors"] for run in runs])),
        **_retain_columns(kept),
        **_score_columns(runs),
        "note": _note(runs, float(np.mean(skips))),
    }


def _retain_columns(kept: Retain) -> dict[str, float | None]:
    named = {
        "retain": kept.value,
        "retain_std": kept.std,
        "retain_low": kept.low,
        "retain_high": kept.high,
    }
    return {name: None if value is None else 100 * value for name, value in named.items()}


def _score_columns(runs: Sequence[Record]) -> dict[str, float]:
    """``task:metric`` -> mean over seeds; percent, but perplexities as they are."""
    columns: dict[str, float] = {}
    for score in runs[0]["scores"]:
        if score["primary"]:
            key = (score["task"], score["metric"], score["filter"])
            same = [
                other["value"]
                for run in runs
                for other in run["scores"]
                if (other["task"], other["metric"], other["filter"]) == key
            ]
            scale = 100 if score["higher_is_better"] else 1
            columns[f"{score['task']}:{score['metric']}"] = scale * float(np.mean(same))
    return columns


def _note(runs: Sequence[Record], skip: float) -> str:
    """What a reader must know of a line: budget missed, code not committed."""
    words = []
    budget = runs[0]["budget"]
    if flag(budget, skip):
        words.append(f"{flag(budget, skip)} budget by {100 * abs(skip - budget):.1f}")
    if any(run["dirty"] for run in runs):
        words.append("code not committed")
    return "; ".join(words)


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns in their order, numbers to four decimals."""
    tasks = [name for name in frame.columns if ":" in name]
    full = frame.reindex(columns=[*LEAD, *tasks, "note"])
    numbers = [*LEAD[6:], "target", *tasks]
    return full.assign(**{name: full[name].astype(float).round(4) for name in numbers})


def display_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The retain frame as people read it: text cells, a dash where nothing applies."""
    several = frame["backbone"].nunique() > 1
    shown = pd.DataFrame(index=frame.index)
    if several:
        shown["Backbone"] = frame["backbone"]
    shown["Row"] = frame["title"]
    shown["Target"] = [_number(value, "{:g}") for value in frame["target"]]
    shown["Skip"] = [_plus(v, s) for v, s in zip(frame["skip"], frame["skip_std"], strict=True)]
    shown["Net"] = [_number(value) for value in frame["skip_net"]]
    shown["Retain"] = [
        _plus(v, s) for v, s in zip(frame["retain"], frame["retain_std"], strict=True)
    ]
    shown["95 % interval"] = [
        "–" if pd.isna(low) else f"{low:.1f} to {high:.1f}"
        for low, high in zip(frame["retain_low"], frame["retain_high"], strict=True)
    ]
    for name in frame.columns:
        if ":" in name:
            # A perplexity is told apart from other perplexities by the name behind its colon.
            shown[short_name(name)] = [_number(value) for value in frame[name]]
    shown["Note"] = frame["note"].fillna("")
    return shown


def short_name(column: str) -> str:
    """``demo_facts:acc`` -> ``facts acc``."""
    task, metric = column.rsplit(":", 1)
    label = task.removeprefix("demo_").replace("_", " ")
    return label if label.startswith("perplexity") else f"{label} {metric}"


def _number(value: float | None, form: str = "{:.2f}") -> str:
    return "–" if value is None or pd.isna(value) else form.format(value)


def _plus(value: float | None, deviation: float | None) -> str:
    text = _number(value)
    return text if deviation is None or pd.isna(deviation) else f"{text} ± {deviation:.2f}"


def score_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One line per run and metric: value, k of n, standard error, skip on that task; fractions."""
    lines = [
        {
            "backbone": record["backbone"]["name"],
            "row": record["row"],
            "target": record["budget"],
            "seed": record["seed"],
            **{k: s[k] for k in ("task", "metric", "filter", "primary", "value", "k", "n")},
            "stderr": s["stderr"],
            "skip": s["rates"]["all"]["skip"],
            "tokens": s["rates"]["all"]["tokens"],
        }
        for record in records
        for s in record.get("scores", [])
    ]
    return pd.DataFrame(lines)


def layer_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Share of tokens that ran each dense layer's routed unit: rows x layers, first seeds only.

    A layer that was removed ran for no token, a layer that is not routed for every one; layers
    that a shallower backbone lacks are NaN.
    """
    lines: dict[str, list[float]] = {}
    several = len({record["backbone"]["name"] for record in records}) > 1
    for record in records:
        label = f"{record['backbone']['name']}: " * several + record["title"]
        if record["budget"] is not None:
            label = f"{label}, {100 * record['budget']:g} %"
        if record["status"] != "ok" or label in lines:
            continue
        shares = [1.0] * record["layers"]["dense"]
        for layer in record["layers"]["removed"]:
            shares[layer] = 0.0
        for unit in record["units"]:
            shares[unit["layer"]] = unit["executed"]
        lines[label] = shares
    return pd.DataFrame.from_dict(lines, orient="index")
