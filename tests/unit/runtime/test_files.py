"""Files that appear whole: one writer at a time, and what a killed one left is cleared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from workflows import ROOT
from workflows.runtime.files import (
    WRITTEN,
    delete_earlier,
    resumable_folder,
    whole_file,
    whole_folder,
    write_json,
)

WRITER = """
import sys
from pathlib import Path
from workflows.runtime.files import {kind}
with {call} as there:
    print("writes", flush=True)
    sys.stdin.read()
    there.write_text("first") if there.is_file() else (there / "x").write_text("first")
"""


CALLS = {
    "whole_file": "whole_file(Path(sys.argv[1]))",
    "whole_folder": "whole_folder(Path(sys.argv[1]))",
    "resumable_folder": "resumable_folder(Path(sys.argv[1]), 'a')",
}


@contextmanager
def writer(kind: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process within its block, until its input closes."""
    command = [sys.executable, "-c", WRITER.format(kind=kind, call=CALLS[kind]), str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "writes\n"
        yield other


def whole(kind: str, path: Path) -> AbstractContextManager[Path]:
    kinds = {"whole_file": whole_file, "whole_folder": whole_folder}
    return resumable_folder(path, "b") if kind == "resumable_folder" else kinds[kind](path)


@pytest.mark.parametrize("kind", list(CALLS))
def test_what_another_process_writes_is_left_to_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    with writer(kind, path) as other:
        told = f"{path} is being written by another process; wait for its end"
        with pytest.raises(ValueError, match=told), whole(kind, path):
            pass
        other.communicate()
    assert other.returncode == 0
    assert ((path / "x") if path.is_dir() else path).read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["whole_file", "whole_folder"])
def test_what_a_killed_process_left_is_cleared(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    with writer(kind, path) as other:
        other.kill()
    assert [file.name for file in tmp_path.iterdir()] == [".out.part"]
    with whole(kind, path) as there:
        (there / "y" if kind == "whole_folder" else there).write_text("second")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    if path.is_dir():
        assert [file.name for file in path.iterdir()] == ["y"]


@pytest.mark.parametrize("kind", ["whole_file", "whole_folder"])
def test_a_block_that_fails_leaves_nothing(kind: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), whole(kind, tmp_path / "out"):
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_folder_goes_on_with_files_of_its_own_origin_alone(tmp_path: Path) -> None:
    def begin(origin: str) -> list[str]:
        found = list[str]()
        with suppress(KeyboardInterrupt), resumable_folder(tmp_path / "m", origin) as folder:
            found += sorted(file.name for file in folder.iterdir())
            (folder / f"part of {origin}").touch()
            raise KeyboardInterrupt
        return found

    assert begin("first") == []
    assert begin("first") == ["part of first"]
    assert begin("second") == []
    assert len(list(tmp_path.iterdir())) == 1
    with resumable_folder(tmp_path / "m", "second"):
        pass
    assert [file.name for file in (tmp_path / "m").iterdir()] == ["part of second"]
    assert len(list(tmp_path.iterdir())) == 1


def test_only_files_of_an_earlier_call_are_deleted(tmp_path: Path) -> None:
    for name in ("mine.tex", "old.tex", "new.tex"):
        (tmp_path / name).write_text(name)
    delete_earlier(tmp_path, {"old.tex", "new.tex"})
    assert {file.name for file in tmp_path.glob("*.tex")} == {"mine.tex", "old.tex", "new.tex"}
    delete_earlier(tmp_path, {"new.tex"})
    assert {file.name for file in tmp_path.glob("*.tex")} == {"mine.tex", "new.tex"}


def test_a_list_of_a_stranger_reaches_no_other_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.tex").touch()
    (tmp_path / "out/below").mkdir(parents=True)
    (tmp_path / "out/below/mine.tex").touch()
    names = ["../mine.tex", str(tmp_path / "mine.tex"), "below/mine.tex", "gone.tex", 7, "..", ""]
    for listed in (names, "mine.tex", None):
        write_json(tmp_path / "out" / WRITTEN, {"files": listed})
        delete_earlier(tmp_path / "out", set())
    assert (tmp_path / "mine.tex").is_file()
    assert (tmp_path / "out/below/mine.tex").is_file()
