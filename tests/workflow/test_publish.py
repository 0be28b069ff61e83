"""Committed tables and the READMEs that quote them: nothing is typed, and stale tables say so."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests import steps
from tests.records import code, suite, write_run, write_suite
from tests.stale import stale
from tests.workflow.conftest import checkout_files
from workflows import ROOT
from workflows.report import FRAMES
from workflows.report.published import REFERENCE, SOURCE
from workflows.report.readme import COMMAND, page_of, render, templates
from workflows.runtime.provenance import code_hash
from workflows.suite.jobs import Suite, read_suite

DEMO = REFERENCE / "demo"
PUBLISHED = sorted(file.parent.name for file in REFERENCE.glob(f"*/{SOURCE}"))
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize("template", templates(REFERENCE), ids=lambda t: str(t.parent.name))
def test_a_readme_is_what_its_template_says_of_the_frames(template: Path) -> None:
    page = page_of(template)
    same = page.read_text(encoding="utf-8") == render(template, REFERENCE)
    assert same, f"{page} differs from {template}; edit that, then run {COMMAND}"


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / name for name in checkout_files() if name.endswith(".md")]
    for page in pages:
        for address, heading in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in address:
                goal = (page.parent / address) if address else page
                assert goal.exists(), f"{page}: {address}"
                assert not heading or heading in headings(goal), f"{page}: {address}#{heading}"


def headings(page: Path) -> set[str]:
    """The names of a page's headings in addresses."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.fixture
def demo() -> Suite:
    return read_suite(yaml.safe_load((ROOT / "workflows/suites/demo.yaml").read_text()))


@pytest.mark.parametrize("suite", PUBLISHED)
def test_the_committed_frames_say_when_they_are_stale(suite: str) -> None:
    """A warning, not a failure: a new method file or a comment must not need a run of an hour."""
    config = yaml.safe_load((ROOT / f"workflows/suites/{suite}.yaml").read_text())
    for sentence in stale(REFERENCE / suite, read_suite(config)):
        warnings.warn(f"reports/reference/{suite} is stale: {sentence}", stacklevel=1)
    assert json.loads((REFERENCE / suite / SOURCE).read_text())["suite"] == suite


def test_the_committed_scores_of_dense_are_still_those_of_the_demo(tmp_path: Path) -> None:
    """World, backbone and harness are scored again: another machine may move two items."""
    tasks = ["demo_facts", "demo_ordering"]
    backbone = ROOT / "workflows/demo/backbone"
    command = ["--model", backbone, "--tasks", ",".join(tasks), "--max-length", "256"]
    out = tmp_path / "record.json"
    steps.call("score", *command, "--batch-size", "32", "--device", "cpu", "--out", out)
    told = pd.read_csv(DEMO / "scores.csv")
    for score in json.loads(out.read_text())["scores"]:
        same = told[(told["row"] == "dense") & (told["task"] == score["task"])]
        (line,) = same[same["metric"] == score["metric"]].to_dict("records")
        assert score["n"] == line["n"]
        assert abs(score["k"] - line["k"]) <= 2


TEMPLATE = """{% set of = suite("made") %}
{{ of.table }}
{% set lead = of.lead("shortgpt+lora", "hero", 25) %}
{% set turned = of.lead("hero", "shortgpt+lora", 25) %}
Hero {{ of.retain("hero", 25).retain }}, {{ number(turned.low) }} {{ number(-lead.high) }}.
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made results of both protocols, published beside a template of their own."""
    folder = tmp_path_factory.mktemp("published")
    results = write_suite(folder / "results", ("pooled", "split"))
    reference = folder / "reports/reference"
    (reference / "made").mkdir(parents=True)
    (reference / "made/README.md.jinja").write_text(TEMPLATE)
    (reference / "project.md.jinja").write_text('{{ suite("made").source.runs }} runs\n')
    steps.call("publish", "--results", results, "--reference", reference)
    return folder


