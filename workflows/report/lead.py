"""The first screen of a page: a few sentences, and a table with all numbers of each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflows.report.display import Builder, Table, line_id, number, short_name, spans
from workflows.report.published import Frames
from workflows.report.suite_tables import (
    MARKED,
    MATCHES,
    SKIPS,
    SPEEDS,
    definitions,
    notes,
    seeds_note,
)
from workflows.stats.lines import LINE_KEYS
from workflows.stats.ranking import Mark, places
from workflows.stats.speeds import with_speed

ONE_SEED = ", not counting other seeds of rows that ran one"
VERBS = {"prefill": "runs a prompt", "decode": "decodes"}
HOW = {"pooled": "over all tokens", "split": "on prompts and on answers"}


def verdict(frames: Frames, reference: str) -> list[tuple[str, str]]:
    """Who leads at each budget and protocol, how sure that is, and how fast the leader is.

    And which rows Above chance orders otherwise than Retain, beyond what their intervals allow.

    Args:
        frames: ``ranks``, ``budgets`` and ``speeds`` of
            :func:`workflows.report.tables.make_frames`.
        reference: Row whose scores are 100 %.

    Returns:
        Three pairs of a question and its answer; a fourth where an order differs.
    """
    fields = list(_fields(frames["ranks"]))
    if not fields:
        clauses = "No row has a budget to be compared at."
        return [("Who leads", clauses), ("How sure", clauses), ("On the clock", _clock([], frames))]
    several = len({leader["backbone"] for leader, _ in fields}) > 1
    leads: dict[str, list[str]] = {}
    certainty: dict[str, list[str]] = {}
    turns: dict[str, list[str]] = {}
    for leader, others in fields:
        on = f"{leader['backbone']}, " if several else ""
        at, match = f"at {leader['target']:g} %", leader["match"]
        leads.setdefault(f"{on}matched {HOW[match]}, ", []).append(
            f"{leader['title']} leads {at} with {leader['retain']:.1f} % of the scores of "
            f"{reference} ({leader['retain_low']:.1f} to {leader['retain_high']:.1f})"
            f"{_off_budget(leader, frames['budgets'])}"
        )
        certainty.setdefault(f"{on}{match}: ", []).append(f"{at} {_certainty(leader, others)}")
        if clauses := _turned([leader, *others]):
            turns.setdefault(f"{on}{match}: ", []).append(f"{at} {clauses}")
    leaders = [leader for leader, _ in fields]
    turned = [how + ", ".join(clauses) for how, clauses in turns.items()]
    return [
        ("Who leads", _sentence([how + ", ".join(clauses) for how, clauses in leads.items()])),
        ("How sure", _sentence([how + ", ".join(clauses) for how, clauses in certainty.items()])),
        *([("Above chance", _sentence(turned))] if turned else []),
        ("On the clock", _clock(leaders, frames)),
    ]


def _off_budget(leader: Mapping[Any, Any], budgets: pd.DataFrame) -> str:
    """The leader's skip, where it missed its budget by more than the protocol allows."""
    keys = ("backbone", "row", "target", "match")
    own = budgets[(budgets[list(keys)] == [leader[key] for key in keys]).all(axis=1)]
    missed = [line for line in own.to_dict("records") if line["missed"]]
    return "".join(f", skipping {line['skip']:.1f} % ({line['missed']})" for line in missed)


def _fields(ranks: pd.DataFrame) -> Iterator[tuple[dict[Any, Any], list[dict[Any, Any]]]]:
    """Leader and the others, by target and protocol."""
    for _, field in ranks.groupby(["backbone", "target", "match"], sort=False):
        lines = field.sort_values("rank", kind="stable").to_dict("records")
        yield lines[0], lines[1:]


def _certainty(leader: Mapping[Any, Any], others: list[dict[Any, Any]]) -> str:
    if not others:
        return f"{leader['title']} is alone"
    titles = [line["title"] for line in others if line["tied"]]
    all_others = {1: "the other row", 2: "both others"}.get(
        len(others), f"all {len(others)} others"
    )
    text = f"tied with {' and '.join(titles)}" if titles else f"ahead of {all_others}"
    text += ONE_SEED if any(line["one_seed"] for line in others) else ""
    return f"{leader['title']} is first in {leader['first']:.0f} % of resamples ({text})"


def _turned(lines: list[dict[Any, Any]]) -> str:
    """Rows of one field that lead others by Above chance though these lead them by Retain."""
    clauses = []
    for line in (line for line in lines if line["overtakes"]):
        others = " and ".join(line["overtakes"].split("; "))
        sure = ONE_SEED if line["overtakes_one_seed"] else ""
        clauses.append(f"{line['title']} leads {others} by it, and is behind by Retain{sure}")
    return "; ".join(clauses)


def _clock(leaders: list[dict[Any, Any]], frames: Frames) -> str:
    """Speeds of the leaders over dense."""
    speeds = frames["speeds"]
    if speeds.empty:
        return "No row was timed; a skip rate is no speed-up."
    clauses = {}
    for leader in leaders:
        own = speeds[(speeds["row"] == leader["row"]) & (speeds["backbone"] == leader["backbone"])]
        own = own[(own["target"] == leader["target"]) & (own["match"] == leader["match"])]
        first = own[own["mode"].isin(["prefill", "decode"])].drop_duplicates("mode")
        speeds_of = [
            f"{VERBS[line['mode']]} {line['speed']:.2f} times as fast as dense ({line['case']})"
            for line in first.to_dict("records")
        ]
        name = f"{leader['title']} at {leader['target']:g} % ({leader['match']})"
        clauses[name] = f"{name} {' and '.join(speeds_of) or 'was not timed'}"
    return _sentence(list(clauses.values())) if clauses else "Only references were timed."


