"""What `pip install .` gives: the two packages whole, and ranges around the pins."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from email.parser import HeaderParser
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.lock import LOCK
from tests.lowest import lowest
from tests.workflow.conftest import checkout_files, copy_checkout
from workflows import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_conda_and_pip_install_the_same() -> None:
    assert all("==" in pin for pin in pins())
    *_, pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert pip == {"pip": pins()}


def ranges() -> dict[str, list[Requirement]]:
    """What the package asks for: always, and by extras."""
    listed = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return {extra: list(map(Requirement, lines)) for extra, lines in listed.items()}


def test_every_pin_lies_within_the_range_of_the_package() -> None:
    pinned = {canonicalize_name(p.name): p.specifier for p in map(Requirement, pins())}
    for one in (one for part in ranges().values() for one in part):
        assert {bound.operator for bound in one.specifier} == {">=", "<"}, f"{one}: no range"
        (pin,) = pinned[canonicalize_name(one.name)]
        assert one.specifier.contains(pin.version), f"{one} leaves out {pin.version}"


def test_the_lowest_versions_are_those_of_the_ranges() -> None:
    asked = [one for part in ("", "test") for one in ranges()[part]]
    assert len(lowest()) == len(asked)
    for one, pin in zip(asked, map(Requirement, lowest()), strict=True):
        (bound,) = pin.specifier
        assert (one.name, bound.operator) == (pin.name, "==")
        assert one.specifier.contains(bound.version)
        assert f">={bound.version}" in map(str, one.specifier)


def test_extras_hold_what_the_suite_runs_without() -> None:
    assert all("slurm" in one.name for one in ranges()["slurm"])
    unneeded = re.compile(r"slurm|pytest|hypothesis|mypy|ruff|snakefmt|stubs|types-")
    assert not [one for one in ranges()[""] if unneeded.match(one.name)]


def locked() -> dict[str, str]:
    """Name -> version of the lock, whose lines each hold one hash."""
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    assert all(found)
    return {canonicalize_name(match[1]): match[2] for match in found if match}


def test_the_lock_holds_the_pins() -> None:
    asked = (pin.split("==") for pin in pins())
    wanted = {canonicalize_name(name): version for name, version in asked}
    assert wanted.items() <= locked().items()


def test_the_lock_holds_all_that_its_packages_need() -> None:
    """pip refuses a file with hashes otherwise; of the packages whose locked version is here."""
    lock = locked()
    here = [
        one
        for one in distributions()
        if Version(one.version).public == lock.get(canonicalize_name(one.metadata["Name"]))
    ]
    assert len(here) >= len(pins())
    for one in here:
        for needed in map(Requirement, one.requires or []):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in lock, f"{one.metadata['Name']}: {needed}"
                assert needed.specifier.contains(lock[canonicalize_name(needed.name)])


def imports(*folders: str) -> set[str]:
    """Packages that Python files in these folders import, by the names of modules."""
    names = [name for name in checkout_files() if name[-3:] == ".py" and name.startswith(folders)]
    trees = [ast.parse((ROOT / name).read_text()) for name in names]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    words = [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
    words += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    used = {word.partition(".")[0] for word in words} - sys.stdlib_module_names
    # Where a GPU is, and with a CUDA build of torch: make test-kernels.
    return used - {"methods", "workflows", "tests", "triton", "pynvml", "torch_pruning"}


def test_every_import_is_asked_for_and_nothing_else() -> None:
    """No package is at hand by chance; what others need is theirs to ask for."""
    homes = {
        module: {canonicalize_name(home) for home in found}
        for module, found in packages_distributions().items()
    }
    always = {canonicalize_name(one.name) for one in ranges()[""]}
    tests = always | {canonicalize_name(one.name) for one in ranges()["test"]}
    for folders, asked in ((("methods/", "workflows/"), always), (("tests/",), tests)):
        for module in sorted(imports(*folders)):
            assert asked & homes[module], module
    used = [homes[module] for module in imports("methods/", "workflows/")]
    # The program that runs suites.
    assert always - {"snakemake"} <= set().union(*used)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """Built of a copy, by what the environment has: nothing is fetched."""
    home = tmp_path_factory.mktemp("wheel")
    copy_checkout(home / "checkout")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(home)]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "."], cwd=home / "checkout", check=True
    )
    (file,) = home.glob("*.whl")
    return ZipFile(file)


def test_the_wheel_holds_every_file_of_the_packages(wheel: ZipFile) -> None:
    ours = {name for name in checkout_files() if name.startswith(("methods/", "workflows/"))}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == ours
    assert {"workflows/suites/demo.yaml", "workflows/demo/backbone/model.safetensors"} <= packed


def test_the_wheel_needs_neither_slurm_nor_test_tools(wheel: ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    told = HeaderParser().parsestr(wheel.read(metadata).decode())
    needed = [line for line in told.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert set(map(Requirement, needed)) == set(ranges()[""])
    (entry,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    assert "skipbench = workflows.console:main" in wheel.read(entry).decode()


def test_a_wheel_from_elsewhere_plans_the_demo(wheel: ZipFile, tmp_path: Path) -> None:
    """In a folder of its own: neither the checkout nor what lies there is read."""
    wheel.extractall(tmp_path / "site")
    (tmp_path / "here/methods").mkdir(parents=True)
    code = "import sys; sys.argv[1:] = ['plan', '--suite', 'demo']\n"
    code += f"sys.path[:0] = [{str(tmp_path / 'site')!r}]\n"
    code += "from workflows.console import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path / "here", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Suite demo; every figure is derived")
