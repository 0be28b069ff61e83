"""HumanEval as a task: prompts, programs, pass@k, and what happens without a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from methods.core.model.ledger import Ledger
from tests.toys.models import make_model
from tests.toys.texts import make_tokenizer, write_jsonl
from workflows import ROOT
from workflows.evaluation import sandbox
from workflows.evaluation.harness import CountingLM
from workflows.evaluation.score import Scores, score
from workflows.evaluation.tasklist import TaskEntry, parse_tasks
from workflows.evaluation.tasknames import OWN_TASKS, check_names, hub_task_names, own_task_names
from workflows.evaluation.tasks.code.programs import pass_at
from workflows.suite.jobs import read_suite

REASON = sandbox.reason_not_to_run()
guarded = pytest.mark.skipif(REASON is not None, reason=f"no sandbox here: {REASON}")
TASKS = ("code_humaneval", "code_humaneval_instruct", "code_humaneval_samples")


def problem(name: str, right: str, number: int) -> dict[str, Any]:
    """A problem of HumanEval's form; its answer is ``right`` of x."""
    return {
        "task_id": f"Made/{number}", "entry_point": name,
        "prompt": f'def {name}(x: int) -> int:\n    """ {number} """\n',
        "canonical_solution": f"    return {right}\n",
        "test": f"def check(candidate):\n    x = 3\n    assert candidate(3) == {right}\n",
    }  # fmt: skip


PROBLEMS = [problem("double", "2 * x", 0), problem("square", "x * x", 1)]


@pytest.fixture
def scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_folder: Path
) -> Callable[..., tuple[Scores, list[Any]]]:
    """Scores a code task and ``toy_choice``; the model writes what a test says, by prompt."""
    file = write_jsonl(tmp_path / "problems.jsonl", PROBLEMS)
    asked: list[Any] = []

    def go(task: str, answers: dict[str, list[str]], **config: Any) -> tuple[Scores, list[Any]]:
        left = {name: list(texts) for name, texts in answers.items()}

        def write(lm: CountingLM, requests: list[Any], **options: Any) -> list[str]:
            asked.extend(request.args for request in requests)
            return [left[request.doc["entry_point"]].pop(0) for request in requests]

        monkeypatch.setattr(CountingLM, "generate_until", write)
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}}}
        entry = TaskEntry(task, metric="pass@1", config=data | config)
        model = make_model(seed=0)
        lm = CountingLM(model, make_tokenizer(), Ledger.of(model, 1, 6), 4, None)
        # Counts of a model that was never asked.
        lm.tallies["generated"].add(None, 1)
        monkeypatch.setattr(lm, "reset", lambda: None)
        return score(lm, [entry, TaskEntry("toy_choice", limit=2)], [task_folder]), asked

    return go


def values(found: Scores, metric: str) -> list[float]:
    return [
        float(value)
        for frame in found.items
        for value in frame[frame["metric"] == metric].sort_values("item")["value"]
    ]


@guarded
def test_a_completion_goes_on_from_its_prompt(scored: Any) -> None:
    answers = {"double": ["    return x + x\n"], "square": ["    return x\n"]}
    found, asked = scored("code_humaneval", answers)
    assert values(found, "pass@1") == [1.0, 0.0]
    (told,) = [s for s in found.scores if s["task"] == "code_humaneval"]
    assert (told["metric"], told["n"], told["k"], told["shots"]) == ("pass@1", 2, 1, 0)
    assert asked[0][0] == PROBLEMS[0]["prompt"]
    assert found.not_run == []


@guarded
def test_a_program_ends_with_its_block(scored: Any) -> None:
    after = "    return 2 * x\n```\nThis doubles x.\n```python\n1 / 0\n```"
    answers = {"double": [after], "square": ["    return 7 ```"]}
    found, asked = scored("code_humaneval_instruct", answers)
    assert values(found, "pass@1") == [1.0, 0.0]
    prompt = PROBLEMS[0]["prompt"]
    assert asked[0][0] == (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{prompt}\n```\nHere is the completed function:\n```python\n{prompt}\n"
    )


