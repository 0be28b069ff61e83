"""Rows are read from syntax trees: nothing is imported, mistakes are named."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from methods import LITERALS, ORDER, api, discover, find_row, load_method
from methods.base import Method
from methods.discovery import BASES
from workflows import ROOT

FILE = """
from methods.api import Method


class New(Method):
    title = "New"
    source = "nowhere"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True
"""


def folder(tmp_path: Path, **files: str) -> Path:
    root = tmp_path / "methods"
    root.mkdir()
    for name, text in files.items():
        (root / f"{name}.py").write_text(text, encoding="utf-8")
    return root


def test_the_rows_of_this_checkout_stand_in_the_tables_order() -> None:
    names = list(discover())
    assert names[0] == "dense"
    assert {"random-skip", "random-skip-layers", "shortgpt"} <= set(names)
    known = [name for name in names if name in ORDER]
    assert known == sorted(known, key=ORDER.index)


@pytest.mark.parametrize("name", list(discover()))
def test_what_is_read_equals_what_is_imported(name: str) -> None:
    row, method = find_row(name), load_method(name)
    assert isinstance(method, Method)
    for literal in LITERALS:
        assert getattr(row, literal) == getattr(type(method), literal)
    for key, value in row.params.items():
        assert getattr(method.params, key) == value
    row.title_of(vars(method.params))


def test_a_file_without_rows_is_one_row_named_after_it(tmp_path: Path) -> None:
    (row,) = discover(folder(tmp_path, brand_new=FILE)).values()
    assert (row.name, row.module, dict(row.params)) == ("brand-new", "methods.brand_new", {})
    assert (row.title, row.kind, row.budgeted, row.stochastic) == ("New", "static", True, False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('rows = ["a"]', "rows is .'a'., must be a dict"),
        ("rows = {[]: 1}", "'rows' is not a literal"),
        ('trained = "no"', "trained is 'no', must be a bool"),
        ("title = 3", "title is 3, must be a str"),
    ],
)
def test_a_literal_of_another_type_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"brand_new.py: {message}"):
        discover(folder(tmp_path, brand_new=f"{FILE}    {line}\n"))


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "latin.py").write_bytes(FILE.encode() + "# é".encode("latin-1"))
    with pytest.raises(ValueError, match="latin.py is not in UTF-8"):
        discover(root)


def test_rows_carry_their_params(tmp_path: Path) -> None:
    text = FILE + '    rows = {"a": {"x": 1}, "b": {"x": [2]}}\n'
    rows = discover(folder(tmp_path, brand_new=text))
    assert {name: dict(row.params) for name, row in rows.items()} == {
        "a": {"x": 1},
        "b": {"x": [2]},
    }


def test_a_folder_is_a_method_too(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "large").mkdir()
    (root / "large" / "__init__.py").write_text(FILE, encoding="utf-8")
    (root / "large" / "part.py").write_text("raise RuntimeError", encoding="utf-8")
    (row,) = discover(root).values()
    assert (row.name, row.module, row.path) == ("large", "methods.large", root / "large")


def test_a_routed_method_is_a_method_too(tmp_path: Path) -> None:
    text = FILE.replace("Method", "RoutedMethod")
    (row,) = discover(folder(tmp_path, new=text)).values()
    assert row.title == "New"
    exported = [getattr(api, name) for name in api.__all__]
    bases = [each for each in exported if isinstance(each, type) and issubclass(each, Method)]
    assert {each.__name__ for each in bases} == BASES


def test_nothing_is_executed(tmp_path: Path) -> None:
    assert list(discover(folder(tmp_path, bomb="raise RuntimeError\n" + FILE))) == ["bomb"]


def test_base_core_and_hidden_files_are_no_methods(tmp_path: Path) -> None:
    assert discover(folder(tmp_path, base="x = 1", __init__="x = 1", __main__="x = 1")) == {}


@pytest.mark.parametrize("literal", LITERALS)
def test_a_missing_literal_is_named(literal: str, tmp_path: Path) -> None:
    text = "\n".join(line for line in FILE.splitlines() if not line.startswith(f"    {literal} "))
    with pytest.raises(ValueError, match=rf"brand_new.py lacks the literals: {literal}$"):
        discover(folder(tmp_path, brand_new=text))


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    text = FILE.replace('kind = "static"', 'kind = "routed"')
    with pytest.raises(ValueError, match="kind is 'routed', must be reference, static, dynamic$"):
        discover(folder(tmp_path, brand_new=text))


def test_a_computed_literal_is_named(tmp_path: Path) -> None:
    text = FILE.replace('title = "New"', "title = str(5)")
    with pytest.raises(ValueError, match=r"brand_new.py: 'title' is not a literal"):
        discover(folder(tmp_path, brand_new=text))


@pytest.mark.parametrize("title", ["New {nope}", "New {", "New {layers.nope}"])
def test_a_title_names_params(title: str, tmp_path: Path) -> None:
    text = FILE.replace('title = "New"', f'title = "{title}"')
    (row,) = discover(folder(tmp_path, brand_new=text)).values()
    with pytest.raises(
        ValueError, match=r"row 'brand-new': its title is .* hold params \(layers\)"
    ):
        row.title_of({"layers": 3})


def test_a_row_that_two_files_define_is_named(tmp_path: Path) -> None:
    twin = FILE + '    rows = {"one": {}}\n'
    with pytest.raises(ValueError, match=r"row 'one' is defined in a.py and in b.py"):
        discover(folder(tmp_path, a=twin, b=twin))


def test_broken_python_and_files_without_a_method_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"broken.py is not valid Python"):
        discover(folder(tmp_path, broken="class ("))
    (tmp_path / "methods" / "broken.py").write_text("class Other: pass")
    with pytest.raises(ValueError, match=r"broken.py defines no class that derives from Method"):
        discover(tmp_path / "methods")


def test_an_unknown_row_lists_the_rows() -> None:
    with pytest.raises(ValueError, match=r"unknown row 'short-gpt' \(rows: dense, .*shortgpt"):
        find_row("short-gpt")


def test_a_job_list_imports_no_torch_and_takes_less_than_three_seconds() -> None:
    code = (
        "import sys, yaml\n"
        "from methods import discover\n"
        "from workflows.suite.jobs import read_suite\n"
        "assert 'dense' in discover()\n"
        "suite = yaml.safe_load(open('workflows/suites/llama31_8b.yaml'))\n"
        "assert len(read_suite(suite).jobs) >= 5\n"
        "heavy = {'torch', 'transformers', 'lm_eval', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )

    def used() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    # Processor time: what else the machine does must not decide this test.
    before = used()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert used() - before < 3


def test_no_two_rows_have_one_title() -> None:
    """Tables name rows by their titles."""
    rows = discover()
    titles = [row.title_of(vars(load_method(name).params)) for name, row in rows.items()]
    assert len(set(titles)) == len(titles)
