"""The demo world's facts, words and tokenizer."""

from __future__ import annotations

import itertools

from workflows.demo.corpus import documents, items
from workflows.demo.tasks import TASKS
from workflows.demo.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, build_tokenizer
from workflows.demo.world import RELATIONS, the_world, value_pool, vocabulary


def test_every_person_has_every_relation_with_a_value_of_its_type() -> None:
    world = the_world()
    for relation in RELATIONS:
        pool = set(value_pool(relation, world.people))
        assert set(world.facts[relation]) == set(world.people)
        assert set(world.facts[relation].values()) <= pool


def test_the_world_holds_thousands_of_facts_of_several_bits() -> None:
    world = the_world()
    assert sum(len(world.facts[relation]) for relation in RELATIONS) >= 4000
    sizes = [len(value_pool(relation, world.people)) for relation in RELATIONS]
    assert sum(size >= 50 for size in sizes) >= len(sizes) - 2


def test_nobody_stands_in_a_relation_to_themselves() -> None:
    world = the_world()
    assert all(world.value(r, person) != person for r in RELATIONS for person in world.people)


def test_words_are_distinct_and_single() -> None:
    words = vocabulary()
    assert len(set(words)) == len(words)
    assert all(word == word.strip().lower() and " " not in word for word in words)


def test_tokenizer_puts_bos_in_front_and_knows_every_word() -> None:
    tokenizer = build_tokenizer()
    text = " ".join(vocabulary())
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == BOS_ID and UNK_ID not in ids and EOS_ID not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.pad_token_id == PAD_ID and tokenizer.eos_token_id == EOS_ID
    assert tokenizer("unheard")["input_ids"] == [BOS_ID, UNK_ID]


def test_documents_and_items_hold_no_other_word() -> None:
    words = set(vocabulary())
    for document in itertools.islice(documents("train", 5), 3000):
        assert set(f"{document['prompt']} {document['completion']}".split()) <= words
    for task in TASKS:
        for item in items(task, "test"):
            texts = [item["prompt"], item["answer"], *item.get("choices", ())]
            assert set(" ".join(texts).split()) <= words
