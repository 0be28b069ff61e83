"""Which share of the tokens ran each layer, in the frame behind a heat map."""

from __future__ import annotations

from tests.records import record, score, typed
from tests.unit.stats.test_tables import dense, on, other
from workflows.stats.frames import layer_frame


def test_layers_show_what_ran() -> None:
    units = [
        {"layer": 2, "kind": "ffn", "parameters": 6, "executed": 0.25},
        {"layer": 3, "kind": "attention", "parameters": 2, "executed": 0.5},
        {"layer": 3, "kind": "ffn", "parameters": 6, "executed": 0.75},
    ]
    removed = {"kept": 3, "dense": 4, "removed": [1]}
    shares = layer_frame(
        typed(dense(), other(units=units), record("cut", 0.25, score("a", [1]), layers=removed))
    )
    assert shares[["title", "target"]].fillna(0).to_numpy().tolist() == [
        ["Dense", 0], ["Hero", 25], ["Cut", 25],
    ]  # fmt: skip
    assert shares[[0, 1, 2, 3]].to_numpy().tolist() == [
        [1, 1, 1, 1], [1, 1, 0.25, 0.6875], [1, 0, 1, 1],
    ]  # fmt: skip


def test_layers_name_the_routed_part_and_leave_out_what_no_record_tells() -> None:
    unit = {"layer": 2, "kind": "ffn", "parameters": 6, "executed": 0.25}
    narrowed = record("narrowed", 0.25, score("a", [1]), kind="static", stochastic=False)
    shares = layer_frame(typed(dense(), other(units=[unit]), narrowed))
    assert shares["title"].tolist() == ["Dense", "Hero, FFN only"]


def test_layers_of_two_backbones_are_both_shown() -> None:
    deep = {"kept": 6, "dense": 6, "removed": []}
    shares = layer_frame(typed(dense(), dense(**on("far"), layers=deep)))
    assert shares["backbone"].tolist() == ["toy", "far"]
    layers = shares[list(range(6))]
    assert layers.isna().sum(axis=1).tolist() == [2, 0]
    assert layers.to_numpy().dtype == float
