"""Conversations as documents: templates, borders of answers, closing tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from methods.core.data import Document
from methods.core.training.packing import lay_out
from tests.toys.texts import BOS, EOS, UNK, make_tokenizer
from tests.unit.core.test_data import jsonl, read


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ 'w50' if m.role == 'user' else 'w51' }} {{ m.content }} "
        "{% endfor %}"
    )
    turns = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2 w3"}]
    documents = read(jsonl(tmp_path, {"messages": turns}), tokenizer=tokenizer)
    assert documents == [Document([50, 1, 51, 2, 3, EOS], 0, "", ((1, 4),))]


def test_every_turn_of_the_assistant_holds_answer_tokens(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    # With a head for the assistant, which asks for its words, and an end behind every turn.
    tokenizer.chat_template = (
        "{% for m in messages %}{{ 'w50' if m.role == 'user' else 'w51' }} {{ m.content }} w52 "
        "{% endfor %}{% if add_generation_prompt %}w51 {% endif %}"
    )
    words = [("user", "w1 w2"), ("assistant", "w3"), ("user", "w4"), ("assistant", "w5 w6")]
    turns = [{"role": role, "content": content} for role, content in words]
    (document,) = read(jsonl(tmp_path, {"messages": turns}), tokenizer=tokenizer)
    assert document.ids == [50, 1, 2, 52, 51, 3, 52, 50, 4, 52, 51, 5, 6, 52, EOS]
    # The head predicts the first word, the last word the end of the turn.
    assert document.answers == ((4, 6), (10, 13))
    assert document.prompting == [(0, 4), (6, 10)]
    assert document.answer_tokens == 5
    (cut,) = read(jsonl(tmp_path, {"messages": turns}), tokenizer=tokenizer, max_length=12)
    assert cut.answers == ((4, 6), (10, 12))
    # Cut in the user's turn: its words are a prompt as in the whole conversation.
    (cut,) = read(jsonl(tmp_path, {"messages": turns}), tokenizer=tokenizer, max_length=10)
    assert (cut.ids[6:], cut.answers) == ([52, 50, 4, 52], ((4, 6),))
    assert cut.prompting == [(0, 4), (6, 9)]
    assert lay_out([cut], 0, 0.25).weights.tolist() == [[0.25] * 4 + [1.0] * 2 + [0.25] * 3 + [0.0]]


def test_tulus_plain_form_without_a_template(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2 w3"}]
    (document,) = read(jsonl(tmp_path, {"messages": turns}))
    assert document.ids == [UNK, 1, UNK, 2, 3, EOS]
    assert document.answers == ((2, 4),)


CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ 'w50 ' if m.role == 'user' else 'w51 ' }}"
    "{{ m.content }} w52 {% endfor %}{% if add_generation_prompt %}w51 {% endif %}"
)


def turns(*words: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in words]


def test_a_row_among_others_begins_as_it_does_alone(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(form="<bos> $A")
    tokenizer.chat_template = CHAT
    rows: list[Any] = [
        {"messages": turns(("user", "w1"), ("assistant", "w2 w3"))},
        {"text": "w4 w5"},
        {"completion": "w6 w7"},
        {"prompt": "w8 w9", "completion": "w10"},
        {"prompt": "<bos> w8 w9", "completion": "w10"},
        {"fed": "<bos> w11 w12 w13", "prompt": "<bos> w11"},
        {"fed": "w11 w12 w13", "prompt": "w11"},
    ]
    alone = [read(jsonl(tmp_path, row), tokenizer=tokenizer)[0] for row in rows]
    assert [document.ids.count(BOS) for document in alone] == [1] * len(rows)
    assert {document.ids[0] for document in alone} == {BOS}
    # The BOS predicts the first word of an answer without a prompt.
    assert alone[2] == Document([BOS, 6, 7, EOS], 0, "", ((0, 2),))
    assert (alone[3], alone[5]) == (alone[4], alone[6])
    for order in (rows, rows[::-1]):
        read_together = read(jsonl(tmp_path, *order), tokenizer=tokenizer)
        assert read_together == (alone if order is rows else alone[::-1])


def test_a_tokenizer_that_closes_texts_moves_no_border(tmp_path: Path) -> None:
    rows = [
        {"prompt": "w1 w2 w3", "completion": "w4 w5"},
        {"fed": "w1 w2 w3", "prompt": "w1 w2"},
        {"messages": turns(("user", "w1"), ("assistant", "w2 w3"))},
    ]
    one, other = (
        read(jsonl(tmp_path, *rows), tokenizer=make_tokenizer(form=form))
        for form in ("<bos> $A", "<bos> $A <eos>")
    )
    assert one == other


def test_an_eos_before_a_line_break_closes_a_document(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(AddedToken("\n"))
    tokenizer.chat_template = "{% for m in messages %}w50 {{ m.content }} <eos>\n{% endfor %}"
    rows = [
        {"messages": turns(("user", "w1"), ("assistant", "w2"))},
        {"prompt": "w1", "completion": "w2 w3 <eos>\n"},
    ]
    chat, answer = read(jsonl(tmp_path, *rows), tokenizer=tokenizer)
    assert chat.ids == [50, 1, EOS, 64, 50, 2, EOS, 64]
    assert answer == Document([1, 2, 3, EOS, 64], 1, "", ((0, 2),))


def test_without_an_eos_the_last_token_is_an_answers(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    row = {"prompt": "w1 w2", "completion": "w3 w4"}
    assert read(jsonl(tmp_path, row), tokenizer=tokenizer) == [
        Document([1, 2, 3, 4], 2, "", ((1, 3),))
    ]


STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('No system turns') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{{ m.content }} {% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "roles", "told"),
    [
        (STRICT, "system user assistant", "No system turns"),
        (STRICT, "user user assistant", "Roles must alternate"),
        (STRICT, "assistant user", "Roles must alternate"),
        ("{{ messages[0].name.first }}", "user", "has no attribute 'name'"),
        ("{{ messages[0].content + 1 }}", "user", "can only concatenate str"),
        ("{% for", "user", "unexpected 'end of template'"),
    ],
)
def test_a_conversation_that_the_template_refuses_is_named_by_its_line(
    template: str, roles: str, told: str, tmp_path: Path
) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    messages = turns(*((role, "w1") for role in roles.split()))
    said = f"rows.jsonl, line 2: the chat template refuses the conversation: .*{told}"
    with pytest.raises(ValueError, match=said):
        read(jsonl(tmp_path, {"text": "w1"}, {"messages": messages}), tokenizer=tokenizer)


@pytest.mark.parametrize("system", [False, True])
def test_the_beginning_of_a_conversation_may_be_none_to_its_template(
    system: bool, tmp_path: Path
) -> None:
    tokenizer = make_tokenizer(form="<bos> $A")
    # It looks at the first turn, and wants one of the user.
    asks = "{% if messages[0].role != 'user' and 'user' not in messages | map(attribute='role') %}"
    tokenizer.chat_template = asks + "{{ raise_exception('No user') }}{% endif %}" + CHAT
    words = [("assistant", "w1 w2"), ("user", "w3"), ("assistant", "w4")]
    first = [("system", "w5")] * system
    (document,) = read(jsonl(tmp_path, {"messages": turns(*first, *words)}), tokenizer=tokenizer)
    head = [BOS, *[51, 5, 52] * system]
    assert document.ids == [*head, 51, 1, 2, 52, 50, 3, 52, 51, 4, 52, EOS]
    start = len(head)
    # The first turn's end is not shown: no template is asked for it alone.
    assert document.answers == ((start, start + 2), (start + 7, start + 9))
