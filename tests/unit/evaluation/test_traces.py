"""Texts of items, and routes of the first prompt of each task."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from tests import steps
from workflows.evaluation.harness import CountingLM
from workflows.evaluation.models import harness_arguments, load_any
from workflows.evaluation.traces import CHARACTERS, TOKENS, routes, sample_text
from workflows.records import SAMPLE

LONG = "a b " * CHARACTERS


def told(first: bool = False, inputs: int = 0, **changes: Any) -> dict[str, Any]:
    """Texts of an item of two choices; the number of the right one of ``inputs`` is 1."""
    sample = {"arguments": [("ask", " yes"), ("ask", " no")], "target": 1, "doc": {}}
    sample |= {"filtered_resps": [(-1.23456, True), (-2.0, False)]} | changes
    chooses = isinstance(sample["arguments"][0][1], str)
    task = SimpleNamespace(
        OUTPUT_TYPE="multiple_choice" if chooses else "generate_until",
        multiple_input=inputs,
        doc_to_choice=lambda doc: ["yes", "no"],
        doc_to_text=lambda doc: 1,
    )
    return json.loads(sample_text(task, sample, first))


def test_choices_stand_with_their_scores_and_the_number_of_the_right_one() -> None:
    assert told() == {
        "prompt": "ask", "target": 1, "choices": [" yes", " no"], "scores": [-1.2346, -2.0],
    }  # fmt: skip
    assert told(target="no")["target"] == 1
    # Of several right ones the first; -1 is no number of a choice.
    assert told(target=[1, 0])["target"] == 1
    assert told(target=["maybe", "yes"])["target"] == "maybe"
    assert told(target=-1)["target"] == "-1"
    assert told(filtered_resps=[-1.0, -2.0])["scores"] == [-1.0, -2.0]


def test_contexts_that_differ_are_the_choices() -> None:
    """As in WinoGrande, whose target is the continuation."""
    found = told(inputs=2, arguments=[("he", " ran"), ("she", " ran")], target="ran")
    assert (found["prompt"], found["choices"]) == ("", ["he ran", "she ran"])
    assert found["target"] == 1


def test_choices_that_are_scored_again_without_their_context_are_shown_once() -> None:
    """As by acc_mutual_info."""
    asked = [("ask", " yes"), ("ask", " no")]
    again = [("", text) for _, text in asked]
    scores = [(-1.23456, True), (-2.0, False), (-3.0, False), (-4.0, False)]
    assert told(arguments=asked + again, filtered_resps=scores) == told()


@pytest.mark.parametrize("written", [["four"], [["four", "five"]]])
def test_what_was_written_stands_with_what_was_wanted(written: list[Any]) -> None:
    texts = {"resps": written, "filtered_resps": ["[invalid]"]}
    found = told(arguments=[("2 + 2", {"until": []})], target="4", **texts)
    assert found == {"prompt": "2 + 2", "target": "4", "text": "four"}


def test_of_a_prompt_the_end_is_kept_but_of_the_first_everything() -> None:
    sample = {"arguments": [(LONG, " yes")], "filtered_resps": [(-1.0, True)], "target": 0}
    assert told(**sample)["prompt"] == LONG[-CHARACTERS:]
    assert told(first=True, **sample)["prompt"] == LONG


@pytest.fixture(scope="module")
def lm(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> CountingLM:
    """A row that skips FFNs by chance, under the harness."""
    folder = tmp_path_factory.mktemp("routed") / "model"
    steps.fit("random-skip", llama, folder, "--budget", "0.25")
    parts = harness_arguments(load_any(folder, None, "cpu"))
    return CountingLM(**parts, batch_size=1, max_length=None)


def items(*samples: dict[str, Any]) -> pd.DataFrame:
    texts = [json.dumps(sample) for sample in samples]
    return pd.DataFrame({"task": "t", "item": range(len(texts)), SAMPLE: texts})


def test_routes_are_what_the_model_runs_for_the_tokens_that_are_fed(lm: CountingLM) -> None:
    prompt, answer = "one two three", " four five"
    sample = {"prompt": prompt, "target": 1, "choices": [" no", answer]}
    (found,) = routes(lm, items(sample, sample | {"prompt": "other"}))
    context, rest = lm._encode_pair(prompt, answer)
    ids = (context + rest)[:-1]
    assert found["task"] == "t"
    assert len(found["tokens"]) == len(ids)
    assert found["first_answer"] == len(context) - 1
    with torch.no_grad():
        executed = lm.model.model(torch.tensor([ids])).executed[0]
    assert found["executed"] == ["".join(str(int(ran)) for ran in unit) for unit in executed]
    assert {"0", "1"} == set("".join(found["executed"]))


def test_of_a_long_prompt_the_last_tokens_are_kept(lm: CountingLM) -> None:
    words = " ".join(["one"] * (lm.max_length + 9))
    (found,) = routes(lm, items({"prompt": words, "target": "two three"}))
    length = min(TOKENS, lm.max_length)
    assert {len(unit) for unit in found["executed"]} == {len(found["tokens"])} == {length}
    assert 0 < found["first_answer"] < length


def test_items_without_texts_have_no_routes(lm: CountingLM) -> None:
    assert routes(lm, items({"prompt": "", "target": "a"})) == []
    assert routes(lm, pd.DataFrame({"task": ["t"], "item": [0]})) == []
