"""The README's table: it is what the committed frames say, and it says when it is stale."""

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
from tests.made_records import code, suite, write_run, write_suite
from workflows import ROOT
from workflows.jobs import Suite, read_suite
from workflows.runtime.provenance import code_hash
from workflows.stats.budget import PROMPT_TOLERANCE, TOLERANCE
from workflows.steps.publish import REFERENCE, SOURCE, block, page_of, put_block, read_block, stale

DEMO = REFERENCE / "demo"
PUBLISHED = sorted(file.parent.name for file in REFERENCE.glob(f"*/{SOURCE}"))
MARKS = "<!-- table of {}: made by workflows.steps.publish -->\n<!-- end of table -->\n"


@pytest.fixture(scope="module")
def demo() -> Suite:
    return read_suite(yaml.safe_load((ROOT / "workflows/suites/demo.yaml").read_text()))


@pytest.mark.parametrize("suite", PUBLISHED)
def test_the_readme_shows_the_committed_frames(suite: str) -> None:
    """Fails after an edit of either; `python -m workflows.steps.publish` writes both."""
    page = page_of(suite)
    _, shown, _ = read_block(page, suite)
    assert shown == block(REFERENCE / suite, page) + "\n"
    (link,) = re.findall(r"\]\(([^)]*retain\.csv)\)", shown)
    assert (page.parent / link).is_file()


@pytest.mark.parametrize("suite", PUBLISHED)
def test_the_committed_frames_say_when_they_are_stale(suite: str) -> None:
    """A warning, not a failure: a new method file or a comment must not need a run of an hour."""
    config = yaml.safe_load((ROOT / f"workflows/suites/{suite}.yaml").read_text())
    for sentence in stale(REFERENCE / suite, read_suite(config)):
        warnings.warn(f"reports/reference/{suite} is stale: {sentence}", stacklevel=1)
    assert json.loads((REFERENCE / suite / SOURCE).read_text())["suite"] == suite


@pytest.mark.parametrize("suite", PUBLISHED)
def test_rows_matched_where_it_counts_meet_both_budgets_or_say_so(suite: str) -> None:
    """Skip is a mean over seeds; a row that misses within one of them says so as well."""
    budgets = pd.read_csv(REFERENCE / suite / "budgets.csv")
    notes = pd.read_csv(REFERENCE / suite / "retain.csv").set_index(["target", "match", "row"])
    held = {"skip_deciding": 100 * TOLERANCE, "skip_prompt": 100 * PROMPT_TOLERANCE}
    routed = budgets[budgets["match"].eq("each") & budgets["target"].notna()]
    for line in routed.to_dict("records"):
        off = {kind: abs(line[kind] - line["target"]) for kind in held}
        note = str(notes.loc[(line["target"], line["match"], line["row"]), "note"])
        if "budget by" not in note:
            assert all(off[kind] <= most + 0.005 for kind, most in held.items()), line


