"""Splits, scored items and training documents of every world."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

import pytest

from workflows.demo.corpus import (
    STATEMENT,
    corpus_hash,
    documents,
    items,
    items_hash,
    split_of,
    task_names,
)
from workflows.demo.presets import PRESETS
from workflows.demo.tokenizer import build_tokenizer
from workflows.demo.world import World, the_world

TASKS = [task for name in PRESETS for task in task_names(the_world(name))]
BACKBONE = Path(__file__).parents[3] / "workflows" / "demo" / "backbone"


@pytest.fixture(params=PRESETS)
def world(request: pytest.FixtureRequest) -> World:
    return the_world(request.param)


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
            assert task.split("_")[1] in ("arithmetic", "program")
            continue
        assert len(set(choices)) == len(choices) >= 2
        assert choices[item["gold"]] == item["answer"]


@pytest.mark.parametrize("task", TASKS)
def test_right_choice_has_no_favourite_place(task: str) -> None:
    listed = [item for item in items(task, "test") if "choices" in item]
    for place in range(len(listed[0]["choices"]) if listed else 0):
        share = sum(item["gold"] == place for item in listed) / len(listed)
        assert abs(share - 1 / len(listed[0]["choices"])) < 0.1


def test_no_scored_prompt_occurs_in_training(world: World) -> None:
    tasks = task_names(world)
    scored = {i["prompt"] for t in tasks for s in ("validation", "test") for i in items(t, s)}
    texts = [
        f"{d['prompt']} {d['completion']}"
        for d in itertools.islice(documents(world, "train", 3), 30_000)
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


def test_training_and_validation_documents_belong_to_their_split(world: World) -> None:
    for split in ("train", "validation"):
        for document in itertools.islice(documents(world, split, 0), 2000):
            if document["task"] != STATEMENT:
                assert split_of(document["prompt"]) == split
            else:
                assert split == "train"


def test_statements_teach_facts_in_other_words_than_the_questions(world: World) -> None:
    scored = {item["prompt"] for item in items(f"{world.preset.name}_facts", "test")}
    stream = documents(world, "train", 0)
    stated = itertools.islice((d for d in stream if d["task"] == STATEMENT), 2000)
    for document in stated:
        words = document["prompt"].split()
        person = next(word for word in words if word in world.people)
        relation = next(word for word in words if word in world.facts)
        assert document["completion"] == world.value(relation, person)
        assert document["prompt"] not in scored and "answer" not in words


def test_streams_are_deterministic_and_differ_by_seed(world: World) -> None:
    def first(seed: int) -> list[str]:
        return [json.dumps(d) for d in itertools.islice(documents(world, "train", seed), 50)]

    assert first(1) == first(1) != first(2)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="split"):
        next(documents(the_world("demo"), "test", 0))
    with pytest.raises(ValueError, match="unknown task 'demo_poetry'; known: demo_facts, "):
        items("demo_poetry", "test")
    with pytest.raises(ValueError, match="unknown task 'facts'; known: demo_..., small_..."):
        items("facts", "test")
    with pytest.raises(ValueError, match="split"):
        items("demo_facts", "train")


# What the shipped backbone was trained on and is scored by; committed records hold these items.
FROZEN = {
    "items": "12993e4013ddda45bc2da90ad6406ced018a686f1a8e71f398e148a6e6bb47b8",
    "corpus": "6fa7e544a471480664bde18394af24ac5ce2f6b68867ad42a4f2c486e6efff51",
    "tokenizer": "7d6f841f14d72671eaab8c6418b3fc7efae07bcca69a1a999626929bf98bc3ed",
}


def test_the_demo_world_is_frozen() -> None:
    demo = the_world("demo")
    tokenizer = build_tokenizer(demo).backend_tokenizer.to_str()
    assert {
        "items": items_hash(demo),
        "corpus": corpus_hash(demo, seed=1),
        "tokenizer": hashlib.sha256(tokenizer.encode()).hexdigest(),
    } == FROZEN


@pytest.mark.skipif(not BACKBONE.exists(), reason="no shipped backbone")
def test_shipped_backbone_was_trained_for_these_items() -> None:
    facts = json.loads((BACKBONE / "training.json").read_text())
    assert facts["items_hash"] == FROZEN["items"]
    assert facts["corpus_hash"] == FROZEN["corpus"]
    assert facts["parameters"] <= 1_200_000
