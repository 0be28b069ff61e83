"""Splits, scored items and training documents of the demo world."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from workflows.demo.corpus import STATEMENT, documents, items, items_hash, split_of
from workflows.demo.tasks import TASKS
from workflows.demo.world import the_world

BACKBONE = Path(__file__).parents[2] / "workflows" / "demo" / "backbone"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", ["validation", "test"])
def test_items_are_many_distinct_and_of_their_split(task: str, split: str) -> None:
    prompts = [item["prompt"] for item in items(task, split)]
    assert len(set(prompts)) == len(prompts) >= 300
    assert {split_of(prompt) for prompt in prompts} == {split}


@pytest.mark.parametrize("task", TASKS)
def test_choices_are_distinct_and_chance_is_at_most_one_half(task: str) -> None:
    for item in items(task, "test"):
        choices = item.get("choices")
        if choices is None:
            assert task in ("demo_arithmetic", "demo_program")
            continue
        assert len(set(choices)) == len(choices) >= 2
        assert choices[item["gold"]] == item["answer"]


@pytest.mark.parametrize("task", TASKS)
def test_right_choice_has_no_favourite_place(task: str) -> None:
    listed = [item for item in items(task, "test") if "choices" in item]
    for place in range(len(listed[0]["choices"]) if listed else 0):
        share = sum(item["gold"] == place for item in listed) / len(listed)
        assert abs(share - 1 / len(listed[0]["choices"])) < 0.1


def test_no_scored_prompt_occurs_in_training() -> None:
    scored = {i["prompt"] for t in TASKS for s in ("validation", "test") for i in items(t, s)}
    texts = [
        f"{d['prompt']} {d['completion']}" for d in itertools.islice(documents("train", 3), 30_000)
    ]
    openings = {prompt.split()[0] for prompt in scored}
    for text in texts:
        words = text.split()
        starts = [place for place, word in enumerate(words) if word in openings]
        spans = {
            " ".join(words[start:end])
            for start in starts
            for end in range(start + 1, len(words) + 1)
        }
        assert not spans & scored


def test_training_and_validation_documents_belong_to_their_split() -> None:
    for split in ("train", "validation"):
        for document in itertools.islice(documents(split, 0), 2000):
            if document["task"] != STATEMENT:
                assert split_of(document["prompt"]) == split
            else:
                assert split == "train"


def test_statements_teach_facts_in_other_words_than_the_questions() -> None:
    scored = {item["prompt"] for item in items("demo_facts", "test")}
    stated = itertools.islice((d for d in documents("train", 0) if d["task"] == STATEMENT), 2000)
    for document in stated:
        words = document["prompt"].split()
        person = next(word for word in words if word in the_world().people)
        relation = next(word for word in words if word in the_world().facts)
        assert document["completion"] == the_world().value(relation, person)
        assert document["prompt"] not in scored and "answer" not in words


def test_streams_are_deterministic_and_differ_by_seed() -> None:
    def first(seed: int) -> list[str]:
        return [json.dumps(d) for d in itertools.islice(documents("train", seed), 50)]

    assert first(1) == first(1) != first(2)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="split"):
        next(documents("test", 0))
    with pytest.raises(ValueError, match="unknown task"):
        items("demo_poetry", "test")
    with pytest.raises(ValueError, match="split"):
        items("demo_facts", "train")


@pytest.mark.skipif(not BACKBONE.exists(), reason="no shipped backbone")
def test_shipped_backbone_was_trained_for_these_items() -> None:
    facts = json.loads((BACKBONE / "training.json").read_text())
    assert facts["items_hash"] == items_hash()
    assert facts["parameters"] <= 1_200_000
