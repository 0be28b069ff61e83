"""Which choice counts as an answer, and what a guess scores."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.toys import tasks as toy_tasks
from tests.toys.models import make_model
from tests.toys.sharing import make_lm
from tests.toys.texts import write_jsonl
from workflows.evaluation.answers import NO_CHOICE, check_targets, chosen, guess
from workflows.evaluation.score import chance_of, score
from workflows.evaluation.tasklist import TaskEntry, parse_tasks, read_entries


class Task:
    """What is asked of a task of lm-eval."""

    def __init__(self, kind: str = "multiple_choice", choices: tuple[str, ...] = ()) -> None:
        self.OUTPUT_TYPE = kind
        self.choices = choices
        self.multiple_input = 0
        self.config = SimpleNamespace(
            process_results=None, metadata=None, doc_to_target="{{answer}}", doc_to_choice=choices
        )

    def doc_to_choice(self, doc: Any) -> list[str]:
        return list(self.choices)


def sample(*scores: float, target: Any = 0) -> dict[str, Any]:
    return {"doc": {}, "filtered_resps": [(s, False) for s in scores], "target": target}


def check(task: Task, *targets: Any) -> None:
    """As lm-eval logs items, with two filters."""
    logs = [sample(target=target) | {"doc_id": n} for n, target in enumerate(targets)]
    check_targets({"pets": task}, {"pets": logs * 2})


def test_the_chosen_answer_follows_the_length_that_the_metric_divides_by() -> None:
    task = Task(choices=("a", "bbbb", "\u00e9\u00e9"))
    item = sample(-1.0, -3.0, -1.4)
    assert chosen(task, item, "acc") == 0
    # Per character: -1, -0.75, -0.7; per byte: -1, -0.75, -0.35.
    assert chosen(task, item, "acc_norm") == 2
    assert chosen(task, sample(-1.0, -2.0, -1.9), "acc_norm") == 1
    assert chosen(task, sample(-1.0, -2.0, -1.9), "acc_bytes") == 2
    # Scores without a context, which acc_mutual_info adds, choose nothing by acc.
    item = sample(-2.0, -1.0, -3.0, -1.9, -0.1, -2.0)
    assert chosen(task, item, "acc") == 1
    # It takes the choice that its context makes likelier by most.
    assert chosen(task, item, "acc_mutual_info") == 0


@pytest.mark.parametrize(
    ("target", "expected"), [(0, 1 / 4), ("b", 1 / 4), ([0, 2], 2 / 4), ([1, 1], 1 / 4)]
)
def test_a_guess_is_right_as_often_as_there_are_right_choices(target: Any, expected: float) -> None:
    task = Task(choices=("a", "b", "c", "d"))
    assert guess(task, sample(0, 0, 0, 0, target=target), "acc") == expected
    # A metric that counts something else knows no guess: webqs has every choice right.
    assert guess(task, sample(0, 0, 0, 0, target=target), "exact_match") == 0


def test_nothing_says_what_a_guess_gets_by_a_function_of_the_task_s_own() -> None:
    """acc of truthfulqa_mc2 is the mass on all true answers."""
    task = Task(choices=("a", "b", "c", "d"))
    task.config = SimpleNamespace(process_results=lambda doc, results: {"acc": 0.5})
    values = [guess(task, sample(0, 0, 0, 0), "acc"), 0.25]
    assert math.isnan(values[0])
    # A program that the model writes is right by no guess, whatever runs it.
    written = Task("generate_until")
    written.config = task.config
    assert guess(written, sample(0), "acc") == 0
    items = pd.DataFrame({"guess": values})
    assert chance_of(TaskEntry("x"), "acc", items) is None
    assert chance_of(TaskEntry("x", chance=0.4), "acc", items) == 0.4


@pytest.mark.parametrize("kind", ["generate_until", "loglikelihood"])
def test_where_nothing_is_chosen_a_guess_scores_nothing(kind: str) -> None:
    assert chosen(Task(kind), sample(-1.0), "acc") == NO_CHOICE
    assert guess(Task(kind), sample(-1.0), "acc") == 0


def test_items_and_scores_carry_them(tmp_path: Path) -> None:
    folder = toy_tasks.make_tasks(tmp_path / "tasks", items=12)
    entries = parse_tasks("toy_choice,toy_write")
    result = score(make_lm(make_model(), 4, share=False), entries, [folder])
    chances = {s["task"]: s["chance"] for s in result.scores if s["primary"]}
    assert chances == {"toy_choice": pytest.approx(1 / 3), "toy_write": 0}
    (items,) = (frame for frame in result.items if frame["task"].iloc[0] == "toy_choice")
    assert set(items["choice"]) <= {0, 1, 2}
    assert len(set(items["choice"])) > 1
    assert (result.items[1]["choice"] == NO_CHOICE).all()


def test_other_choices_to_the_same_prompts_are_other_documents(tmp_path: Path) -> None:
    folder, lm = toy_tasks.make_tasks(tmp_path, items=4), make_lm(make_model(), 4, share=False)
    data, scores = folder / "choice.jsonl", []
    for text in (data.read_text(), data.read_text().replace('"options": ["w', '"options": ["v')):
        data.write_text(text)
        scores.append(score(lm, parse_tasks("toy_choice"), [folder]).scores[0])
    one, other = scores
    assert one["prompt_hash"] == other["prompt_hash"]
    assert one["doc_hash"] != other["doc_hash"]


@pytest.mark.parametrize(("metric", "expected"), [("acc", 0.25), ("em", 0.25), ("f1", None)])
@pytest.mark.parametrize("values", [[0, 0], [1, 0], [0.5, 1]])
def test_the_values_of_a_run_do_not_decide_its_chance(
    metric: str, expected: float | None, values: list[float]
) -> None:
    """A run that has every f1 at 0 would else be compared with one that has halves."""
    items = pd.DataFrame({"guess": [0.25, 0.25], "value": values})
    assert chance_of(TaskEntry("a"), metric, items) == expected
    assert chance_of(TaskEntry("a", chance=0.5), metric, items) == 0.5


@pytest.mark.parametrize("chance", [1.0, -0.1, 2])
def test_an_entry_may_state_its_chance(chance: float) -> None:
    assert read_entries([{"task": "a", "chance": 0.2}])[0] == TaskEntry("a", chance=0.2)
    with pytest.raises(ValueError, match="chance is at least 0 and below 1"):
        read_entries([{"task": "a", "chance": chance}])


@pytest.mark.parametrize("target", [1, "blue", [1, 0], [7, 0], np.int64(1), True])
def test_an_answer_is_a_choice_or_its_place(target: Any) -> None:
    check(Task(choices=("red", "blue")), target, "red")


@pytest.mark.parametrize(
    ("target", "shown"),
    [(2, "2"), ("lable", "lable"), ("1", "1"), ("Red", "Red"), ("red ", "red "), (-1, "-1"),
     ("None", "None"), ([5, 6], "5, 6"), ([], "none")],
)  # fmt: skip
def test_answers_that_are_no_choice_are_counted_and_refused(target: Any, shown: str) -> None:
    task = Task(choices=("red", "blue"))
    end = f"; first: {shown}; its choices, counted from 0, are red, blue"
    for targets, count in (([target], "1 of 1"), (["red", target, 1, target], "2 of 4")):
        with pytest.raises(ValueError, match="task 'pets'") as caught:
            check(task, *targets)
        said = f"task 'pets': {count} items' answers are not among the choices{end}"
        assert str(caught.value) == said
    # The number of a context is no choice.
    task.multiple_input = 2
    check(task, target)


def test_a_task_of_lm_eval_may_have_some_but_not_all() -> None:
    task = Task(choices=("red", "blue"))
    task.config.metadata = {"config_source": "/site-packages/lm_eval/tasks/pets/pets.yaml"}
    with pytest.warns(UserWarning, match=r"1 of 2 items' answers .* \(they count as wrong\)$"):
        check(task, "lable", 0)
    with pytest.raises(ValueError, match="2 of 2 items' answers"):
        check(task, "lable", 7)
    # Its numbers are places, whatever the choices are.
    task.choices = ("1", "0")
    check(task, 1, 0)


@pytest.mark.parametrize(
    ("choices", "targets"),
    [(("1", "0"), (1, 0)), (("1", "2", "3"), (1, 2, 3)), ((" 3", " 2"), (3, 2))],
)
def test_digits_that_are_texts_of_choices_are_no_places(
    choices: tuple[str, ...], targets: tuple[int, ...]
) -> None:
    task, texts = Task(choices=choices), [choice.strip() for choice in choices]
    advice = (
        f"{{{{{texts}.index(answer | string)}}}}, or as {{{{answer | int}}}} if they are places"
    )
    with pytest.raises(ValueError, match="task 'pets'") as caught:
        check(task, *targets)
    assert str(caught.value).endswith(f"write doc_to_target as {advice}")
    # A place that the file makes is one, so is a number of a column, or beside one that is no text.
    places = range(len(choices))
    for source in (f"{{{{{texts}.index(answer)}}}}", "{{answer | int}}", "answer", lambda doc: 1):
        task.config.doc_to_target = source
        check(task, *places)
    check(Task(choices=("2", "1", "3")), 0, 1, 2)
    check(Task(choices=("0", "1")), 0, 1)


@pytest.mark.parametrize("answers", [("1", "0"), ("10", "20"), (1, 0)])
def test_what_a_task_with_numbers_for_choices_is_told_to_write_is_right(
    answers: tuple[Any, Any], tmp_path: Path
) -> None:
    folder, entry = toy_tasks.make_tasks(tmp_path), parse_tasks("toy_choice")
    options = list(map(str, answers))
    rows = [
        {"question": f"w{n}", "options": options, "answer": answers[n % 3 > 0]} for n in range(6)
    ]
    write_jsonl(folder / "choice.jsonl", rows)
    lm = make_lm(make_model(), 4, share=False)
    said = r"write doc_to_target as (\{\{options.index\(answer \| string\)\}\}), or"
    with pytest.raises(ValueError, match=said) as caught:
        score(lm, entry, [folder])
    (advice,) = re.findall(said, str(caught.value))
    file = folder / "toy_choice.yaml"
    file.write_text(file.read_text().replace("{{answer}}", advice))
    (items,) = score(lm, entry, [folder]).items
    own = items[items["metric"] == "acc"].sort_values("item")
    texts = [str(row["answer"]) for row in rows]
    right = [options[n] == text for n, text in zip(own["choice"], texts, strict=True)]
    assert own["value"].tolist() == right


def test_a_misspelled_answer_column_ends_in_a_sentence(tmp_path: Path) -> None:
    folder = toy_tasks.make_tasks(tmp_path / "tasks", items=4)
    file = folder / "toy_choice.yaml"
    text = file.read_text()
    assert "{{answer}}" in text
    file.write_text(text.replace("{{answer}}", "lable"))
    with pytest.raises(
        ValueError, match="'toy_choice': 4 of 4 items' answers are not among the ch"
    ):
        score(make_lm(make_model(), 4, share=False), parse_tasks("toy_choice"), [folder])


def test_right_choices_are_those_that_score(tmp_path: Path) -> None:
    folder = toy_tasks.make_tasks(tmp_path / "tasks", items=30)
    (items,) = score(
        make_lm(make_model(), 4, share=False), parse_tasks("toy_choice"), [folder]
    ).items
    rows = [
        json.loads(line)["answer"] for line in (folder / "choice.jsonl").read_text().splitlines()
    ]
    for metric, own in items.groupby("metric"):
        right = own.sort_values("item")["choice"].to_numpy() == np.array(rows)
        assert right.tolist() == (own.sort_values("item")["value"] == 1).tolist(), metric
