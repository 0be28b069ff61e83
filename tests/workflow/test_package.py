"""What `pip install .` gives: the two packages whole, and the pins of the other two lists."""

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


def test_the_package_asks_for_the_same_by_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    listed = [*PROJECT["dependencies"], *extras["slurm"], *extras["test"]]
    assert sorted(listed) == sorted(pins())
    assert all("slurm" in pin for pin in extras["slurm"])
    unneeded = re.compile(r"slurm|pytest|hypothesis|mypy|ruff|snakefmt|stubs|types-")
    assert not [pin for pin in PROJECT["dependencies"] if unneeded.match(pin)]


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


def test_every_import_has_a_pin() -> None:
    """No package is at hand by chance."""
    trees = [
        ast.parse((ROOT / name).read_text()) for name in checkout_files() if name[-3:] == ".py"
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    words = [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
    words += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    used = {word.partition(".")[0] for word in words} - sys.stdlib_module_names
    homes = packages_distributions()
    # Where a GPU is, and with a CUDA build of torch: make test-kernels.
    used -= {"methods", "workflows", "tests", "triton", "pynvml", "torch_pruning"}
    asked = {canonicalize_name(pin.split("==")[0]) for pin in pins()}
    for module in sorted(used):
        assert asked & {canonicalize_name(home) for home in homes[module]}, module


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
    assert sorted(needed) == sorted(PROJECT["dependencies"])
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
