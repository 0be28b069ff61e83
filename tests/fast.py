"""Run the unit and contract tests that the changed files need, in about a minute.

Files count as changed since HEAD, and since the branch left main. A changed method runs its unit
tests and the contract of its rows; another changed file of methods or workflows runs the unit tests
of its folder; a changed test runs itself. The contract of two rows always runs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from methods import discover
from workflows import ROOT
from workflows.runtime import provenance

CONTRACT = ROOT / "tests/contract/test_contract.py"
# One static row and one dynamic row.
ALWAYS = {"shortgpt", "mindskip"}


def git(*words: str) -> list[str]:
    """The lines that a command of git prints; none if it fails."""
    return (provenance.git(*words) or "").splitlines()


def changed_files() -> list[Path]:
    names = {*git("diff", "--name-only", "HEAD"), *git("ls-files", "-o", "--exclude-standard")}
    for base in git("merge-base", "HEAD", "main"):
        names |= {*git("diff", "--name-only", base)}
    return [ROOT / name for name in sorted(names) if name.endswith(".py")]


def unit_tests(file: Path) -> Iterable[Path]:
    """Tests in the folder of tests/unit that mirrors the file's, or in the nearest one above."""
    folder = ROOT.joinpath("tests/unit", *file.relative_to(ROOT).parts[1:-1])
    while not folder.is_dir():
        folder = folder.parent
    return folder.glob("test_*.py")


def choose(files: Iterable[Path]) -> tuple[set[Path], set[str]]:
    """Test files, and the rows whose contract runs."""
    tests, rows, methods = {CONTRACT}, set(ALWAYS), discover()
    for file in files:
        own = {name for name, row in methods.items() if row.path in (file, *file.parents)}
        if own:
            stem = methods[min(own)].path.stem
            tests |= {*ROOT.glob(f"tests/unit/**/test_{stem}*.py")}
            rows |= own
        elif file.name.startswith("test_") and file.is_file():
            tests.add(file)
        elif file.is_relative_to(ROOT / "methods") or file.is_relative_to(ROOT / "workflows"):
            tests |= {*unit_tests(file)}
    return tests, rows


def main() -> int:
    """The exit status of pytest."""
    tests, rows = choose(changed_files())
    names = sorted(str(file.relative_to(ROOT)) for file in tests)
    print("\n  ".join([*names, f"contract of {', '.join(sorted(rows))}"]), flush=True)
    # Outside the contract every test runs.
    selection = " or ".join([f"not {CONTRACT.name}", *sorted(rows)])
    command = [sys.executable, "-m", "pytest", "-k", selection, *names]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