def test_publishing_writes_every_frame_and_the_readmes(published: Path) -> None:
    made = published / "reports/reference/made"
    assert {file.stem for file in made.glob("*.csv")} == set(FRAMES)
    runs = json.loads((made / SOURCE).read_text())["runs"]
    assert (published / "README.md").read_text().splitlines()[1:] == [f"{runs} runs"]
    text = (made / "README.md").read_text()
    retain = pd.read_csv(made / "retain.csv")
    hero = retain[(retain["row"] == "hero") & (retain["target"] == 25)].set_index("match")
    differences = pd.read_csv(made / "differences.csv")
    keys = ["row", "against", "measure", "target", "match"]
    line = differences.set_index(keys).loc["shortgpt+lora", "hero", "retain", 25.0, "pooled"]
    low = f"{-line['high']:.2f}"
    assert f"Hero {hero.loc['pooled', 'retain']:.1f}, {low} {low}." in text
    assert "not applicable: its widths do not fit" in text
    assert "batch size 8 moves 2 of 140 items" in text


def test_what_a_suite_makes_no_longer_goes(tmp_path: Path) -> None:
    for matches in (("pooled", "split"), ("pooled",)):
        results = write_suite(tmp_path / "-".join(matches), matches)
        steps.call("publish", "--results", results, "--reference", tmp_path / "reference")
        steps.report_tables(results, tmp_path / "page")
        shown = {file.stem for file in (tmp_path / "reference/made").glob("*.svg")}
        assert ("protocols" in shown) == (len(matches) == 2)
        split = [*(tmp_path / "page/tables").glob("*_split.*")]
        assert bool(split) == (len(matches) == 2)
    assert (tmp_path / "page/tables/retain.md").is_file()


def test_the_table_of_each_protocol_holds_its_lines_with_the_marks_of_the_report(
    published: Path,
) -> None:
    steps.report_tables(published / "results", published / "page")
    made = published / "reports/reference/made"
    retain = pd.read_csv(made / "retain.csv")
    parts = re.split(r"^Match (pooled|split): .*\n\n", (made / "README.md").read_text(), flags=re.M)
    assert parts[1::2] == ["pooled", "split"]
    for match, part in zip(parts[1::2], parts[2::2], strict=True):
        own = retain[retain["match"] == match].to_dict("records")
        heads, _, *rest = (cells(line) for line in part.splitlines() if line.startswith("| "))
        lines = [dict(zip(heads, line, strict=True)) for line in rest]
        assert [line["Seeds"] for line in lines] == [str(line["seeds"]) for line in own]
        end = "" if match == "pooled" else "_split"
        whole = (published / f"page/tables/retain{end}.md").read_text().splitlines()
        place = cells(whole[0]).index("Retain")
        marked = [cells(line)[place] for line in whole if line.startswith("| ")][2:]
        assert sum("**" in cell for cell in marked) == 2
        for told, line, kept in zip(own, lines, marked, strict=True):
            assert line["Row"] == told["title"].replace("_", r"\_")
            assert line["Retain"] == kept
            columns = {"On prompts": "prompt", "On answers": "answer", "Net": "net"}
            for head, name in columns.items():
                value = told[f"skip_{name}"]
                assert line[head] == ("–" if pd.isna(value) else f"{value:.2f}")
            if not pd.isna(told["retain"]):
                assert line["Skip"].startswith(f"{told['skip']:.2f}")
                assert f"{told['retain']:.2f}" in line["Retain"]
                assert (
                    line["95 % interval"]
                    == f"{told['retain_low']:.1f} to {told['retain_high']:.1f}"
                )


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


MISTAKES = {
    'retain("gone", 25).retain': "retain.csv has 0 lines with {'row': 'gone'",
    'line("retain", match="pooled").retain': "lines with {'match': 'pooled'}, not 1",
    'retain("hero", 25).retian': "has no attribute 'retian'",
    'line("retain", rwo="hero").retain': "wrong.md.jinja: 'rwo'",
    'retain("dense").retain_std': "quotes a number that its frame lacks",
}


@pytest.mark.parametrize("look_up", MISTAKES)
def test_a_look_up_that_finds_no_figure_is_refused_and_no_page_is_written(
    look_up: str, published: Path, refuse: steps.Refuse, tmp_path: Path
) -> None:
    reference = tmp_path / "reports/reference"
    shutil.copytree(published / "reports/reference/made", reference / "made")
    (reference / "made/README.md").unlink()
    (reference / "wrong.md.jinja").write_text(f'{{{{ suite("made").{look_up} }}}}')
    assert MISTAKES[look_up] in refuse("publish", "--reference", reference)


