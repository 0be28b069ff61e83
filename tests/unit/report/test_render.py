"""Tables as text: Markdown and HTML render, LaTeX holds nothing that LaTeX would choke on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.records import dense, record, score, write_run, write_suite
from workflows import ROOT
from workflows.report import FRAMES
from workflows.report.cautions import gap_cautions
from workflows.report.display import Cell, Table, number, plus, short_name, span
from workflows.report.figures import draw_all
from workflows.report.render import escape_latex, html_table, latex, markdown
from workflows.report.results import Results, read_results
from workflows.report.tables import make_frames, make_tables
from workflows.stats.frames import layer_frame
from workflows.stats.ranking import Mark

NASTY = r"a_b & 50 % of $x #1 {y} ~ ^ \z <i> | *b* ± ≈ –"
TABLE = Table(
    "t", "T", ["Row", "Score"],
    [[Cell(NASTY), Cell("-1.50", Mark(1))], [Cell("b"), Cell("+2.00", Mark(2, True))]],
    frozenset({"Row"}), "A note: 5 %.",
)  # fmt: skip
# Commands a table may use; \\ ends a line.
ALLOWED = {
    "begin", "end", "toprule", "midrule", "bottomrule", "textbf", "underline", "approx", "pm",
    "backslash", "sim", "wedge", "leq", "linewidth", "footnotesize",
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return read_results(write_suite(tmp_path_factory.mktemp("made")))


def test_the_frames_are_those_that_the_rule_writes(results: Results) -> None:
    assert sorted(make_frames(results)) == sorted(FRAMES)


@pytest.fixture(scope="module")
def tables(results: Results) -> list[Table]:
    all_tables = make_tables(results, make_frames(results))
    return [TABLE, *(table for same in all_tables.values() for table in same)]


def test_every_table_is_there(tables: list[Table]) -> None:
    assert [table.name for table in tables[1:]] == [
        "retain", "ranks", "differences_dense", "differences_hero", "budgets", "costs", "noise",
        "scores",
    ]  # fmt: skip


def cells(table: Table) -> list[str]:
    return [cell.text for line in table.lines for cell in line]


def test_markdown_renders_to_the_same_cells(tables: list[Table]) -> None:
    renderer = MarkdownIt("commonmark").enable("table")
    for table in tables:
        page = renderer.render(markdown(table, ["Take care: a|b_c."]))
        assert page.count("<table>") == 1
        assert len(re.findall("<th[ >]", page)) == len(table.columns)
        found = re.findall(r"<td[^>]*>(.*?)</td>", page)
        plain = [re.sub(r"</?(strong|u)>", "", cell).removesuffix(" ≈") for cell in found]
        entities = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"'}
        for name, sign in entities.items():
            plain = [cell.replace(name, sign) for cell in plain]
        assert plain == [text.removesuffix(" ≈") for text in cells(table)]
        assert "Take care: a|b_c." in page


def test_marks_in_every_form() -> None:
    assert "| **-1.50** |" in markdown(TABLE)
    assert "| <u>+2.00</u> ≈ |" in markdown(TABLE)
    assert r"& \textbf{$-$1.50} \\" in latex(TABLE)
    assert r"& \underline{$+$2.00}$^{\approx}$ \\" in latex(TABLE)
    assert '<td class="n"><b>-1.50</b></td>' in html_table(TABLE)
    assert "<u>+2.00</u>&#8202;≈" in html_table(TABLE)
    assert "&lt;i&gt;" in html_table(TABLE)


def test_a_link_in_a_cell_is_its_text() -> None:
    text = "[HeRo](javascript:alert(1)) ![p](http://evil.example/p.png)"
    table = markdown(Table("t", "T", ["Row"], [[Cell(text)]], {"Row"}), [text])
    page = MarkdownIt("commonmark").enable("table").render(table)
    assert (page.count(text), page.count("<a"), page.count("<img")) == (2, 0, 0)


def test_a_table_keeps_to_its_folder() -> None:
    with pytest.raises(ValueError, match=r"'differences_x/\.\./README' may hold no '/'"):
        Table("differences_x/../README", "T", [], [])


def without_math_and_escapes(line: str) -> str:
    bare = re.sub(r"\\[&%$#_{}]", "", line)
    return re.sub(r"\$[^$]*\$", "", bare)


def test_latex_is_of_a_checked_subset(tables: list[Table]) -> None:
    for table in tables:
        text = latex(table, ["100 % of a_b."])
        lines = text.splitlines()
        assert text.isascii()
        assert r"\begin{tabular}" in text
        assert lines[-1] == r"\end{tabular}"
        assert [line.strip() for line in lines if "rule" in line and line[:1] == "\\"] == [
            r"\toprule", r"\midrule", r"\bottomrule",
        ]  # fmt: skip
        assert set(re.findall(r"\\([A-Za-z]+)", text)) <= ALLOWED
        body = [line for line in lines if line.endswith(r" \\")]
        assert len(body) == len(table.lines) + 1
        for line in body:
            bare = without_math_and_escapes(line)
            assert bare.count("&") == len(table.columns) - 1
            assert bare.count("{") == bare.count("}")
            assert not re.search(r"[%$#_^~<>|]", bare)
        notes = text.split(r"\footnotesize")[1].split(r"\end{minipage}")[0].strip().split("\n\n")
        assert notes == [escape_latex(table.note), r"100 \% of a\_b."]


ENGINES = ("pdflatex", "lualatex", "xelatex", "tectonic")
ENGINE = next(filter(shutil.which, ENGINES), "")


@pytest.mark.skipif(not ENGINE, reason=f"none of {', '.join(ENGINES)} here")
def test_tables_and_figures_compile(results: Results, tables: list[Table], tmp_path: Path) -> None:
    frames = make_frames(results)
    draw_all(frames["retain"], frames["differences"], layer_frame(results.records), tmp_path)
    figures = sorted(tmp_path.glob("**/*.pdf"))
    parts = [latex(table, ["100 % of a_b."]) for table in tables]
    parts += [rf"\includegraphics{{{file.relative_to(tmp_path)}}}" for file in figures]
    head = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}\tiny"
    paper = "\n\n".join([head, *parts, r"\end{document}"])
    (tmp_path / "t.tex").write_text(paper, encoding="utf-8")
    strict = [] if ENGINE == "tectonic" else ["-interaction=nonstopmode", "-halt-on-error"]
    process = subprocess.run(
        [ENGINE, *strict, "t.tex"], cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout
    assert (tmp_path / "t.pdf").stat().st_size > sum(file.stat().st_size for file in figures) / 2


def test_html_is_balanced(tables: list[Table]) -> None:
    for table in tables:
        page = html_table(table)
        for tag in ("table", "thead", "tbody", "tr", "th", "td", "b", "u"):
            assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>")


def test_cells_show_a_dash_where_nothing_applies(results: Results) -> None:
    (table,) = make_tables(results, make_frames(results))["retain"]
    lines = {
        (line[0].text, line[1].text): dict(zip(table.columns, line, strict=True))
        for line in table.lines
    }
    assert lines["Dense", "–"]["Skip"].text == "0.00"
    assert lines["Dense", "–"]["95 % interval"].text == "100.0 to 100.0"
    assert re.fullmatch(r"25\.\d\d ± 0\.01", lines["Hero", "25"]["Skip"].text)
    assert lines["Slicegpt", "40"]["Retain"].text == "–"
    assert lines["Slicegpt", "40"]["Note"].text == "not applicable: its widths do not fit"
    assert lines["Hero", "25"]["Retain"].mark == Mark(1)
    assert lines["Lora", "–"]["Retain"].mark == Mark()
    assert "Backbone" not in table.columns


def test_two_backbones_have_a_column(tmp_path: Path) -> None:
    for name in ("near", "far"):
        backbone = dense()["backbone"] | {"name": name}
        write_run(tmp_path, dense(score("a", [1, 1, 0]), backbone=backbone))
        write_run(tmp_path, record("cut", 0.25, score("a", [1, 0, 0]), backbone=backbone))
    results = read_results(tmp_path)
    all_tables = make_tables(results, make_frames(results))
    for name in ("retain", "ranks", "differences_dense", "budgets", "costs", "scores"):
        assert all_tables[name][0].columns[0] == "Backbone"


def test_a_suite_at_work_shows_what_is_there_and_names_the_rest(tmp_path: Path) -> None:
    rows = {"suite": "demo", "rows": ["dense", "random-skip"], "seeds": [42, 43], "budgets": [0.25]}
    config = yaml.safe_load((ROOT / "workflows/suites/demo.yaml").read_text()) | rows
    config |= {"row_seeds": {}, "params": {}, "noise_batch_sizes": [], "tasks": ["demo_facts"]}
    (tmp_path / "suite.json").write_text(json.dumps(config))
    backbone = dense()["backbone"] | {"name": "demo"}
    write_run(tmp_path, dense(score("demo_facts", [1, 1, 0]), backbone=backbone))
    half = {"budget": 0.25, "seed": 43, "match": "pooled", "backbone": backbone}
    write_run(tmp_path, record("random-skip", 0.25, score("demo_facts", [1, 0, 0]), **half))
    assert gap_cautions(read_results(tmp_path)) == ["No record yet: random-skip b25 s42."]
    write_run(
        tmp_path, record("random-skip", 0.25, score("demo_facts", [1, 0, 1]), **half | {"seed": 42})
    )
    assert gap_cautions(read_results(tmp_path)) == []
    (tmp_path / "suite.json").write_text(json.dumps(config | {"budgets": [0.25, 0.4]}))
    assert gap_cautions(read_results(tmp_path)) == ["No record yet: all of b40."]


def test_a_record_of_other_params_than_the_suite_asks_for_is_named(tmp_path: Path) -> None:
    """As while a fit with a new learning rate runs, or when it failed."""
    rows = {"suite": "demo", "rows": ["dense", "random-skip"], "seeds": [42], "budgets": [0.25]}
    config = yaml.safe_load((ROOT / "workflows/suites/demo.yaml").read_text()) | rows
    config |= {"row_seeds": {}, "noise_batch_sizes": [], "tasks": ["demo_facts"]}
    backbone = dense()["backbone"] | {"name": "demo"}
    write_run(tmp_path, dense(score("demo_facts", [1, 1, 0]), backbone=backbone))
    own = {"budget": 0.25, "match": "pooled", "backbone": backbone, "params": {"candidates": [3]}}
    write_run(tmp_path, record("random-skip", 0.25, score("demo_facts", [1, 0, 0]), **own))
    for asked, said in (([3], []), ([2], ["random-skip b25 s42 (candidates)"])):
        config["params"] = {"random-skip": {"candidates": asked}}
        (tmp_path / "suite.json").write_text(json.dumps(config))
        told = [f"The suite now has other params for these runs: {one}." for one in said]
        assert gap_cautions(read_results(tmp_path)) == told


def test_a_task_that_the_reference_cannot_do_is_left_out_of_the_retain(tmp_path: Path) -> None:
    """As happens to a small model on few items; draws of nothing count half an item."""
    write_run(tmp_path, dense(score("a", [1, 0]), score("b", [0, 0])))
    write_run(tmp_path, record("cut", 0.25, score("a", [1, 1]), score("b", [1, 0])))
    results = read_results(tmp_path)
    assert gap_cautions(results) == ["Retain leaves out b: 'dense' solves none of its items."]
    retain = make_frames(results)["retain"].set_index("row")["retain"]
    assert dict(retain) == {"dense": 100.0, "cut": 200.0}


def test_a_task_that_was_not_run_is_told_with_its_reason(tmp_path: Path) -> None:
    """Also where some machines could run it: lines of a table have the same tasks."""
    changes = {"not_run": [{"task": "code", "reason": "bubblewrap is not installed"}]}
    write_run(tmp_path, dense(score("a", [1, 0]), **changes))
    write_run(tmp_path, record("cut", 0.25, score("a", [1, 1]), **changes))
    sentence = "code is in no table because it was not run{}: bubblewrap is not installed{}."
    assert gap_cautions(read_results(tmp_path)) == [sentence.format("", "")]
    here = {"budget": 0.4, "not_run": []}
    write_run(tmp_path, record("other", 0.4, score("a", [0, 1]), score("code", [1, 0]), **here))
    results = read_results(tmp_path)
    counted = "; the skip of rows that ran it counts its tokens"
    assert gap_cautions(results) == [sentence.format(" for dense, cut", counted)]
    frames = make_frames(results)
    assert dict(frames["retain"].set_index("row")["retain"]) == {
        "dense": 100.0, "cut": 200.0, "other": 100.0,
    }  # fmt: skip
    assert set(frames["scores"]["task"]) == {"a"}


@pytest.mark.parametrize(
    ("settings", "opponents"),
    [
        (None, {"dense", "hero"}),
        ({}, {"dense", "hero"}),
        ({"focus": "cut"}, {"dense", "cut"}),
        ({"focus": None}, {"dense"}),
    ],
)
def test_the_suite_names_the_row_in_focus(
    settings: dict[str, Any] | None, opponents: set[str], tmp_path: Path
) -> None:
    write_run(tmp_path, dense(score("a", [1, 0])))
    for row in ("cut", "hero"):
        write_run(tmp_path, record(row, 0.25, score("a", [1, 1])))
    if settings is not None:
        (tmp_path / "suite.json").write_text(json.dumps(settings))
    frames = make_frames(read_results(tmp_path))
    assert set(frames["differences"]["against"]) == opponents


def test_without_any_task_of_the_retain_there_is_no_table(tmp_path: Path) -> None:
    reason = {"not_run": [{"task": "a", "reason": "bubblewrap is not installed"}]}
    write_run(tmp_path, dense(score("b", [1, 0]), **reason))
    (tmp_path / "suite.json").write_text(json.dumps({"retain_tasks": ["a"]}))
    with pytest.raises(ValueError, match="no task of the Retain was run: bubblewrap is not"):
        read_results(tmp_path)


def test_without_a_suite_a_text_alone_makes_no_table(tmp_path: Path) -> None:
    falls = {"metric": "word_perplexity", "higher_is_better": False, "k": None}
    write_run(tmp_path, dense(score("text", [2.5, 3.5], **falls)))
    with pytest.raises(ValueError, match="no task was scored whose metric is better where it is"):
        read_results(tmp_path)


def test_a_headline_that_falls_as_it_improves_stays_out_of_the_retain(tmp_path: Path) -> None:
    falls = {"metric": "word_perplexity", "higher_is_better": False, "k": None}
    write_run(tmp_path, dense(score("a", [1, 0]), score("text", [2.5, 3.5], **falls)))
    results = read_results(tmp_path)
    assert "text" not in results.settings["retain_tasks"]
    (tmp_path / "suite.json").write_text(json.dumps({"retain_tasks": ["a", "text"]}))
    results = read_results(tmp_path)
    assert gap_cautions(results) == [
        "No record yet: unknown, for the suite cannot be read here (suite config, top level: "
        "'suite' is a required property).",
        "Retain leaves out text: of the headline metric lower is better.",
    ]
    assert results.panels[0].retain_tasks == ["a"]
    (tmp_path / "suite.json").write_text(json.dumps({"retain_tasks": ["text"]}))
    with pytest.raises(ValueError, match="lower values are better for every headline metric"):
        read_results(tmp_path)


def test_measures_beside_retain_may_be_over_more_tasks(tmp_path: Path) -> None:
    chosen = [1, 0, 1, 1, 1, 1, 0, 1]
    write_run(tmp_path, dense(score("a", chosen, chance=0.25), score("b", [1] * 8, chance=0.25)))
    half = score("b", [1, 1, 0, 0] * 2, chance=0.25)
    write_run(tmp_path, record("hero", 0.25, score("a", chosen, chance=0.25), half))
    settings = {"suite": "made", "retain_tasks": ["a"], "measure_tasks": ["a", "b"]}
    (tmp_path / "suite.json").write_text(json.dumps(settings))
    results = read_results(tmp_path)
    (line,) = make_frames(results)["retain"].query("row == 'hero'").to_dict("records")
    assert line["retain"] == pytest.approx(100)
    assert line["flips"] == pytest.approx(25)
    # Chance is a quarter: 1 on a, and (1/2 - 1/4) / (1 - 1/4) on b.
    assert line["above_chance"] == pytest.approx(100 * (1 + 1 / 3) / 2)
    assert (
        "Above chance, flips and changed answers may count tasks that the Retain lacks: b; "
        "measures.csv lists the tasks of each." in gap_cautions(results)
    )
    (tmp_path / "suite.json").write_text(json.dumps(settings | {"measure_tasks": []}))
    with pytest.raises(ValueError, match="measure_tasks must be a list of names"):
        read_results(tmp_path)


def test_two_protocols_have_tables_of_their_own(tmp_path: Path) -> None:
    results = read_results(write_suite(tmp_path, ("pooled", "split")))
    frames = make_frames(results)
    all_tables = make_tables(results, frames)
    for name in ("retain", "ranks", "differences_dense", "differences_hero", "budgets", "costs"):
        assert [(table.name, table.match) for table in all_tables[name]] == [
            (name, "pooled"), (f"{name}_split", "split"),
        ]  # fmt: skip
        assert "Match" not in all_tables[name][0].columns
        assert [table.note.split(":")[0] for table in all_tables[name]] == [
            "Match pooled",
            "Match split",
        ]
    assert all_tables["scores"][0].columns[:3] == ["Row", "Target", "Match"]


def test_numbers_as_text() -> None:
    assert (number(None), number(float("nan")), number(1.005, "{:.1f}")) == ("–", "–", "1.0")
    assert (plus(26.0, 1.414), plus(26.0, None)) == ("26.00 ± 1.41", "26.00")
    assert (span(1.0, 2.0), span(None, None)) == ("1.0 to 2.0", "–")
    assert short_name("demo_two_hop:acc_norm") == "two hop acc_norm"
    assert short_name("perplexity:text:perplexity") == "perplexity:text"
