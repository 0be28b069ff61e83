"""What a running suite says of its jobs, by made benchmark files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from workflows import ROOT
from workflows.suite.config import read_configs
from workflows.suite.jobs import Suite, read_suite
from workflows.suite.progress import RunNames, TimeLeft, at_once, in_words


@pytest.fixture(scope="module")
def suite() -> Suite:
    changes = {"rows": ["dense", "lora", "hero", "shortgpt"], "derive": {}, "row_seeds": {}}
    more = {"first": [], "params": {}, "seeds": [42, 43]}
    return read_suite(read_configs(["headline"]) | changes | more)


def log(row: str, run: str, step: str) -> str:
    return f"results/headline/logs/demo/{row}/{run}/{step}.log"


def put(seconds: float | str, *place: str) -> None:
    file = Path(log(*place)).with_suffix(".tsv")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:00:01\t1.0\n")


def time_left_text(
    suite: Suite, place: tuple[str, str, str], *open_jobs: tuple[str, str, str]
) -> str:
    jobs = [
        SimpleNamespace(benchmark=log(*at).replace(".log", ".tsv")) for at in (place, *open_jobs)
    ]
    none = SimpleNamespace(benchmark=None)
    return f"{TimeLeft(suite, lambda: [*jobs, none], 2):{log(*place)}}"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("demo/hero/b25/s42", "hero, 25 %, seed 42"),
        ("demo/hero/b40-split/s43", "hero, 40 % on prompts and on answer tokens, seed 43"),
        ("demo/dense/b0/s42", "dense, seed 42"),
    ],
)
def test_a_run_in_words(path: str, name: str, suite: Suite) -> None:
    assert f"{RunNames(suite):{path}}" == name


def test_of_several_backbones_the_name_is_told(suite: Suite) -> None:
    backbones = suite.config["backbones"] | {"other": suite.config["backbones"]["demo"]}
    two_backbones = read_suite({**suite.config, "backbones": backbones})
    assert f"{RunNames(two_backbones):other/hero/b25/s42}" == "hero on other, 25 %, seed 42"


def test_the_nearest_earlier_job_says_how_long_one_takes(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hero = ("hero", "b25/s43", "fit")
    assert time_left_text(suite, hero) == "no job like it has run before"
    put(5, "shortgpt", "b25/s42", "fit")
    put(7, "hero", "b25/s42", "score")
    assert time_left_text(suite, hero) == "no job like it has run before"
    # Another row that trains; then its own row; then itself.
    put(600, "lora", "b0/s42", "fit")
    assert time_left_text(suite, hero).startswith("takes about 10 min; ")
    put(1200, "hero", "b25/s42", "fit")
    assert time_left_text(suite, hero).startswith("takes about 20 min; ")
    put(1800, *hero)
    assert time_left_text(suite, hero).startswith("takes about 30 min; ")


def test_what_is_left_is_the_sum_of_what_is_known(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fit, score = ("hero", "b25/s42", "fit"), ("hero", "b25/s42", "score")
    put(1200, *fit)
    assert time_left_text(suite, fit) == "takes about 20 min; left: about 10 min"
    assert time_left_text(suite, fit, score) == (
        "takes about 20 min; left: about 10 min and 1 jobs unlike any before"
    )
    put(120, *score)
    assert time_left_text(suite, fit, score) == "takes about 20 min; left: about 11 min"
    timed = ("hero", "b25/s42", "time")
    assert time_left_text(suite, fit, timed).endswith(
        "left: about 10 min and 1 jobs unlike any before"
    )


@pytest.mark.parametrize("text", ["", "s\n", "s\th\n-\t1\n", "x\n1\n"])
def test_a_file_that_says_nothing_stops_no_run(
    text: str, suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fit = ("hero", "b25/s42", "fit")
    put(1, *fit)
    Path(log(*fit)).with_suffix(".tsv").write_text(text)
    assert time_left_text(suite, fit) == "no job like it has run before"


@pytest.mark.parametrize(
    ("limits", "gpu", "jobs"),
    [
        ({"_cores": 8}, 0, 8),
        ({"_cores": 8, "_nodes": None}, 0, 8),
        ({"_cores": None, "_nodes": 32}, 1, 32),
        ({"_cores": 8, "gpu": 2}, 1, 2),
        ({"_cores": 8, "gpu": 2}, 4, 1),
        ({"_cores": 8}, 2, 4),
        ({"_cores": None}, 0, 1),
    ],
)
def test_jobs_side_by_side(limits: dict[str, Any], gpu: int, jobs: int, suite: Suite) -> None:
    with_gpus = read_suite({**suite.config, "resources": suite.config["resources"] | {"gpu": gpu}})
    resources = {name: SimpleNamespace(value=value) for name, value in limits.items()}
    assert at_once(resources, with_gpus) == jobs


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "about 1 s"), (89, "about 89 s"), (90, "about 2 min"), (5400, "about 1 h 30 min")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_the_default_profile_limits_nothing_that_another_sets() -> None:
    """Snakemake takes it beside ``--profile``, and it holds over that one."""
    profile = yaml.safe_load((ROOT / "profiles/default/config.yaml").read_text(encoding="utf-8"))
    assert "resources" not in profile
