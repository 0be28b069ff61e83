"""What figures show is what the frames hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.records import dense, record, score, write_run
from tests.unit.report.figure_frames import marks, one, read, reference, rows_of
from workflows.report.figures import FIGURES
from workflows.report.figures.data import FigureFrames
from workflows.report.figures.measures import OFFSET
from workflows.report.figures.scatter import on_frontier


def test_retain_over_skip_shows_every_row_with_its_interval(suite_data: FigureFrames) -> None:
    axes = one("retain_over_skip", suite_data).axes
    assert [axis.get_title() for axis in axes] == ["match pooled", "match split"]
    for axis, match in zip(axes, ("pooled", "split"), strict=True):
        own = suite_data.retain[suite_data.retain["match"] == match]
        expected = [
            (line.skip, line.retain, line.skip, line.retain_low, line.skip, line.retain_high)
            for line in rows_of(own).itertuples()
        ]
        assert np.allclose(marks(axis), sorted(expected))
        levels = [segment[0][1] for segment in axis.collections[-1].get_segments()]
        assert np.allclose(levels, own[own["kind"] == "reference"]["retain"])
        paths = [line.get_xydata() for line in axis.lines if len(line.get_xdata()) == 2]
        hero = own[own["row"] == "hero"][["skip", "retain"]].to_numpy()
        assert any(np.allclose(path, hero) for path in paths)


def test_both_measures_stand_in_one_line_in_the_order_of_retain(suite_data: FigureFrames) -> None:
    figure = one("both_measures", suite_data)
    rows = rows_of(suite_data.retain)
    panels = [own for _, own in rows.groupby(["match", "target"], sort=False)]
    assert len(figure.axes) == len(panels) == 4
    for axis, own in zip(figure.axes, panels, strict=True):
        own = own.sort_values("retain", ascending=False, kind="stable")
        assert [label.get_text() for label in axis.get_yticklabels()] == list(own["title"])
        expected = []
        for place, line in enumerate(own.itertuples()):
            for height, value, low, high in (
                (place - OFFSET, line.retain, line.retain_low, line.retain_high),
                (place + OFFSET, line.above_chance, line.above_low, line.above_high),
            ):
                expected.append((value, height, low, height, high, height))
        assert np.allclose(marks(axis), sorted(expected))


def test_a_guess_is_marked_where_an_interval_reaches_it(suite_data: FigureFrames) -> None:
    def levels(low: float) -> set[float]:
        retain = suite_data.retain.assign(above_low=low)
        axis = one("both_measures", replace(suite_data, retain=retain)).axes[0]
        upright = [line.get_xdata() for line in axis.lines if list(line.get_ydata()) == [0, 1]]
        return {float(xs[0]) for xs in upright}

    assert levels(12.0) == {100.0}
    assert levels(-3.0) == {0.0, 100.0}


def test_without_above_chance_it_has_no_figure(suite_data: FigureFrames) -> None:
    draw, retain = FIGURES["both_measures"], suite_data.retain
    assert draw(replace(suite_data, retain=retain.assign(above_chance=np.nan)), 2) == {}
    assert draw(replace(suite_data, retain=retain.drop(columns="above_chance")), 2) == {}
    # Frames that were committed before the measure lack its columns, or have them empty.
    assert draw(reference("parts"), 2) == {}


def test_many_rows_stand_on_several_sheets_in_both_measures() -> None:
    data = reference("headline")
    names = {"above_chance": 0, "above_low": -1, "above_high": 1}
    values = {name: data.retain["retain"] + apart for name, apart in names.items()}
    sheets = FIGURES["both_measures"](replace(data, retain=data.retain.assign(**values)), 2)
    assert len(sheets) > 1
    labels = [
        label.get_text()
        for figure in sheets.values() for axis in figure.axes for label in axis.get_yticklabels()
    ]  # fmt: skip
    rows = rows_of(data.retain)
    assert sorted(labels) == sorted(rows[rows["target"].notna()]["title"])


def test_the_frontier_is_what_nothing_beats() -> None:
    rng = np.random.default_rng(2)
    skip, retain = rng.integers(0, 6, (2, 30)).astype(float)
    for n, on in enumerate(on_frontier(skip, retain)):
        beaten = [
            (a >= skip[n] and b > retain[n]) or (a > skip[n] and b >= retain[n])
            for a, b in zip(skip, retain, strict=True)
        ]
        assert on != any(beaten)


def test_rows_of_one_budget_have_no_frontier_and_of_several_one_row_at_each(
    suite_data: FigureFrames,
) -> None:
    def legend_and_band(data: FigureFrames) -> tuple[set[str], list[Any]]:
        figure = one("retain_over_skip", data)
        bands = [line for axis in figure.axes for line in axis.lines if line.get_linewidth() > 3]
        return {text.get_text() for text in figure.legends[0].get_texts()}, bands

    texts, bands = legend_and_band(reference("demo"))
    assert "frontier" not in texts
    assert not bands
    texts, bands = legend_and_band(suite_data)
    assert "frontier" in texts
    for band in bands:
        # A row that lies off its budget has a skip of its own.
        skips = [round(skip) for skip in band.get_xdata()]
        assert len(skips) == len(set(skips))


def test_differences_are_sorted_and_hollow_where_not_told_from_zero(
    suite_data: FigureFrames,
) -> None:
    axes = one("differences", suite_data).axes
    frame = suite_data.differences
    main = frame[(frame["measure"] == "retain") & (frame["against"] == "hero")]
    panels = [part for _, part in main.groupby(["match", "target"], sort=False)]
    assert len(axes) == len(panels) == 4
    for axis, part in zip(axes, panels, strict=True):
        lines = sorted(part.to_dict("records"), key=lambda line: -line["difference"])
        expected = [
            (line["difference"], n, line["low"], n, line["high"], n) for n, line in enumerate(lines)
        ]
        assert np.allclose(marks(axis), sorted(expected))
        assert [text.get_text() for text in axis.get_yticklabels()] == [x["title"] for x in lines]
        white = [one for one in axis.containers if one.lines[0].get_markerfacecolor() == "white"]
        hollow = {height for container in white for height in container.lines[0].get_ydata()}
        assert hollow == {n for n, line in enumerate(lines) if not line["p_holm"] < 0.05}
        assert [text.get_text() for text in axis.texts] == [
            f"{x['difference']:+.1f} ({x['low']:+.1f} to {x['high']:+.1f})".replace("-", "−")
            for x in lines
        ]


def test_without_a_row_in_focus_differences_are_those_from_the_reference(
    suite_data: FigureFrames,
) -> None:
    frame = suite_data.differences
    alone = replace(suite_data, differences=frame[frame["against"] == "dense"])
    assert one("differences", alone).axes[0].get_xlabel() == "Retain minus that of Dense (points)"
    label = one("differences", suite_data).axes[0].get_xlabel()
    assert label == "Retain minus that of Hero (points)"
    assert FIGURES["differences"](replace(suite_data, differences=frame[:0]), 2) == {}


def test_scores_and_layers_show_their_numbers(suite_data: FigureFrames) -> None:
    (axis,) = one("scores_per_task", suite_data).axes
    values = np.array([[float(text.get_text())] for text in axis.texts]).reshape(-1, 2)
    retain = suite_data.retain[suite_data.retain["retain"].notna()]
    texts = {tuple(line) for line in np.round(retain[["left:acc", "right:acc"]], 1).to_numpy()}
    assert {tuple(line) for line in values} == texts
    ground = np.asarray(axis.images[0].get_array())
    assert np.allclose(ground, values / values.max(0), atol=2e-3)
    axis = one("executed_per_layer", suite_data).axes[0]
    assert np.allclose(np.asarray(axis.images[0].get_array()), suite_data.layers[[0, 1, 2, 3]])


def test_scores_of_which_less_is_better_are_no_percentages_whatever_their_name(
    tmp_path: Path,
) -> None:
    falls = {"metric": "bits_per_byte", "higher_is_better": False, "k": None}
    scores = score("a", [1, 0]), score("perplexity_bias", [1, 1]), score("text", [2.5], **falls)
    write_run(tmp_path, dense(*scores))
    write_run(tmp_path, record("hero", 0.25, *scores, budget=0.25))
    (axis,) = one("scores_per_task", read(tmp_path)).axes
    heads = [text.get_text() for text in axis.get_xticklabels()]
    assert heads == ["a acc", "perplexity bias acc"]


@pytest.mark.parametrize("suite", ["headline", None])
def test_both_protocols_stand_beside_each_other(
    suite: str | None, suite_data: FigureFrames
) -> None:
    data = suite_data if suite is None else reference(suite)
    for axis, target in zip(one("protocols", data).axes, [25, 40], strict=True):
        lines = data.retain[data.retain["target"] == target].dropna(subset="retain")
        pooled, split = (
            lines[lines["match"] == match].set_index("title") for match in ("pooled", "split")
        )
        titles = [text.get_text() for text in axis.get_yticklabels()]
        assert titles == list(split.sort_values("retain", ascending=False, kind="stable").index)
        axes = marks(axis)
        for height, title in enumerate(titles):
            here = [place[0] for place in axes if abs(place[1] - height) < 0.5]
            both = [split["retain"][title], pooled["retain"][title]]
            assert sorted(here) == pytest.approx(sorted(set(both)))
            assert tuple(axis.lines[0].get_xdata()) == (
                pooled["retain"][titles[0]], split["retain"][titles[0]],
            )  # fmt: skip


def test_without_a_row_under_both_protocols_they_have_no_figure(suite_data: FigureFrames) -> None:
    retain = suite_data.retain
    rows = {"pooled": "hero", "split": "random-skip"}
    kept = retain[retain["row"] == retain["match"].map(rows)]
    assert set(kept["match"]) == set(rows)
    assert FIGURES["protocols"](replace(suite_data, retain=kept), 2) == {}


def test_times_of_one_budget_stand_below_each_other_with_their_bounds() -> None:
    data = reference("demo")
    for axis, mode in zip(one("time_over_skip", data).axes, ("prefill", "decode"), strict=True):
        own = data.speeds[data.speeds["mode"] == mode].sort_values("speed", ascending=False)
        assert [text.get_text() for text in axis.get_yticklabels()] == own["title"].tolist()
        assert np.allclose(sorted(m[0] for m in marks(axis)), 1 / own["speed"])
        (bounds,) = [line for line in axis.lines if (line.get_marker(), line.get_ms()) == ("|", 5)]
        assert np.allclose(bounds.get_xdata(), 1 / own["bound"])


def test_time_over_skip_shows_times_above_their_bounds() -> None:
    one_budget = reference("demo")
    retain, speeds = (
        frame.assign(target=frame["target"].mask(frame["row"] == "flap", 40))
        for frame in (one_budget.retain, one_budget.speeds)
    )
    data = replace(one_budget, retain=retain, speeds=speeds)
    rows = rows_of(data.retain)
    for axis, mode in zip(one("time_over_skip", data).axes, ("prefill", "decode"), strict=True):
        own = data.speeds[data.speeds["mode"] == mode].set_index("row").loc[rows["row"]]
        times = {
            of: sorted(zip(rows["skip"], 1 / own[of], strict=True)) for of in ("speed", "bound")
        }
        assert np.allclose([mark[:2] for mark in marks(axis)], times["speed"])
        # Caps of intervals are dashes as well, but small ones.
        dashes = [line for line in axis.lines if (line.get_marker(), line.get_ms()) == ("_", 5)]
        assert np.allclose(sorted(tuple(line.get_xydata()[0]) for line in dashes), times["bound"])


def test_lines_of_two_protocols_are_named_apart(suite_data: FigureFrames) -> None:
    (axis,) = one("scores_per_task", suite_data).axes
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert names.count("Dense") == names.count("Shortgpt+Lora, 25 %") == 1
    assert {"Hero, 25 %, pooled", "Hero, 25 %, split"} <= set(names)
