"""The job list of every suite, and suites that are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from methods import discover
from tests import steps
from workflows import ROOT
from workflows.suite.jobs import read_suite

Snakemake = Callable[..., tuple[int, str]]
SUITES = sorted(path.stem for path in (ROOT / "workflows/suites").glob("*.yaml"))
EXAMPLE = "own_backbone"
# All dry runs in one process: most of the time of one is its start.
DRY_RUNS = """
import sys
from snakemake.cli import main
for file in sys.argv[1:]:
    print("=== begin", flush=True)
    try:
        main(["-n", "--configfile", file] if file else ["-n"])
    except SystemExit as end:
        print("=== status", end.code, flush=True)
"""


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
        for named in set(re.findall(r"PATH/TO/(\w+\.\w+)", file.read_text())):
            (paths / named).write_text("w1")
    return file


@pytest.fixture(scope="module")
def dry_runs(plain_copy: Path) -> dict[str, str]:
    """What a dry run of each suite prints; under "" that of a call without a suite."""
    files = [fill_in(plain_copy, name) for name in SUITES]
    done = steps.python("-c", DRY_RUNS, *files, "", cwd=plain_copy, timeout=400)
    texts = done.stdout.split("=== begin\n")[1:]
    return dict(zip([*SUITES, ""], texts, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("name", SUITES)
def test_dry_run_lists_every_row(
    name: str, plain_copy: Path, dry_runs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, said = fill_in(plain_copy, name), dry_runs[name]
    assert said.endswith("=== status 0\n"), said
    monkeypatch.chdir(plain_copy)
    suite = read_suite(yaml.safe_load(file.read_text()), plain_copy)
    if suite.config["rows"] == "all":
        assert {job.method.name for job in suite.jobs} >= set(discover())
    for job in suite.jobs:
        assert f"{job.folder}/record.json" in said
    # No key of the default suite reaches another one.
    assert "results/demo/" not in said or name == "demo"
    assert not (plain_copy / "results" / name).exists()


@pytest.mark.long
def test_without_a_suite_the_demo_runs(dry_runs: dict[str, str]) -> None:
    assert dry_runs[""].endswith("=== status 0\n"), dry_runs[""]
    assert "results/demo/demo/shortgpt/b25/s42/record.json" in dry_runs[""]


RIGHT = {
    "suite": "wrong",
    "backbones": {"demo": {"path": "workflows/demo/backbone"}},
    "rows": ["dense", "shortgpt"],
    "budgets": [0.25],
    "seeds": [42],
    "tasks": ["demo_facts"],
}
# tests/unit/suite/test_suite_mistakes.py has every mistake; here one of the schema, one of ours.
WRONG = {
    "misspelt key": ({"budgtes": [0.25]}, "'budgtes' was unexpected"),
    "unknown row": ({"rows": ["dense", "shortgtp"]}, "unknown row 'shortgtp'"),
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