def lines_of(name: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = json.loads((REFERENCE / f"{name}.json").read_text())["lines"]
    return lines


def took(line: dict[str, Any]) -> str:
    low, high = line["interval"]
    return f"{line['over_dense']:.3f} ({low:.3f} to {high:.3f})"


def share(line: dict[str, Any]) -> str:
    realised = line["realised_share"]
    return "–" if realised is None else f"{100 * realised:.0f} %"


def test_the_tables_of_one_thread_are_what_the_files_hold() -> None:
    """Every line of the files that they are copied from, and no other."""
    page = (REFERENCE / "README.md").read_text(encoding="utf-8")
    expected = []
    for name in ("hero_cpu_512", "hero_cpu_512_training", "hero_cpu_1024_block"):
        for line in lines_of(name):
            left = f"| {line['mode']} | {line['case']} | {100 * line['bypass']:.1f} % "
            right = f"| {took(line)} | {line['bound']:.3f} | {share(line)} |"
            expected.append(left + right)
    for file in REFERENCE.glob("hero_cpu_*.json"):
        made = json.loads(file.read_text())
        if made["command"]["modes"] != "decode":
            continue
        cpu = re.sub(r"\(R\)|\(TM\)| Processor", "", made["hardware"]["processor"])
        for line in made["lines"]:
            assert line["case"] == "1x128"
            cells = [f"{100 * line['bypass']:.1f} %", f"{line['bound']:.3f}", took(line)]
            shown = [made["command"]["shape"], cpu, *cells, share(line)]
            expected.append(f"| {' | '.join(shown)} |")
    shown = re.findall(r"^\|.* \d\.\d{3} \(\d.*\|$", page, re.M)
    assert sorted(shown) == sorted(expected)


def test_the_committed_scores_of_dense_are_still_those_of_the_demo(tmp_path: Path) -> None:
    """World, backbone and harness are scored again: another machine may move two items."""
    tasks = ["demo_facts", "demo_ordering"]
    backbone = ROOT / "workflows/demo/backbone"
    command = ["--model", backbone, "--tasks", ",".join(tasks), "--max-length", "256"]
    out = tmp_path / "record.json"
    steps.call("evaluate", *command, "--batch-size", "32", "--device", "cpu", "--out", out)
    told = pd.read_csv(DEMO / "scores.csv")
    for score in json.loads(out.read_text())["scores"]:
        same = told[(told["row"] == "dense") & (told["task"] == score["task"])]
        (line,) = same[same["metric"] == score["metric"]].to_dict("records")
        assert score["n"] == line["n"]
        assert abs(score["k"] - line["k"]) <= 2


def test_every_number_of_the_block_stands_in_a_frame() -> None:
    retain = pd.read_csv(DEMO / "retain.csv")
    lines = block(DEMO, ROOT / "README.md").split("\n\n")[1].splitlines()[2:]
    for told, line in zip(retain.to_dict("records"), lines, strict=True):
        cells = [re.sub(r"\*\*|</?u>| ≈", "", cell.strip()) for cell in line.split("|")[1:-1]]
        assert cells[0] == told["title"].replace("_", r"\_")
        assert cells[2].startswith(f"{told['skip']:.2f}")
        for cell, name in zip(cells[3:6], ("prompt", "deciding", "net"), strict=True):
            value = told[f"skip_{name}"]
            assert cell == ("–" if pd.isna(value) else f"{value:.2f}")
        assert cells[6].startswith(f"{told['retain']:.2f}")
        assert cells[7] == f"{told['retain_low']:.1f} to {told['retain_high']:.1f}"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Made results, published beside a README of their own."""
    results = write_suite(tmp_path / "results")
    readme = tmp_path / "README.md"
    readme.write_text("Before.\n" + MARKS.format("made") + "Behind.\n")
    out = tmp_path / "reference"
    steps.call("publish", "--results", results, "--out", out, "--page", readme)
    return tmp_path


def made_block(published: Path) -> str:
    return block(published / "reference", published / "README.md")


def test_publishing_writes_every_frame_and_the_readme(published: Path) -> None:
    text = (published / "README.md").read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("Behind.\n")
    assert "| Hero | 25 | 25.03 ± 0.01 |" in text
    assert "not applicable: its widths do not fit" in text
    assert "batch size 8 moves 2 of 140 items" in text
    names = {file.stem for file in (published / "reference").glob("*.csv")}
    assert names == {
        "retain", "ranks", "differences", "budgets", "costs", "noise", "scores",
        "paper_values", "paper_order", "paper_agreement", "speeds",
    }  # fmt: skip
    _, shown, _ = read_block(published / "README.md", "made")
    assert shown == made_block(published) + "\n"


def test_two_protocols_are_published_as_two_tables(tmp_path: Path) -> None:
    results = write_suite(tmp_path / "results", ("pooled", "each"))
    readme = tmp_path / "README.md"
    readme.write_text(MARKS.format("made"))
    command = ["--results", results, "--out", tmp_path / "out", "--page", readme]
    steps.call("publish", *command)
    text = readme.read_text()
    parts = re.split(r"^Match (pooled|each): .*\n\n", text, flags=re.MULTILINE)
    assert parts[1::2] == ["pooled", "each"]
    for match, part in zip(parts[1::2], parts[2::2], strict=True):
        retain = pd.read_csv(tmp_path / "out/retain.csv")
        own = retain[retain["match"] == match]
        lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
        assert len(lines) == len(own) == 9
        for told, line in zip(own.to_dict("records"), lines, strict=True):
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if not pd.isna(told["retain"]):
                assert cells[3:5] == [f"{told[f'skip_{k}']:.2f}" for k in ("prompt", "deciding")]
                assert f"{told['retain']:.2f}" in cells[6]
        assert part.count("**") == 2 * 2


def test_a_protocol_that_a_suite_gained_is_told_as_stale(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(MARKS.format("made"))
    results = write_suite(tmp_path / "results")
    command = ["--results", results, "--out", tmp_path / "out", "--page", readme]
    steps.call("publish", *command)
    config = {
        "suite": "made", "backbones": {"toy": {"path": "workflows/demo/backbone"}},
        "rows": ["dense", "lora", "random-skip", "hero", "slicegpt"], "budgets": [0.25, 0.4],
        "derive": {"shortgpt+lora": {"from": "shortgpt", "then": "lora"}}, "seeds": [42],
        "tasks": ["demo_facts"], "match": ["pooled", "each"],
    }  # fmt: skip
    config["rows"].append("shortgpt")
    lacking = stale(tmp_path / "out", read_suite(config))[0]
    assert lacking == (
        "the table lacks rows of the suite: hero (match each), random-skip (match each), shortgpt"
    )


def test_publishing_twice_changes_nothing(published: Path) -> None:
    before = (published / "README.md").read_bytes()
    put_block(published / "README.md", "made", made_block(published))
    assert (published / "README.md").read_bytes() == before


def test_best_and_second_are_those_of_the_report(published: Path) -> None:
    steps.call("report", "--results", published / "results", "--out", published / "page")
    whole = (published / "page/tables/retain.md").read_text().splitlines()
    column = [cell.strip() for cell in whole[0].split("|")].index("Retain")
    expected = [line.split("|")[column].strip() for line in whole if line.startswith("| ")][2:]
    _, shown, _ = read_block(published / "README.md", "made")
    head, _, *lines = [line for line in shown.splitlines() if line.startswith("| ")]
    heads = [cell.strip() for cell in head.split("|")]
    assert [line.split("|")[heads.index("Retain")].strip() for line in lines] == expected
    assert any("**" in cell for cell in expected)
    assert any("<u>" in cell for cell in expected)


def test_an_edit_of_the_readme_or_of_a_frame_is_seen(published: Path) -> None:
    readme, frame = published / "README.md", published / "reference/retain.csv"
    text = readme.read_text()
    readme.write_text(text.replace("25.03", "26.03"))
    _, shown, _ = read_block(readme, "made")
    assert shown != made_block(published) + "\n"
    readme.write_text(text)
    frame.write_text(frame.read_text().replace("25.03", "26.03"))
    _, shown, _ = read_block(readme, "made")
    assert shown != made_block(published) + "\n"


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


def test_the_source_names_all_code_that_made_the_records(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(MARKS.format("made"))
    dense, hero = suite()[0], suite()[3]
    write_run(tmp_path / "results", dense)
    write_run(tmp_path / "results", hero | {"fit_code": code("hero", **{"methods/hero": "e"})})
    out = tmp_path / "out"
    steps.call("publish", "--results", tmp_path / "results", "--out", out, "--page", readme)
    assert json.loads((out / SOURCE).read_text())["code"] == {
        "methods/core": ["c"], "methods/dense": ["m"], "methods/hero": ["e", "m"],
    }  # fmt: skip


def test_a_readme_without_marks_is_refused(tmp_path: Path, refuse: steps.Refuse) -> None:
    results = write_suite(tmp_path / "results")
    (tmp_path / "README.md").write_text("Nothing.\n")
    command = ["--results", results, "--out", tmp_path / "out", "--page", tmp_path / "README.md"]
    assert "has no line '<!-- table of made: made by" in refuse("publish", *command)
