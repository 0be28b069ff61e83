"""Task files name functions and files of their own folder alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows.evaluation.taskfiles import check_files
from workflows.evaluation.tasklist import OWN_TASKS


def write(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.yaml").write_text("\n".join(["task: mine", *lines]))
    return folder


def test_own_tasks_and_what_lies_beside_a_file_pass(tmp_path: Path) -> None:
    check_files(OWN_TASKS)
    folder = write(tmp_path / "tasks", "include: base", "process_docs: !function code.mine.docs")
    (folder / "base").write_text("doc_to_text: !function helpers.text")
    (folder / "helpers.py").touch()
    (folder / "code").mkdir()
    (folder / "code/mine.py").touch()
    check_files(folder)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("doc_to_text: !function os.system", "!function os.system must name a function of a"),
        ("doc_to_text: !function ...outside.f", "must name a function of a Python file in"),
        ("doc_to_text: !function outside.f", "must name a function of a Python file in"),
        ("doc_to_text: !function f", "must name a function of a Python file in"),
        ("x: [{y: !function subprocess.call}]", "must name a function of a Python file in"),
        ("include: ../outside.yaml", "include '../outside.yaml' must be a file in"),
        ("include: [/etc/passwd]", "include '/etc/passwd' must be a file in"),
        ("include: gone", "include 'gone' must be a file in"),
        ("include: link", "include 'link' must be a file in"),
        ("metric_list: [{metric: ./evil.py}]", "metric './evil.py' must be a name"),
        ("doc_to_text: !!python/name:os.system x", "is not valid YAML"),
        ("doc_to_text: [", "is not valid YAML"),
    ],
)
def test_what_lies_outside_is_refused(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "outside.py").touch()
    (tmp_path / "outside.yaml").write_text("doc_to_text: x")
    folder = write(tmp_path / "tasks", line)
    (folder / "link").symlink_to(tmp_path / "outside.yaml")
    with pytest.raises(ValueError, match="task file .*mine.yaml") as caught:
        check_files(folder)
    assert said in str(caught.value)


def test_an_included_file_is_held_against_the_same_rule(tmp_path: Path) -> None:
    folder = write(tmp_path / "tasks", "include: base")
    (folder / "base").write_text("doc_to_text: !function os.system")
    with pytest.raises(ValueError, match="!function os.system must name"):
        check_files(folder)


def test_a_circle_of_includes_ends(tmp_path: Path) -> None:
    folder = write(tmp_path / "tasks", "include: mine.yaml")
    check_files(folder)
