"""lm-eval scores the folder of every row as the score step does, by name and by command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from lm_eval.tasks import TaskManager

import workflows.evaluation.registered  # noqa: F401
from tests import steps
from tests.contract.fits import ROWS
from tests.contract.folders import Folders
from workflows.evaluation.harness import simple_evaluate
from workflows.steps import lm_eval


def scores(results: Any) -> dict[tuple[str, str], float]:
    """Task, metric -> value, of lm-eval's results."""
    return {
        (task, key.split(",")[0]): value
        for task, values in results["results"].items()
        for key, value in values.items()
        if key.endswith(",none") and "_stderr" not in key
    }


def evaluated(folder: Path, tasks: Path, *more: Any) -> dict[tuple[str, str], float]:
    """The same of the score step."""
    out = folder.with_name(f"{folder.name}.json")
    given = ["--tasks", "toy_choice,toy_write", "--task-dir", tasks, "--device", "cpu", *more]
    steps.call("score", "--model", folder, "--out", out, *given)
    found = json.loads(out.read_text())["scores"]
    return {(score["task"], score["metric"]): score["value"] for score in found}


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS)
def test_lm_eval_scores_a_folder_as_the_evaluate_step(
    row: str, folders: Folders, task_folder: Path
) -> None:
    folder = folders.fit(row)
    manager = TaskManager(include_path=str(task_folder), include_defaults=False)
    common = {"task_manager": manager, "limit": 6, "bootstrap_iters": 0, "batch_size": 4}
    common |= {"model_args": f"pretrained={folder}", "device": "cpu"}
    ours = evaluated(folder, task_folder, "--limit", 6, "--batch-size", 4)
    found = simple_evaluate(model="skipbench", tasks=["toy_choice", "toy_write"], **common)
    assert scores(found) == ours
    # lm-eval's own class writes with the settings of the folder, so only choices are equal.
    stock = simple_evaluate(model="hf", tasks=["toy_choice"], **common)
    assert scores(stock).items() <= ours.items()


@pytest.mark.parametrize("by_file", [False, True])
def test_the_command_line_of_lm_eval_refuses_programs_in_task_files(
    by_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "evil.yaml").write_text("task: evil\ndoc_to_text: !function os.system")
    (tmp_path / "config.yaml").write_text(f"include_path: {folder}")
    words = ["-C", str(tmp_path / "config.yaml")] if by_file else [f"--include_path={folder}"]
    monkeypatch.setattr("sys.argv", ["lm_eval", "run", *words])
    with pytest.raises(ValueError, match="!function os.system must name a function"):
        lm_eval.main()


@pytest.mark.parametrize("words", [["-t", "x,FOLDER"], ["--tasks", "x", "FOLDER/evil.yaml"], None])
def test_the_command_line_of_lm_eval_refuses_paths_of_tasks(
    words: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = tmp_path / "tasks", tmp_path / "config.yaml"
    folder.mkdir()
    (folder / "evil.yaml").touch()
    config.write_text(f"tasks: [x, {folder}/*.yaml]")
    given = [word.replace("FOLDER", str(folder)) for word in words or ["-C", str(config)]]
    monkeypatch.setattr("sys.argv", ["lm_eval", "run", *given])
    with pytest.raises(ValueError, match=f"--tasks {folder}.* is a path: name its folder by --inc"):
        lm_eval.main()


def test_the_command_line_of_lm_eval_confines_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval import utils

    monkeypatch.setattr(utils, "env", utils.Environment())
    monkeypatch.setattr(lm_eval, "cli_evaluate", lambda: None)
    monkeypatch.setattr(lm_eval, "set_up_torch", lambda threads: None)
    monkeypatch.setattr("sys.argv", ["lm_eval"])
    lm_eval.main()
    with pytest.raises(SecurityError):
        utils.apply_template("{{ ''.__class__.__mro__ }}", {})


@pytest.mark.long
def test_the_command_line_of_lm_eval_scores_a_folder(
    folders: Folders, task_folder: Path, tmp_path: Path
) -> None:
    folder = folders.fit("hero")
    words = [
        "--model",
        "skipbench",
        "--model_args",
        f"pretrained={folder}",
        "--tasks",
        "toy_choice",
    ]
    words += ["--include_path", task_folder, "--batch_size", 4, "--output_path", tmp_path]
    steps.call("lm_eval", *words)
    (file,) = tmp_path.rglob("results*.json")
    ours = evaluated(folder, task_folder, "--batch-size", 4)
    assert scores(json.loads(file.read_text())).items() <= ours.items()
