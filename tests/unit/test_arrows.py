"""Imports go one way: rules -> steps -> {methods, evaluation, stats}; methods -> methods.core."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from methods import Row, discover
from tests import steps
from workflows import ROOT

METHOD_MODULES = {row.module for row in discover().values()}
ALONE = ("fit", "cost", "data", "time", "tokens", "train_backbone", "tune")


def imports(file: Path, top_level: bool = False) -> set[str]:
    """Full names of the modules (and of what is taken from them) that a file imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = file.relative_to(ROOT).with_suffix("").parts
    names: set[str] = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: -node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def below(names: set[str], *packages: str) -> list[str]:
    return sorted(n for n in names if any(n == p or n.startswith(f"{p}.") for p in packages))


def files(folder: str) -> Iterator[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    yield from found


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_no_imports_go_round() -> None:
    """Neither those inside functions nor those for types alone; the error names the circle."""
    found = [file for folder in ("methods", "workflows") for file in files(folder)]
    modules = {name(file)[:-3].replace("/", ".").removesuffix(".__init__"): file for file in found}
    TopologicalSorter(
        {module: imports(file) & modules.keys() for module, file in modules.items()}
    ).prepare()


def test_what_transformers_registers_does_not_import_what_imports_its_auto_classes() -> None:
    """They import it while they are imported themselves; a folder's module may be what began."""
    waiting, seen = ["methods.core.model.pretrained"], set[str]()
    while waiting:
        module = waiting.pop()
        file = ROOT / f"{module.replace('.', '/')}.py"
        if module not in seen and file.is_file():
            seen.add(module)
            assert not below(imports(file, top_level=True), "transformers.AutoConfig"), module
            waiting += below(imports(file, top_level=True), "methods")


@pytest.mark.parametrize("file", files("methods"), ids=name)
def test_methods_never_import_the_pipeline(file: Path) -> None:
    assert below(imports(file), "workflows", "tests", "snakemake", "lm_eval") == []


@pytest.mark.parametrize("file", [*files("methods/core"), *files("methods/kernels")], ids=name)
def test_the_core_and_kernels_import_no_method(file: Path) -> None:
    assert below(imports(file), *METHOD_MODULES) == []


@pytest.mark.parametrize(
    "row", {row.path: row for row in discover().values()}.values(), ids=lambda row: row.path.stem
)
def test_a_method_imports_the_api_and_no_other_method(row: Row) -> None:
    """Or its fits would neither rerun nor get another hash when that one changes."""
    for file in sorted(row.path.rglob("*.py")) if row.path.is_dir() else [row.path]:
        ours = {module for module in imports(file) if module.split(".")[0] == "methods"}
        allowed = ("methods.api", "methods.kernels")
        assert ours - set(below(ours, *allowed, row.module)) == set(), name(file)


def test_triton_is_imported_among_the_kernels_alone() -> None:
    found = [file for folder in ("methods", "workflows") for file in files(folder)]
    rooms = {name(file).split("/")[1] for file in found if below(imports(file), "triton")}
    assert rooms == {"kernels"}


ROOMS = ("methods.core.routing", "methods.core.training", "methods.core.surgery")
GROUND = tuple(f"methods.core.model.{name}" for name in ("auto", "checkpoint", "ledger"))
# Room -> the others it may use; what lies beside the rooms uses none, but for what stands on them.
STEPS_OF_THE_CORE = {
    "routing": set(),
    "training": {"methods.core.routing"},
    "surgery": {"methods.core.training"},
}


@pytest.mark.parametrize("room", STEPS_OF_THE_CORE)
def test_rooms_of_the_core_lie_one_way(room: str) -> None:
    own = f"methods.core.{room}"
    others = {other for other in ROOMS if other != own} - STEPS_OF_THE_CORE[room]
    for file in files(f"methods/core/{room}"):
        assert below(imports(file), *others, *GROUND) == [], name(file)


def test_the_ground_of_the_core_knows_no_room() -> None:
    core = ROOT / "methods/core"
    for file in [*core.glob("*.py"), *(core / "model").glob("*.py")]:
        if name(file)[:-3].replace("/", ".") not in GROUND:
            assert below(imports(file), *ROOMS, *GROUND) == [], name(file)


@pytest.mark.parametrize("room", ["runtime", "timing", "suite", "report"])
def test_rooms_behind_the_steps_import_no_step(room: str) -> None:
    for file in files(f"workflows/{room}"):
        assert below(imports(file), "workflows.steps") == [], name(file)


def test_every_step_is_a_command() -> None:
    for file in (ROOT / "workflows/steps").glob("[a-z]*.py"):
        assert '__name__ == "__main__"' in file.read_text(encoding="utf-8"), name(file)


@pytest.mark.parametrize("file", sorted({row.path for row in discover().values()}), ids=name)
def test_method_files_write_no_files_and_read_no_clock(file: Path) -> None:
    for source in sorted(file.rglob("*.py")) if file.is_dir() else [file]:
        assert below(imports(source), "json", "time", "datetime", "pickle") == []


@pytest.mark.parametrize("file", files("workflows/stats"), ids=name)
def test_statistics_know_no_torch_and_no_files(file: Path) -> None:
    heavy = ("torch", "transformers", "lm_eval", "methods", "pathlib", "os", "json", "io", "shutil")
    assert below(imports(file), *heavy) == []
    rooms = ("steps", "evaluation", "suite", "report", "demo")
    assert below(imports(file), *(f"workflows.{room}" for room in rooms)) == []
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"\bopen\(|\.read_(csv|parquet|text|json)\(|\.to_(parquet|csv)\(", text)