def with_source(folder: Path, **changes: Any) -> Path:
    told = json.loads((folder / SOURCE).read_text())
    (folder / SOURCE).write_text(json.dumps(told | changes))
    return folder


def test_stale_tables_are_told(demo: Suite, tmp_path: Path) -> None:
    folder = shutil.copytree(DEMO, tmp_path / "demo")
    rows = list(dict.fromkeys(job.row for job in demo.jobs))
    frame = pd.read_csv(folder / "retain.csv").iloc[:1]
    made = pd.concat([frame.assign(row=row) for row in rows])
    made.to_csv(folder / "retain.csv", index=False)
    parts = ("methods/core", "methods/hero", "workflows/demo")
    now = {part: [code_hash(part)] for part in parts}
    assert stale(with_source(folder, code=now), demo) == []
    older = now | {"methods/hero": ["old"], "methods/core": ["old", *now["methods/core"]]}
    assert stale(with_source(folder, code=older), demo) == [
        "methods/core, methods/hero changed since records were made"
    ]
    with_source(folder, code=now)
    made.iloc[1:].to_csv(folder / "retain.csv", index=False)
    assert stale(folder, demo) == [f"the table lacks rows of the suite: {rows[0]}"]
    pd.concat([made, frame.assign(row="gone")]).to_csv(folder / "retain.csv", index=False)
    assert stale(folder, demo) == ["the suite lacks rows of the table: gone"]


def test_a_protocol_that_a_suite_gained_is_told_as_stale(tmp_path: Path) -> None:
    results = write_suite(tmp_path / "results")
    steps.call("publish", "--results", results, "--reference", tmp_path)
    config = {
        "suite": "made", "backbones": {"toy": {"path": "workflows/demo/backbone"}},
        "rows": ["dense", "lora", "random-skip", "hero", "slicegpt", "shortgpt"],
        "budgets": [0.25, 0.4], "derive": {"shortgpt+lora": {"from": "shortgpt", "then": "lora"}},
        "seeds": [42], "tasks": ["demo_facts"], "match": ["pooled", "split"],
    }  # fmt: skip
    assert stale(tmp_path / "made", read_suite(config))[0] == (
        "the table lacks rows of the suite: hero (match split), random-skip (match split), shortgpt"
    )


def test_the_source_names_all_code_that_made_the_records(tmp_path: Path) -> None:
    dense, hero = suite()[0], suite()[3]
    write_run(tmp_path / "results", dense)
    write_run(tmp_path / "results", hero | {"fit_code": code("hero", **{"methods/hero": "e"})})
    steps.call("publish", "--results", tmp_path / "results", "--reference", tmp_path)
    assert json.loads((tmp_path / "made" / SOURCE).read_text())["code"] == {
        "methods/core": ["c"], "methods/dense": ["m"], "methods/hero": ["e", "m"],
    }  # fmt: skip


def test_the_source_names_each_machine_and_the_records_are_those_of_the_table(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    runs = {run["seed"]: run for run in suite() if run["row"] == "hero" and run["budget"] == 0.25}
    for folder in (first, second):
        write_run(folder, suite()[0])
    write_run(first, runs[42])
    machine = {"processor": "q", "cores": 8, "accelerator": None}
    write_run(second, runs[43] | {"hardware": machine})
    reference = tmp_path / "reference"
    steps.call("publish", "--results", first, "--reference", reference)
    steps.call("publish", "--results", reference / "made", second, "--reference", reference)
    told = json.loads((reference / "made" / SOURCE).read_text())
    parts = [(part["hardware"]["processor"], part["runs"], part["seeds"]) for part in told["parts"]]
    assert parts == [("p", 2, [42]), ("q", 1, [43])]
    assert any("differ in processor" in caution for caution in told["cautions"])
    steps.report_tables(reference / "made", tmp_path / "page")
    for name in ("retain", "differences", "scores"):
        table = (tmp_path / f"page/tables/{name}.csv").read_text()
        assert table == (reference / f"made/{name}.csv").read_text()
