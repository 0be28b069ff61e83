"""Faults in the file, the code and the data of an own task: one sentence that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.toys.models import make_model
from tests.toys.sharing import make_lm
from tests.toys.tasks import make_tasks
from workflows.evaluation.loading import CannotRun, explained
from workflows.evaluation.score import score
from workflows.evaluation.tasklist import TaskEntry, parse_tasks

LENGTH = [{"metric": "len", "aggregation": "mean", "higher_is_better": False}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tasks(tmp_path / "tasks", items=6)


def refused(folder: Path, task: str = "toy_write", code: str = "", **keys: Any) -> str:
    """The one sentence in which a task ends after a change of its file.

    ``code`` is of its Python file, with a function ``own`` that computes its metrics.
    """
    file = folder / f"{task}.yaml"
    text = yaml.safe_dump(yaml.safe_load(file.read_text()) | keys)
    if code:
        (folder / "m.py").write_text(code)
        text += "process_results: !function m.own\n"
    file.write_text(text)
    with pytest.raises(ValueError, match=task) as caught:
        score(make_lm(make_model(), 4, share=False), [TaskEntry(task)], [folder])
    assert not isinstance(caught.value, CannotRun)
    return str(caught.value)


def filters(**function: Any) -> list[dict[str, Any]]:
    return [{"name": "x", "filter": [function, {"function": "take_first"}]}]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"test_split": "other"}, "the data of task 'toy_write' lack 'other'"),
        (
            {"filter_list": filters(function="regexx")},
            "task 'toy_write' cannot be scored: Unknown filter 'regexx'. Did you mean: regex, ",
        ),
        ({"filter_list": [{"filter": []}]}, "task 'toy_write' cannot be scored: KeyError: 'name'"),
        (
            {"filter_list": filters(function="regex", regex_pattern="(")},
            "task 'toy_write' cannot be scored: regular expression: missing ), unterminated",
        ),
        ({"metric_list": [{"metric": "mine"}]}, "task 'toy_write': metric 'mine' is none of"),
        (
            {"metric_list": [{"metric": "mine", "aggregation": "mean", "higher_is_better": True}]},
            "task 'toy_write': metric 'mine' is none of lm-eval's",
        ),
        (
            {"metric_list": [{"metric": "exact_match", "aggregation": "meann"}]},
            "task 'toy_write': the aggregation of metric 'exact_match' is none of lm-eval's (bits_",
        ),
    ],
)
def test_a_name_that_there_is_not_is_told_as_what_it_is(
    keys: dict[str, Any], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "filter_list" not in keys:
        monkeypatch.setattr("workflows.evaluation.score.simple_evaluate", None)
    assert refused(folder, **keys).startswith(said)


def test_a_metric_that_a_kind_of_task_does_not_compute_is_told(folder: Path) -> None:
    said = refused(folder, "toy_choice", metric_list=[{"metric": "bleu"}])
    assert said == (
        "task 'toy_choice' computes no metric, but the metric_list of its file names bleu"
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('odd')", "RuntimeError: odd"),
        ("import torch; torch.ones(2) @ torch.ones(3)", "RuntimeError: inconsistent tensor size"),
        ("next(iter(()))", "StopIteration: "),
        ("{'a': 1}['b']", "KeyError: 'b'"),
    ],
)
def test_an_error_in_a_task_s_own_code_is_told(body: str, said: str, folder: Path) -> None:
    code = f"def own(doc, results):\n    {body}\n"
    told = refused(folder, code=code, metric_list=LENGTH)
    assert told.startswith(f"task 'toy_write' cannot be scored: {said}")


def test_a_full_gpu_and_what_no_task_did_stay_what_they_are(tmp_path: Path) -> None:
    inside: dict[str, Any] = {"__name__": str(tmp_path / "m"), "torch": torch}
    exec("def own(): raise torch.OutOfMemoryError('full')", inside)
    with pytest.raises(torch.OutOfMemoryError, match="full"), explained("mine"):
        inside["own"]()
    with pytest.raises(RuntimeError, match="CUDA error"), explained("mine"):
        raise RuntimeError("CUDA error")


@pytest.mark.parametrize(("odd", "count"), [("True", 6), ("doc['answer'] == 'w4'", 1)])
def test_items_whose_metric_is_nan_are_counted(odd: str, count: int, folder: Path) -> None:
    rows = (folder / "write.jsonl").read_text().splitlines()
    rows[2] = '{"question": "w1", "answer": "w4"}'
    (folder / "write.jsonl").write_text("\n".join(rows))
    code = f"def own(doc, results):\n    return {{'len': float('nan') if {odd} else 1.0}}\n"
    said = f"metric 'len' is NaN for {count} of 6 items of task 'toy_write'"
    assert refused(folder, code=code, metric_list=LENGTH) == said


@pytest.mark.parametrize("neighbour", ["helper.py", "helper/__init__.py"])
def test_a_python_file_that_imports_one_beside_it_is_refused(neighbour: str, folder: Path) -> None:
    """lm-eval would look for an installed package, and the task would be left out of a suite."""
    (folder / neighbour).parent.mkdir(exist_ok=True)
    (folder / neighbour).touch()
    code = "import helper\ndef own(doc, results):\n    return {'len': 1}\n"
    said = refused(folder, code=code, metric_list=LENGTH)
    file = folder / "m.py"
    assert said.startswith(f"task 'toy_write': {file} imports 'helper', which lies beside it")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "a file of its data is empty"),
        (b'{"question": "w1", "answer": "w1"}\n{"question":\n', "FILE: ArrowInvalid: JSON parse"),
    ],
)
def test_a_broken_file_of_data_is_named(text: bytes, said: str, folder: Path) -> None:
    file = folder / "write.jsonl"
    file.write_bytes(text)
    said = said.replace("FILE", str(file))
    assert refused(folder).startswith(f"task 'toy_write' cannot be scored: {said}")


def test_a_first_answer_beyond_the_choices_is_told(folder: Path) -> None:
    (folder / "choice.jsonl").write_text('{"question": "w1", "options": ["w2"], "answer": 1}\n')
    said = "the answer of its first item is 1, and its 1 choices are counted from 0"
    assert refused(folder, "toy_choice") == f"task 'toy_choice' cannot be scored: {said}"


def test_a_task_that_is_right_is_scored(folder: Path) -> None:
    found = score(make_lm(make_model(), 4, share=False), parse_tasks("toy_write"), [folder])
    assert [s["metric"] for s in found.scores] == ["exact_match"]
