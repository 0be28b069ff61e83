"""Whole runs in copies of the checkout: to the end, again, with a new method, after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from tests.workflow.conftest import environment, records, toy_checkout, wait_for
from workflows import ROOT
from workflows.suite.config import with_defaults

Snakemake = Callable[..., tuple[int, str]]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SUITE = ("--configfile", "toy.yaml", "--cores", "2")
ROWS = ["dense", "random-skip", "random-skip-layers"]
LARGE = "toy/data/calibration.jsonl"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, run_snakemake: Snakemake) -> Path:
    """A copy in which the toy suite ran to its end."""
    copy = toy_checkout(tmp_path_factory.mktemp("finished") / "checkout")
    with (copy / LARGE).open("a") as stream:
        stream.write(" \n" * 600_000)  # blank lines are no documents
    status, said = run_snakemake(copy, *SUITE)
    assert status == 0, said
    return copy


def table(copy: Path) -> pd.DataFrame:
    return pd.read_csv(copy / "reports/toy/tables/retain.csv")


def test_every_row_has_a_record_and_a_line(finished: Path) -> None:
    labels = {"dense": "b0"}
    expected = [f"results/toy/small/{r}/{labels.get(r, 'b25')}/s42/record.json" for r in ROWS]
    assert sorted(records(finished, "toy")) == sorted(expected)
    assert table(finished)["row"].tolist() == ROWS
    assert table(finished).loc[0, ["skip", "retain"]].tolist() == [0, 100]
    for file in expected:
        decided = (finished / file).with_suffix(".decisions.json")
        made = (finished / file).parent / "model/decisions.json"
        assert decided.read_bytes() == made.read_bytes()
    page = (finished / "reports/toy/index.html").read_text()
    assert all(title in page for title in table(finished)["title"])
    for name in ("retain.md", "retain.tex", "scores.csv", "differences.csv", "costs.tex"):
        assert (finished / "reports/toy/tables" / name).stat().st_size > 0
    for name in ("retain_over_skip", "differences", "scores_per_task", "executed_per_layer"):
        for kind in ("png", "svg"):
            assert (finished / f"reports/toy/figures/{name}.{kind}").stat().st_size > 1000


def test_the_noise_floor_is_measured(finished: Path) -> None:
    (line,) = pd.read_csv(finished / "reports/toy/tables/noise.csv").to_dict("records")
    assert (line["batch_size"], line["against"], line["items"]) == (3, 16, 12)
    assert "Noise floor" in (finished / "reports/toy/index.html").read_text()


def test_numbers_of_the_table_stand_in_the_records(finished: Path) -> None:
    runs = {record["row"]: record for record in records(finished, "toy").values()}
    for line in table(finished).to_dict("records"):
        record = runs[line["row"]]
        assert line["skip"] == pytest.approx(100 * record["rates"]["all"]["skip"], abs=1e-4)
        for score in record["scores"]:
            if score["primary"] and score["higher_is_better"]:
                shown = line[f"{score['task']}:{score['metric']}"]
                assert shown == pytest.approx(100 * score["value"], abs=1e-4)


def test_no_key_of_the_default_suite_reaches_another(finished: Path) -> None:
    ran = json.loads((finished / "results/toy/suite.json").read_text())
    # Without hero no row is in focus.
    expected = with_defaults(yaml.safe_load((finished / "toy.yaml").read_text())) | {"focus": None}
    assert ran == expected
    assert not (finished / "results/demo").exists()


def test_nothing_half_written_is_left(finished: Path) -> None:
    assert not list(finished.rglob("*.part"))


def test_a_second_run_does_nothing(finished: Path, run_snakemake: Snakemake) -> None:
    """Also where the user's files were copied anew, one of them above Snakemake's own limit."""
    assert (finished / LARGE).stat().st_size > 1_000_000
    for file in (finished / "toy").rglob("*.*"):
        file.touch()
    status, said = run_snakemake(finished, *SUITE)
    assert status == 0, said
    assert "Nothing to be done" in said


def test_every_job_is_told_where_it_stands(finished: Path) -> None:
    code = "from workflows.suite.jobs import read_suite\n"
    code += "from workflows.suite.config import read_configs\n"
    code += "from workflows.suite.states import *\n"
    code += "for step in suite_steps(read_suite(read_configs(['toy.yaml']))):\n"
    code += "    print(state_of(step).name, step.log.is_file())"
    listed = subprocess.run(
        [sys.executable, "-c", code], cwd=finished, capture_output=True, text=True
    )
    assert set(listed.stdout.splitlines()) == {"done True"}, listed.stderr
    assert not list(finished.rglob("*.status"))


def test_a_failed_run_is_told_with_its_reason_and_stands_in_no_table(
    finished: Path, run_snakemake: Snakemake
) -> None:
    """The row goes again at the end."""
    method, before = examples(trained=False)["last-layers"].read_text(), table(finished)
    file = finished / "methods/last_layers.py"
    file.write_text(
        method.replace("return Fitted(", "raise RuntimeError('no luck')\n        Fitted(")
    )
    status, said = run_snakemake(finished, *SUITE)
    assert status != 0, said
    logs = finished / "results/toy/logs/small/last-layers"
    (left,) = logs.rglob("*.status")
    told = json.loads(left.read_text())
    assert (told["status"], told["reason"]) == ("failed", "RuntimeError: no luck")
    command = [sys.executable, "-m", "workflows.steps.status", "--suite", "toy.yaml"]
    done = subprocess.run(command, cwd=finished, capture_output=True, text=True)
    assert "0 running, 0 stalled, 1 failed, 2 waiting" in done.stdout, done.stderr
    assert "failed: last-layers, 25 %, seed 42: fit: RuntimeError: no luck\n" in done.stdout
    assert done.stdout.endswith("RuntimeError: no luck\n")
    command = [sys.executable, "-m", "workflows.steps.report", "--results", "results/toy"]
    done = subprocess.run([*command, "--out", "page"], cwd=finished, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "last-layers b25 s42 failed (RuntimeError: no luck)" in done.stderr
    assert pd.read_csv(finished / "page/tables/retain.csv")["row"].tolist() == list(before["row"])
    file.unlink()
    shutil.rmtree(logs)


def test_the_report_step_needs_records_alone(finished: Path, tmp_path: Path) -> None:
    results = shutil.copytree(
        finished / "results/toy", tmp_path / "toy", ignore=shutil.ignore_patterns("model", "logs")
    )
    command = [sys.executable, "-m", "workflows.steps.report"]
    done = subprocess.run(
        [*command, "--results", str(results), "--out", str(tmp_path / "page")],
        cwd=finished,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for name in ("tables/retain.csv", "tables/retain.tex", "index.html"):
        again = (tmp_path / "page" / name).read_bytes()
        assert again == (finished / "reports/toy" / name).read_bytes()


@pytest.mark.long
def test_a_run_killed_in_the_middle_ends_with_the_same_records(
    finished: Path, tmp_path: Path, run_snakemake: Snakemake
) -> None:
    copy = toy_checkout(tmp_path / "checkout")
    command = [sys.executable, "-m", "snakemake", *SUITE]
    running = subprocess.Popen(
        command,
        cwd=copy,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: records(copy, "toy"), running, limit=200)
    for process in [*psutil.Process(running.pid).children(recursive=True), running]:
        os.kill(process.pid, signal.SIGKILL)
    running.wait()
    assert len(records(copy, "toy")) < len(ROWS)
    run_snakemake(copy, "--unlock", "--configfile", "toy.yaml")
    status, said = run_snakemake(copy, *SUITE)
    assert status == 0, said
    assert records(copy, "toy") == records(finished, "toy")
    for name in ("retain.csv", "scores.csv"):
        first = (finished / "reports/toy/tables" / name).read_bytes()
        assert (copy / "reports/toy/tables" / name).read_bytes() == first
    for file in (finished / "results/toy").rglob("record.items.parquet"):
        other = copy / file.relative_to(finished)
        assert pd.read_parquet(other).equals(pd.read_parquet(file))


def test_a_wrong_param_ends_in_the_check(finished: Path, run_snakemake: Snakemake) -> None:
    suite = yaml.safe_load((finished / "toy.yaml").read_text())
    wrong = suite | {"suite": "wrong", "derive": {"x": {"from": "random-skip"}}}
    wrong["derive"]["x"]["params"] = {"unit": "fnn"}
    (finished / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    status, said = run_snakemake(finished, "--configfile", "wrong.yaml", "--cores", "1")
    assert status != 0
    assert "error: suite config, 'x': row 'random-skip': param 'unit' is 'fnn'" in said
    assert "Traceback" not in said
    left = {f.name for f in (finished / "results/wrong").rglob("*") if f.is_file()}
    assert left <= {"check.log", "check.status"}


def test_a_file_in_place_of_the_results(tmp_path: Path, run_snakemake: Snakemake) -> None:
    copy = toy_checkout(tmp_path / "checkout")
    shutil.rmtree(copy / "results")
    (copy / "results").write_text("mine")
    status, said = run_snakemake(copy, *SUITE)
    assert status != 0
    assert "Traceback" not in said
    assert "results is a file, a folder is needed there" in said
    assert (copy / "results").read_text() == "mine"


def examples(*, trained: bool) -> dict[str, Path]:
    """The methods that CONTRIBUTING shows, by the names of their rows."""
    files = {f.stem.replace("_", "-"): f for f in sorted((ROOT / "tests/examples").glob("*.py"))}
    assert all(f"tests/examples/{f.name}" in CONTRIBUTING.read_text() for f in files.values())
    learns = [row for row, file in files.items() if "trained = True" in file.read_text()]
    return {row: file for row, file in files.items() if trained or row not in learns}


@pytest.mark.long
def test_a_task_that_is_added_is_scored_in_the_first_call_after_it(
    finished: Path, tmp_path: Path, run_snakemake: Snakemake
) -> None:
    copy = shutil.copytree(finished, tmp_path / "checkout", symlinks=True)
    suite = yaml.safe_load((copy / "toy.yaml").read_text())
    suite["tasks"].append({"task": "toy_write", "limit": 2, "metric": "exact_match"})
    suite["tasks"] = [task for task in suite["tasks"] if task.get("limit") != 4]
    (copy / "toy.yaml").write_text(yaml.safe_dump(suite))
    status, said = run_snakemake(copy, *SUITE)
    assert status == 0, said
    written = [
        s for r in records(copy, "toy").values() for s in r["scores"] if s["task"] == "toy_write"
    ]
    assert {score["n"] for score in written} == {2}

    suite["derive"] = {"odd": {"from": "random-skip", "params": {"no_such": 1}}}
    (copy / "toy.yaml").write_text(yaml.safe_dump(suite))
    status, said = run_snakemake(copy, *SUITE)
    assert status != 0
    assert "suite config, 'odd'" in said


@pytest.mark.long
def test_a_new_method_file_is_all_it_takes(finished: Path, run_snakemake: Snakemake) -> None:
    """Runs late: it adds rows of CONTRIBUTING to the finished copy, whose suite trains none."""
    before, added = records(finished, "toy"), examples(trained=False)
    for file in added.values():
        shutil.copy(file, finished / "methods")
    code = "from methods import discover; print(*discover())"
    listed = subprocess.run(
        [sys.executable, "-c", code], cwd=finished, capture_output=True, text=True
    )
    assert listed.stdout.split() == [*ROWS, *added]
    status, said = run_snakemake(finished, *SUITE)
    assert status == 0, said
    assert "random-skip/b25/s42/model" not in said
    lines = table(finished).set_index("row")
    assert lines.index.tolist() == [*ROWS, *added]
    assert lines.loc["last-layers", "title"] == "Last layers"
    assert lines.loc["last-layers", "skip"] == pytest.approx(100 * 2 * 9280 / 59808, abs=1e-3)
    assert lines.loc["quiet-tokens", "skip"] == pytest.approx(25, abs=5)
    after = records(finished, "toy")
    assert {name: after[name] for name in before} == before


@pytest.mark.long
def test_the_contract_can_be_run_for_a_row_alone(finished: Path) -> None:
    """As CONTRIBUTING says; LoRA heals a static one."""
    for file in (ROOT / "methods/lora.py", *examples(trained=True).values()):
        shutil.copy(file, finished / "methods")
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "tests/contract"]
    done = subprocess.run(
        [*command, "-k", " or ".join(examples(trained=True))],
        cwd=finished,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_a_healed_model_is_scored_while_what_it_stands_on_is_there(
    tmp_path: Path, run_snakemake: Snakemake
) -> None:
    """Also where models that nothing trained are deleted once scored: those it stands on stay."""
    copy = toy_checkout(tmp_path / "checkout")
    for name in ("shortgpt", "lora"):
        shutil.copy(ROOT / f"methods/{name}.py", copy / "methods")
    suite = yaml.safe_load((copy / "toy.yaml").read_text())
    suite |= {
        "rows": ["dense", "shortgpt"],
        "derive": {"shortgpt+lora": {"from": "shortgpt", "then": "lora", "params": {"rank": 2}}},
        "training": {"updates": 2, "batch_tokens": 60, "row_length": 30, "learning_rate": 0.001},
        "keep_models": "trained",
        "noise_batch_sizes": [],
    }
    suite["data"]["training"] = {"source": "toy/data/training.jsonl"}
    (copy / "toy.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")
    run = "results/toy/small/{}/b25/s42/{}"
    wanted = (run.format("shortgpt", "record.json"), run.format("shortgpt+lora", "record.json"))
    for target in wanted:
        status, said = run_snakemake(copy, target, "--configfile", "toy.yaml", "--cores", "1")
        assert status == 0, said
    # Scored by another metric, under another time between snapshots, nothing is fitted again.
    suite["tasks"][0]["metric"] = "acc_norm"
    suite["training"]["snapshot_minutes"] = 3
    (copy / "toy.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")
    status, said = run_snakemake(copy, "-n", *wanted, "--configfile", "toy.yaml")
    assert status == 0, said
    assert "\nscore " in said
    assert "\nfit" not in said