@guarded
def test_samples_give_pass_at_k(scored: Any) -> None:
    right, wrong = "    return 2 * x\n", "    return x\n"
    answers = {"double": [right] * 3 + [wrong] * 9, "square": [wrong] * 12}
    found, asked = scored("code_humaneval_samples", answers, repeats=12)
    assert len(asked) == 24
    assert values(found, "pass@1") == [0.25, 0.0]
    assert values(found, "pass@10") == [1.0, 0.0]
    assert {s["metric"] for s in found.scores if s["task"] == "code_humaneval_samples"} == {
        "pass@1", "pass@10",
    }  # fmt: skip


@pytest.mark.parametrize(("n", "c", "k"), [(5, 0, 2), (5, 2, 1), (5, 2, 3), (6, 3, 3), (4, 4, 2)])
def test_pass_at_k_is_the_share_of_draws_with_a_passed_program(n: int, c: int, k: int) -> None:
    draws = [any(number < c for number in drawn) for drawn in combinations(range(n), k)]
    assert pass_at(k, n, c) == pytest.approx(sum(draws) / len(draws))


def test_without_a_sandbox_a_task_is_not_run_and_the_others_are(
    scored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "reason_not_to_run", lambda: "bubblewrap is not installed")
    found, asked = scored("code_humaneval", {})
    assert found.not_run == [{"task": "code_humaneval", "reason": "bubblewrap is not installed"}]
    # Nothing was generated.
    assert asked == []
    assert {s["task"] for s in found.scores} == {"toy_choice"}


def test_a_run_of_nothing_else_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sandbox, "reason_not_to_run", lambda: "bubblewrap is not installed")
    model = make_model(seed=0)
    lm = CountingLM(model, make_tokenizer(), Ledger.of(model, 1, 6), 4, None)
    with pytest.raises(ValueError, match=r"no task can be run here \('code_humaneval': bubblewrap"):
        score(lm, [TaskEntry("code_humaneval")], [])
    text = tmp_path / "text.txt"
    text.write_text("w1 w2 w3 w4")
    found = score(
        lm, [TaskEntry("code_humaneval"), TaskEntry("perplexity:text", file=str(text))], []
    )
    assert found.tallies["likelihood"].tokens == 3
    assert [one["task"] for one in found.not_run] == ["code_humaneval"]


class Plain(yaml.SafeLoader):
    """Reads a task's file without the functions that it names."""


Plain.add_constructor("!function", lambda loader, node: node.value)


def described(file: Path) -> dict[str, Any]:
    """A task's file with what it includes."""
    told = yaml.load(file.read_text(encoding="utf-8"), Plain)
    base = told.pop("include", None)
    return (described(file.parent / base) if base else {}) | told


@pytest.mark.parametrize(
    ("own", "stock"),
    [(f"code_humaneval{form}", f"humaneval{form}") for form in ("", "_instruct")]
    + [("code_humaneval_samples", "humaneval_64")],
)
def test_prompts_and_stops_are_those_of_the_harness(own: str, stock: str) -> None:
    spec = find_spec("lm_eval")
    assert spec is not None and spec.origin is not None
    theirs = described(Path(spec.origin).parent / f"tasks/humaneval/{stock}.yaml")
    ours = described(OWN_TASKS / "code" / f"{own}.yaml")
    for key in ("dataset_path", "test_split", "doc_to_text", "num_fewshot", "generation_kwargs"):
        assert ours[key] == theirs[key], key
    assert ours.get("gen_prefix") == theirs.get("gen_prefix")


def test_names_do_not_hide_those_of_the_harness() -> None:
    assert {name for name in own_task_names() if "humaneval" in name} == set(TASKS)
    check_names([TaskEntry(name) for name in TASKS])
    for name in ("humaneval", "humaneval_instruct", "mbpp"):
        with pytest.raises(
            ValueError, match=f"'{name}' of lm-eval runs .* without a sandbox; .*code_"
        ):
            check_names(parse_tasks(name))


def test_its_data_are_fetched_like_those_of_a_stock_task() -> None:
    assert set(TASKS) < hub_task_names()
    config = yaml.safe_load((ROOT / "workflows/suites/demo.yaml").read_text())
    suite = read_suite(config | {"tasks": ["demo_facts", "piqa", "code_humaneval"]})
    assert suite.task_data_files() == [
        "results/demo/tasks/piqa.json", "results/demo/tasks/code_humaneval.json",
    ]  # fmt: skip
