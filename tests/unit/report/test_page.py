"""The data in a page: every number is one of a record or frame, and no text gets out of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests import records, steps
from tests.records import NASTY, TOKENS, write_full_suite
from workflows.report.page import embed
from workflows.report.page_data import MOST, POINTS, page_data, shown_decision
from workflows.report.published import REFERENCE
from workflows.report.results import read_results
from workflows.report.seeds import SeedSpread, fits, read_spread
from workflows.report.tables import make_frames

Data = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("told")


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    results = write_full_suite(folder / "results")
    steps.report_tables(results, folder / "report")
    return (folder / "report/index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def data(page: str) -> Data:
    (match,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
    return dict(json.loads(match))


def read(folder: Path, run: str) -> dict[str, Any]:
    return dict(json.loads((folder / "results" / run / "record.json").read_text()))


def near(value: Any, expected: Any) -> None:
    """The same value, fractions to six digits."""
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for key in expected:
            near(value[key], expected[key])
    elif isinstance(expected, list):
        assert len(value) == len(expected)
        for pair in zip(value, expected, strict=True):
            near(*pair)
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, rel=1e-5)
    else:
        assert value == expected


def test_every_line_has_the_numbers_of_the_retain_table(folder: Path, data: Data) -> None:
    retain = pd.read_csv(folder / "report/tables/retain.csv")
    assert len(data["lines"]) == len(retain)
    for line, entry in zip(data["lines"], retain.to_dict("records"), strict=True):
        assert (line["row"], line["title"], line["match"]) == (
            entry["row"], entry["title"], entry["match"],
        )  # fmt: skip
        assert line["variant"] == (line["row"] == "shortgpt+lora")
        for name, value in line["numbers"].items():
            column = entry.get(name)
            near(value, None if column is None or pd.isna(column) else float(column))
        assert line["numbers"]["retain"] is not None or line["row"] == "slicegpt"


def test_what_lies_behind_a_row_is_its_record(folder: Path, data: Data) -> None:
    assert set(data["run_of"]) == {
        line["id"] for line in data["lines"] if line["numbers"]["retain"] is not None
    }
    assert set(data["run_of"].values()) == set(data["runs"])
    for name, run in data["runs"].items():
        record = read(folder, name)
        for key in ("row", "method", "params", "start", "seed", "fit", "rates", "layers", "commit"):
            near(run[key], record[key])
        units = [[u["layer"], u["kind"], u["parameters"], u["executed"]] for u in record["units"]]
        near(run["units"], units)
        for entry, score in zip(run["scores"], record["scores"], strict=True):
            near(
                {k: entry[k] for k in ("task", "k", "n")}, {k: score[k] for k in ("task", "k", "n")}
            )
            near(entry["skip"], {kind: rate["skip"] for kind, rate in score["rates"].items()})
        seeds = sorted((folder / "results" / name).parent.glob("s*"))
        assert [one["seed"] for one in run["seeds"]] == [int(seed.name[1:]) for seed in seeds]
        assert "see its record" in run["commands"]["command"]


def test_items_won_and_lost_are_those_of_the_records(folder: Path, data: Data) -> None:
    def values(run: str, task: str) -> pd.DataFrame:
        items = pd.read_parquet(folder / "results" / run / "record.items.parquet")
        return items[items["task"] == task].set_index("item").sort_index()

    compared = 0
    tasks = [(name, *item) for name, run in data["runs"].items() for item in run["items"].items()]
    for name, task, sides in tasks:
        mine, theirs = values(name, task), values("toy/dense/b0/s42", task)
        gain = mine["value"] - theirs["value"]
        for side, items in (("won", gain[gain > 0]), ("lost", gain[gain < 0])):
            assert sides[side]["number"] == len(items)
            numbers = [int(item) for item in sides[side]["items"]]
            assert numbers == items.index.tolist()[:MOST]
            for number, answer in sides[side]["items"].items():
                own, base = (json.loads(part["sample"][int(number)]) for part in (mine, theirs))
                near(answer, own.get("scores", own.get("text")))
                near(data["items"]["toy"][task][number], base)
                compared += 1
    assert compared > 100


def test_routes_are_those_of_the_records(folder: Path, data: Data) -> None:
    assert set(data["prompts"]["toy"]) == {"left", "right"}
    assert data["prompts"]["toy"]["left"] == {"tokens": TOKENS, "first_answer": 5}
    runs = {name: run for name, run in data["runs"].items() if "routes" in run}
    assert {run["row"] for run in runs.values()} == {"hero"}
    assert len(runs) == 4
    for name, run in runs.items():
        routes = {route["task"]: route["executed"] for route in read(folder, name)["routes"]}
        assert run["routes"] == routes


def test_decisions_are_curves_bars_or_words(data: Data) -> None:
    entries = {one["name"]: one for one in data["runs"]["toy/hero/b25/s42"]["decisions"]}
    training = entries["training"]
    assert training["of"] == 100
    assert training["curves"]["update"][0] == 0
    assert training["curves"]["update"][-1] == 99
    assert len(training["curves"]["loss"]) == POINTS
    for update, loss in zip(training["curves"]["update"], training["curves"]["loss"], strict=True):
        near(loss, 3 / (update + 1))
    assert entries["scores"]["bars"] == [0.5, 0.25, 0.125, 1.0]
    assert entries["threshold"]["text"] == "0.75"
    assert entries["rates"]["text"] == "200 entries, in decisions.json"
    assert json.loads(entries["removed_layers"]["text"]) == [NASTY]
    assert shown_decision("none", [])["text"] == "[]"


def test_no_text_gets_out_of_the_data(page: str) -> None:
    assert page.count("</script>") == 2
    assert NASTY not in page
    assert "\u2028" not in page
    assert json.loads(embed({"x": [NASTY, 1.5, None]})) == {"x": [NASTY, 1.5, None]}
    with pytest.raises(ValueError, match="JSON"):
        embed(float("nan"))


def test_fits_behind_a_deviation_between_seeds_are_told_where_they_differ() -> None:
    spread = read_spread(None)
    assert spread is not None
    label = "reports/reference/headline (1,500 updates there, 600 here)"
    assert spread.label({"training": {"updates": 600}}) == label
    assert spread.label({"training": {"updates": 1500}}) == spread.label({}) == spread.name


def test_a_deviation_counts_where_backbone_params_and_tasks_are_those_of_the_seeds() -> None:
    published = {"backbone": "toy", "target": 25.0, "match": "pooled", "row": "hero"}
    lines = pd.DataFrame([published | {"retain_std": 2.0}])
    record = records.record(
        "hero", 0.25, records.score("a", [1]), params={"gamma": 1, "updates": 1500}
    )
    (there,) = records.typed(record)
    spread = SeedSpread("made", lines, {"retain_tasks": ["a"], "fits": fits([there])})

    def known(tasks: list[str], **changes: Any) -> list[float]:
        (here,) = records.typed(record | changes)
        return list(spread.of(fits([here]), tasks).values())

    assert known(["a"]) == known(["a"], params={"gamma": 1, "updates": 9}) == [2.0]
    assert known(["b"]) == known(["a"], params={"gamma": 2, "updates": 1500}) == []
    assert known(["a"], backbone=record["backbone"] | {"hash": "f" * 16}) == []


def test_a_folder_that_is_no_published_suite_of_several_seeds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no published suite"):
        read_spread(tmp_path)


@pytest.mark.parametrize("file", REFERENCE.glob("*/source.json"), ids=str)
def test_settings_of_published_fits_are_those_of_their_records(file: Path) -> None:
    training = json.loads(file.read_text(encoding="utf-8"))["training"]
    tokens = pd.read_csv(file.with_name("costs.csv"))["training_tokens"].dropna()
    assert set(tokens) == {training["updates"] * training["batch_tokens"]}


def test_the_page_needs_no_other_file(page: str) -> None:
    sources = re.findall(r'(?:src|<link[^>]*href)="([^"]*)"', page)
    assert sources
    assert all(address.startswith("data:") for address in sources)
    assert "@import" not in page
    assert not re.findall(r"url\((?!data:)", page)


def test_records_that_keep_neither_texts_nor_routes_are_shown_without(site: Path) -> None:
    results = read_results(site / "results")
    data = page_data(make_frames(results), results)
    assert data["prompts"] == {}
    hero = data["runs"]["toy/hero/b25/s42"]
    assert hero["decisions"] == []
    assert hero["items"]["left"]["lost"] == {
        "number": hero["items"]["left"]["lost"]["number"],
        "items": {},
    }
    assert hero["items"]["left"]["lost"]["number"] > 0


def test_frames_alone_make_the_lines_without_what_lies_behind(site: Path) -> None:
    results = read_results(site / "results")
    frames = make_frames(results)
    alone, whole = page_data(frames), page_data(frames, results)
    assert alone["lines"] == whole["lines"]
    assert alone["runs"] == {}
