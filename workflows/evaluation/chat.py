"""Prompts of tasks in a chat template, the same ones where they are scored and in a probe."""

from __future__ import annotations

import warnings

from transformers import PreTrainedTokenizerBase

from methods.core.chat import Turn, templated


def task_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: list[Turn], add_generation_prompt: bool = True
) -> str:
    """A prompt as lm-eval makes it: a template that takes no system turn is given none.

    Args:
        tokenizer: Has a template.
        messages: Description, demonstrations and question of a task as turns.
        add_generation_prompt: Whether the head of the answer follows; else the last turn goes on.

    Raises:
        ValueError: The template refuses the turns, or what is left of them.
    """
    options = {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": not add_generation_prompt,
    }
    others = [turn for turn in messages if turn["role"] != "system"]
    try:
        return templated(tokenizer, messages, **options)
    except ValueError as error:
        if len(others) in (0, len(messages)):
            raise
        text = templated(tokenizer, others, **options)
        warnings.warn(f"{error}; prompts go without their system turn", stacklevel=2)
        return text
