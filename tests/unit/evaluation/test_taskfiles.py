"""Task files name functions and files of their own folder alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Kind

from workflows.evaluation.taskfiles import check_files, read_index, task_files
from workflows.evaluation.tasknames import OWN_TASKS, own_task_names


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
        (
            "x: [{task: y, metric_list: [{metric: ./evil.py}]}]",
            "metric './evil.py' must be a name",
        ),
        # lm-eval imports a function also where its value is lost.
        ("x: !function os.system\nx: y", "!function os.system must name a function of a"),
        ("x: {? !function os.system : 1}", "!function os.system must name a function of a"),
        ("x: {[!function os.system]: 1}", "task file"),
        ("x: !!pairs [a: !function os.system]", "!function os.system must name a function of a"),
        ("x: !!set {? !function os.system}", "!function os.system must name a function of a"),
        ("x: {y: 1, <<: {y: !function os.system}}", "!function os.system must name a function"),
        ("x: &a [*a]", "mine.yaml: a value lies in itself, or too deep"),
        ("x: &a {y: *a}", "mine.yaml: a value lies in itself, or too deep"),
        ("metric_list: [{metric: owner/name}]", "metric 'owner/name' must be a name"),
        ("dataset_path: pandas", "dataset_path 'pandas' reads pickles, which may run any program"),
        ("x: [{task: y, dataset_path: pandas}]", "dataset_path 'pandas' reads pickles"),
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


# File -> text; lm-eval's index says what each defines.
ODD = {
    "quoted": """'task': "quoted"\ndoc_to_text: x""",
    "comment": "task: comment  # the best\ntag: some",
    "block": "task: >-\n  folded\ntag:\n  - some\n  - more  # of it\n",
    "flow": "{task: flow, tag: [more]}",
    "a/group": "group: pair\ntask: [quoted, {task: inline, doc_to_text: x}, {group: in, task: []}]",
    "a/old": "group: old\ntask: comment\ntag: none",
    "python": "task: python\nclass: !function code.Task\ngroup: nowhere",
    "template": "doc_to_text: x\ntag: inherited",
    "child": "include: template.yaml\ntask: child\nprocess_docs: !function code.docs",
    "grandchild": "include: [child.yaml]\ntask: grandchild\ntag: [own]",
    "named": "include: child.yaml\ndoc_to_text: y",
    "twice": "include: [child.yaml, template.yaml]\ntask: twice",
    "circle": "include: circle.yaml\ntask: circle",
    "empty": "include:\ntask: empty",
    "z_again": "task: quoted\ntag: again",
    "number": "task: [1, 2]",
    "indented": "nested:\n  task: nested\ntext: |\n  task: said\n",
    ".ipynb_checkpoints/old": "task: checkpoint",
    "some": "task: some\ntag: some",
}


def kinds(folders: list[Path]) -> dict[str, tuple[str, list[str]]]:
    return {
        name: (own.kind, sorted(own.content["task"]) if own.kind == "tag" else [])
        for name, own in read_index(folders).items()
    }


def test_what_lm_evals_index_finds_is_found_and_nothing_else(tmp_path: Path) -> None:
    folders = [tmp_path / "odd", tmp_path / "later"]
    for name, text in ODD.items():
        file = folders[0] / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    write(folders[1], "tag: [more, mine]").joinpath("next.yaml").write_text("group: comment")
    found = TaskManager(include_path=list(map(str, folders)), include_defaults=False).task_index
    named = {Kind.TASK: "task", Kind.PY_TASK: "task", Kind.GROUP: "group", Kind.TAG: "tag"}
    assert kinds(folders) == {
        name: (named[entry.kind], sorted(entry.tags) if entry.kind is Kind.TAG else [])
        for name, entry in found.items()
    }
    assert {"quoted", "comment", "folded", "flow", "pair", "python", "grandchild", "more"} < {
        *found
    }
    assert kinds([OWN_TASKS]) == {name: ("task", []) for name in own_task_names()}


def test_files_of_a_group_are_those_of_all_it_holds(tmp_path: Path) -> None:
    inner = {"group": "inner", "task": [{"task": "two", "num_fewshot": 1}]}
    contents = {
        "all.yaml": {"group": "all", "task": ["marked", inner]},
        "one.yaml": {"task": "one", "tag": "marked", "include": "base"},
        "two.yaml": {"task": "two"},
        "base": {"dataset_path": "json"},
        "other.yaml": {"task": "other"},
    }
    for name, told in contents.items():
        (tmp_path / name).write_text(yaml.safe_dump(told))
    files, keys = task_files("all", tmp_path)
    assert {file.name for file in files} == contents.keys() - {"other.yaml"}
    assert {"dataset_path": "json", "task": "one", "tag": "marked"} in keys
    assert {"task": "two", "num_fewshot": 1} in keys
