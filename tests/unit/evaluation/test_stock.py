"""Names of lm-eval's files: tasks, groups, tags, and those that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from workflows.evaluation import tasknames
from workflows.evaluation.loading import task_manager
from workflows.evaluation.stock import UNGUARDED, Stock, check_group, stock_names, tasks_of_tag
from workflows.evaluation.tasklist import parse_tasks
from workflows.evaluation.tasknames import OWN_TASKS, check_names


@pytest.fixture(scope="module")
def index() -> dict[str, Any]:
    """lm-eval's own index of all its tasks, which takes seconds to build."""
    return TaskManager().task_index


def test_tasks_and_groups_are_found_however_their_keys_are_quoted() -> None:
    found = stock_names(("piqa", "mmlu_anatomy", "mmlu", "toy_choice"))
    assert set(found) == {"piqa", "mmlu_anatomy", "mmlu"}
    assert (found["piqa"].group, found["mmlu_anatomy"].group) == ({}, {})
    assert found["mmlu"].group["aggregate_metric_list"] == [
        {"metric": "acc", "weight_by_size": True}
    ]
    assert stock_names(()) == {}


def test_the_tasks_that_a_run_knows_are_those_of_lm_eval(index: dict[str, Any]) -> None:
    names = ["piqa", "boolq", "arc_challenge", "gsm8k", "mmlu_anatomy"]
    entries = parse_tasks(",".join(names))
    few = task_manager(entries, []).task_index
    assert len(few) < len(index) / 10
    assert [few[name] for name in names] == [index[name] for name in names]


def test_a_group_has_members_anywhere_and_each_file_is_read_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = list[dict[str, Any]]()
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda **given: asked.append(given))
    task_manager(parse_tasks("piqa,mmlu"), [])
    assert asked == [{"include_path": [str(OWN_TASKS)], "include_defaults": True}]
    # So have own groups, by the names that they list.
    for number, (name, every) in enumerate({"piqa": 0, "mmlu": 1, "truthfulqa": 1}.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "own.yaml").write_text(f"group: own\ntask: [{name}, {{task: inside}}]")
        task_manager(parse_tasks("own"), [folder])
        places = [*([] if every else [str(stock_names((name,))[name].folder)]), str(OWN_TASKS)]
        assert asked[-1] == {"include_path": [*places, str(folder)], "include_defaults": every}


def test_of_two_wrong_groups_the_first_entry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Stock(Path(), {"group": "any", "task": ["piqa"]})
    monkeypatch.setattr(tasknames, "stock_names", lambda wanted: dict.fromkeys("ab", wrong))
    with pytest.raises(ValueError, match="group 'b' has no metric"):
        check_names(parse_tasks("b,a"))


def test_a_group_needs_a_mean_over_its_items() -> None:
    told = {"task": ["one", {"task": "two"}], "aggregate_metric_list": {"metric": "acc"}}
    check_group("both", told)
    told["aggregate_metric_list"] = [{"metric": "acc", "weight_by_size": False}]
    said = r"group 'both' has no metric .*; name what it holds instead \(one, two\)"
    for metrics in (told["aggregate_metric_list"], ["acc"], None):
        with pytest.raises(ValueError, match=said):
            check_group("both", told | {"aggregate_metric_list": metrics})


def test_a_tag_is_refused_with_its_tasks(index: dict[str, Any]) -> None:
    # The last one, and all of mastermind, get their tag from a file that they include.
    names = ["truthfulqa_gen", "truthfulqa_mc1", "truthfulqa_mc2"]
    assert tasks_of_tag("truthfulqa") == names
    assert tasks_of_tag("mastermind_easy") == sorted(index["mastermind_easy"].tags)
    said = rf"'truthfulqa' is a tag, .* \({', '.join(names)}\)"
    with pytest.raises(ValueError, match=said):
        check_names(parse_tasks("truthfulqa"))


def test_what_evaluates_a_models_text_is_known_where_lm_eval_does_not_mark_it() -> None:
    refused = ("mbpp_plus", "cruxeval_input", "longproc_countdown_2k", "score_robustness_math")
    assert all(UNGUARDED.fullmatch(name) for name in (*refused, "humaneval", "longproc"))
    kept = ("code_humaneval", "longproc_html_to_tsv", "gsm8k", "score_robustness_mmlu_pro")
    assert not any(UNGUARDED.fullmatch(name) for name in kept)