@pytest.mark.parametrize("file", files("workflows/evaluation"), ids=name)
def test_evaluation_imports_no_step(file: Path) -> None:
    assert below(imports(file), "workflows.steps", "workflows.suite.jobs", *METHOD_MODULES) == []


def test_the_job_list_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "lm_eval", "pandas", "numpy", "workflows.steps")
    chain = [
        "workflows/suite/commands.py",
        "workflows/suite/jobs.py",
        "workflows/suite/table.py",
        "workflows/evaluation/tasklist.py",
        "workflows/evaluation/tasknames.py",
        "methods/__init__.py",
    ]
    for file in chain:
        assert below(imports(ROOT / file, top_level=True), *heavy, "methods.core") == []


def test_steps_that_need_neither_the_harness_nor_snakemake_import_neither() -> None:
    """For a machine that fits, times and trains backbones alone."""
    names = ", ".join(f"workflows.steps.{step}" for step in ALONE)
    found = "[m for m in ('lm_eval', 'snakemake', 'datasets') if m in sys.modules]"
    done = steps.python("-c", f"import sys, {names}; print({found})")
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_rules_call_steps_and_compute_nothing() -> None:
    rules = sorted((ROOT / "workflows/rules").glob("*.smk"))
    assert rules
    for file in rules:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"^\s+(run|script|notebook):", text, re.M)
        for step in re.findall(r"python -m ([\w.]+)", text):
            assert step.startswith("workflows.steps.")
            assert (ROOT / (step.replace(".", "/") + ".py")).is_file()
        assert not re.search(r"^\s*(import|from) ", text, re.M)


def test_no_file_stores_pickles() -> None:
    for file in [*files("methods"), *files("workflows")]:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"torch\.(save|load)\(|allow_pickle=True|import pickle", text)


# Lines of commands that are quoted where they are made, and numbers or words that a rule states.
MADE = {"{params.run}", "{params.data}", "{params.task}", "{params.device}", "{params.length}"}
NUMBERS = {"{threads}", "{resources.processes}"}


def test_every_name_in_a_command_is_quoted() -> None:
    commands = ""
    for file in sorted((ROOT / "workflows/rules").glob("*.smk")):
        for block in re.findall(r'^ +shell:\n((?: +".*\n)+)', file.read_text(), re.M):
            commands += block
    names = re.findall(r"\{[^{}]+\}", commands)
    assert {"{output:q}", "{log:q}"} < set(names)
    assert {name for name in names if not name.endswith(":q}")} == MADE | NUMBERS