def _sentence(clauses: list[str]) -> str:
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def without_twins(retain: pd.DataFrame) -> pd.DataFrame:
    """The frame with one line for rows of the same weights, under both titles.

    Returns:
        Its columns, ``note`` as in :func:`notes`, and ``also``: ids of the lines that were merged.
    """
    lines: list[dict[Any, Any]] = []
    for line in retain.fillna({"same_weights": ""}).to_dict("records"):
        keys = [line["backbone"], number(line["target"]), line["match"], line["retain"]]
        titles = line["same_weights"].split("; ")
        twins = [other for other in lines if other["alone"] in titles and other["keys"] == keys]
        if twins:
            twins[0]["title"] += f" = {line['title']}"
            rest = twins[0]["same_weights"].split("; ")
            twins[0]["same_weights"] = "; ".join(t for t in rest if t != line["title"])
            twins[0]["also"].append(line_id(line))
        else:
            lines.append(line | {"alone": line["title"], "also": [], "keys": keys})
    frame = pd.DataFrame(lines, columns=[*retain.columns, "also"])
    return frame.assign(note=notes(frame))


def lead_table(frames: Frames, match: str, seeds_of: str = "") -> Table:
    """Every line of a protocol: Retain and rank, then skip, scores, speed and cost by group.

    Args:
        seeds_of: The suite that the column Between seeds comes from.
    """
    retain = frames["retain"]
    own = without_twins(retain[retain["match"] == match].reset_index(drop=True))
    speeds = frames["speeds"]
    both = with_speed(own, speeds[speeds["match"] == match])
    for name, columns in {
        "ranks": ["rank", "rank_low", "rank_high", "tied", "above_rank"],
        "costs": ["trained_parameters", "fit_seconds", "fit_memory_mb", "scoring_seconds"],
    }.items():
        # A suite of pinned rows has no target at all.
        frame = frames[name].astype({"target": float})
        both = both.merge(frame[[*LINE_KEYS, *columns]], on=LINE_KEYS, how="left")
    builder = Builder()
    builder.lead(both)
    builder.seeds(both)
    columns_of, builder.columns = builder.columns, {}
    builder.columns["Row"] = columns_of.pop("Row")
    builder.add("Note", both["note"].tolist())
    builder.columns |= columns_of
    _add_scores(builder, both)
    builder.group = "skip"
    builder.spread(both, "Skip", "skip")
    builder.skips(both)
    builder.numbers(both, {"Net": ("skip_net", "{:.2f}")})
    builder.group = "scores"
    for column in (name for name in both.columns if ":" in name):
        builder.add(short_name(column), [number(value) for value in both[column]])
    builder.group = "speed"
    if both[["prefill", "decode"]].notna().any(axis=None):
        heads = {"Prefill": ("prefill", "{:.2f}"), "Decode": ("decode", "{:.2f}")}
        builder.numbers(both, heads)
    builder.group = "cost"
    heads = {
        "Trained parameters": ("trained_parameters", "{:,.0f}"),
        "Fit (s)": ("fit_seconds", "{:,.1f}"),
        "Fit (MB)": ("fit_memory_mb", "{:,.0f}"),
        "Scoring (s)": ("scoring_seconds", "{:,.1f}"),
    }
    builder.numbers(both, heads)
    note = " ".join([MATCHES[match], *definitions(both), SKIPS, MARKED])  # type: ignore[index]
    if "Between seeds" in builder.columns:
        note += f" {seeds_note(seeds_of)}"
    return builder.table(
        "lead", "Everything", f"{note} {SPEEDS}" if "Decode" in builder.columns else note
    )


def _add_scores(builder: Builder, both: pd.DataFrame) -> None:
    """Add Retain with its spread, and the rank."""
    builder.spread(both, "Retain", "retain", retain_marks(both))
    builder.add("95 % interval", spans(both, "retain_low", "retain_high"))
    if both["seed_std"].notna().any():
        builder.numbers(both, {"Between seeds": ("seed_std", "± {:.2f}")})
    builder.numbers(both, {"Rank": ("rank", "{:.0f}")})
    builder.add("Rank, 95 % interval", spans(both, "rank_low", "rank_high", "{:.0f}"))
    builder.beside(both)
    if both["above_rank"].notna().any():
        builder.numbers(both, {"Rank above chance": ("above_rank", "{:.0f}")})


def retain_marks(both: pd.DataFrame) -> list[Mark]:
    """Marks of Retain among the ranked lines of each backbone and target of one protocol."""
    marks = [Mark()] * len(both)
    for _, field in both[both["rank"].notna()].groupby(["backbone", "target"]):
        for line, place in zip(field.index, places(field["retain"].tolist()), strict=True):
            marks[line] = Mark(place, bool(field.loc[line, "tied"]) and place != 1)
    return marks
