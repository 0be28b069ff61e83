"""Facts, words and tokenizer of every world."""

from __future__ import annotations

import itertools
import math

import pytest

from workflows.demo.corpus import documents, items, task_names
from workflows.demo.presets import PRESETS
from workflows.demo.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, build_tokenizer
from workflows.demo.world import RELATIONS, World, the_world, value_pool, vocabulary


@pytest.fixture(params=PRESETS)
def world(request: pytest.FixtureRequest) -> World:
    return the_world(request.param)


def test_every_person_has_every_relation_with_a_value_of_its_type(world: World) -> None:
    for relation in RELATIONS:
        pool = set(value_pool(relation, world.people))
        assert set(world.facts[relation]) == set(world.people)
        assert set(world.facts[relation].values()) <= pool


def bits(world: World) -> float:
    """What it takes to know every fact."""
    return sum(len(world.people) * math.log2(len(value_pool(r, world.people))) for r in RELATIONS)


def test_a_world_holds_thousands_of_facts_of_several_bits(world: World) -> None:
    assert sum(len(world.facts[relation]) for relation in RELATIONS) >= 4000
    sizes = [len(value_pool(relation, world.people)) for relation in RELATIONS]
    assert sum(size >= 50 for size in sizes) >= len(sizes) - 2


def test_the_small_world_holds_several_times_as_many_bits_and_shares_no_person_list() -> None:
    demo, small = the_world("demo"), the_world("small")
    assert 34_000 < bits(demo) < 36_000
    assert 4 < bits(small) / bits(demo) < 6
    assert demo.people != small.people[: len(demo.people)]


def test_an_unknown_world_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown world 'large'; known: demo, small"):
        the_world("large")


def test_nobody_stands_in_a_relation_to_themselves(world: World) -> None:
    assert all(world.value(r, person) != person for r in RELATIONS for person in world.people)


def test_words_are_distinct_and_single(world: World) -> None:
    words = vocabulary(world)
    assert len(set(words)) == len(words)
    assert all(word == word.strip().lower() and " " not in word for word in words)


def test_tokenizer_puts_bos_in_front_and_knows_every_word(world: World) -> None:
    tokenizer = build_tokenizer(world)
    text = " ".join(vocabulary(world))
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == BOS_ID and UNK_ID not in ids and EOS_ID not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.pad_token_id == PAD_ID and tokenizer.eos_token_id == EOS_ID
    assert tokenizer("unheard")["input_ids"] == [BOS_ID, UNK_ID]


def test_documents_and_items_hold_no_other_word(world: World) -> None:
    words = set(vocabulary(world))
    for document in itertools.islice(documents(world, "train", 5), 3000):
        assert set(f"{document['prompt']} {document['completion']}".split()) <= words
    for task in task_names(world):
        for item in items(task, "test"):
            texts = [item["prompt"], item["answer"], *item.get("choices", ())]
            assert set(" ".join(texts).split()) <= words
