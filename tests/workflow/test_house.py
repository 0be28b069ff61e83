"""Lint, format and the job list of every suite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from methods import discover
from workflows import ROOT
from workflows.suite.jobs import read_suite

Snakemake = Callable[..., tuple[int, str]]
SUITES = sorted(path.stem for path in (ROOT / "workflows/suites").glob("*.yaml"))
EXAMPLE = "own_backbone"


def fill_in(copy: Path, name: str) -> Path:
    """A suite's file; the example gets files where it says PATH."""
    file = copy / "workflows/suites" / f"{name}.yaml"
    if name != EXAMPLE:
        return file
    paths = copy / "PATH/TO"
    if not paths.is_dir():
        paths.mkdir(parents=True)
        (paths / "BACKBONE").mkdir()
        (paths / "BACKBONE/config.json").write_text("{}")
        for text in ("text.txt", "piqa.jsonl", "arc_easy.jsonl", "winogrande.jsonl"):
            (paths / text).write_text("w1")
    return file


@pytest.mark.parametrize("name", SUITES)
def test_dry_run_lists_every_row(
    name: str, plain_copy: Path, run_snakemake: Snakemake, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fill_in(plain_copy, name)
    status, said = run_snakemake(plain_copy, "-n", "--configfile", str(file))
    assert status == 0, said
    monkeypatch.chdir(plain_copy)
    suite = read_suite(yaml.safe_load(file.read_text()), plain_copy)
    if suite.config["rows"] == "all":
        assert {job.method.name for job in suite.jobs} >= set(discover())
    for job in suite.jobs:
        assert f"{job.folder}/record.json" in said
    # No key of the default suite reaches another one.
    assert "results/demo/" not in said or name == "demo"
    assert not (plain_copy / "results" / name).exists()


def test_without_a_suite_the_demo_runs(plain_copy: Path, run_snakemake: Snakemake) -> None:
    status, said = run_snakemake(plain_copy, "-n")
    assert status == 0, said
    assert "results/demo/demo/shortgpt/b25/s42/record.json" in said


def test_lint(plain_copy: Path, run_snakemake: Snakemake) -> None:
    status, said = run_snakemake(plain_copy, "--lint")
    assert status == 0, said


def test_format() -> None:
    tool = Path(sys.executable).parent / "snakefmt"
    command = [str(tool), "--check", "Snakefile", "workflows/rules"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


RIGHT = {
    "suite": "wrong",
    "backbones": {"demo": {"path": "workflows/demo/backbone"}},
    "rows": ["dense", "shortgpt"],
    "budgets": [0.25],
    "seeds": [42],
    "tasks": ["demo_facts"],
}
WRONG = {
    "misspelt key": ({"budgtes": [0.25]}, "'budgtes' was unexpected"),
    "unknown row": ({"rows": ["dense", "shortgtp"]}, "unknown row 'shortgtp'"),
    "unknown task": ({"tasks": ["demo_fcats"]}, "unknown task 'demo_fcats'"),
    "budget": ({"budgets": [1.5]}, "1.5 must lie between 0 and 1"),
    "backbone": ({"backbones": {"a": {"path": "gone"}}}, "folder gone does not exist"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_suite_ends_before_any_job(
    case: str, plain_copy: Path, run_snakemake: Snakemake, tmp_path: Path
) -> None:
    changes, sentence = WRONG[case]
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(RIGHT | changes))
    status, said = run_snakemake(
        plain_copy, "--cores", "1", "--configfile", str(tmp_path / "wrong.yaml")
    )
    assert status != 0
    assert said.count(sentence) == 1
    assert "Traceback" not in said
    assert not (plain_copy / "results/wrong").exists()
    assert not (plain_copy / "reports/wrong").exists()
