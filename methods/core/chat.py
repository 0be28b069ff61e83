"""Conversations as text: by a tokenizer's chat template, or in Tulu's plain form without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from transformers import PreTrainedTokenizerBase

from methods.core.jsonfile import first_line

Turn = dict[str, str]
# A character for private use, which no text of a turn contains.
MARK = "\ue000"


def check_turns(messages: Any, where: str) -> None:
    """Check that a conversation is a list of turns, each with a role and a text.

    Raises:
        ValueError: It is not.
    """
    turns = messages if isinstance(messages, list) else []
    texts = [
        isinstance(turn, dict) and isinstance(turn.get(key), str)
        for turn in turns
        for key in ("role", "content")
    ]
    if not texts or not all(texts):
        raise ValueError(f"{where}: messages must be a list of objects with role and content")


def apply_template(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Turn], **options: Any
) -> str:
    """A conversation in the tokenizer's chat template.

    Args:
        tokenizer: Has a template.
        messages: Turns.
        options: Of ``apply_chat_template``.

    Raises:
        ValueError: The template refuses the conversation; the message has its reason.
    """
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except Exception as error:  # a template is a program: it may raise anything
        reason = first_line(error)
        raise ValueError(f"the chat template refuses the conversation: {reason}") from error


def conversation(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Turn], ask: bool = False
) -> str:
    """A conversation as text; base models have no template.

    Args:
        tokenizer: Of the model.
        messages: Turns.
        ask: Whether the beginning of the assistant's next turn is added.

    Raises:
        ValueError: See :func:`apply_template`.
    """
    if tokenizer.chat_template:
        return apply_template(tokenizer, messages, add_generation_prompt=ask)
    turns = [f"<|{turn['role']}|>\n{turn['content']}\n" for turn in messages]
    return "".join(turns) + "<|assistant|>\n" * ask


def assistant_turns(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Turn], whole: str
) -> Iterator[tuple[int, int]]:
    """First and stop of the assistant's words in the text of a conversation.

    Turns that cannot be located are left out: a template may refuse parts of a conversation, or
    write them in another way.

    Args:
        tokenizer: Of the model.
        messages: Turns.
        whole: Their text.
    """
    for number in (n for n, turn in enumerate(messages) if turn["role"] == "assistant"):
        before = _before(tokenizer, messages, number)
        if before is None:
            continue
        after = _text_of(tokenizer, messages[: number + 1])
        if after is None:
            after = before + messages[number]["content"].strip()
        if whole.startswith(before) and whole.startswith(after):
            yield len(before), len(after)


def _before(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Turn], number: int
) -> str | None:
    """The text before the words of a turn; None if the template does not show it."""
    # A template cannot write a conversation without a turn.
    before = _text_of(tokenizer, messages[:number], ask=True) if number else None
    if before is None:
        marked = {**messages[number], "content": MARK}
        other = _text_of(tokenizer, [*messages[:number], marked, *messages[number + 1 :]]) or ""
        before = other.partition(MARK)[0] if MARK in other else None
    return before


def _text_of(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Turn], ask: bool = False
) -> str | None:
    """Text of a part of a conversation; None if the template refuses this part."""
    with suppress(ValueError):
        return conversation(tokenizer, messages, ask)
    return None
