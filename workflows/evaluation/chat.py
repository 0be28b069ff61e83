"""Prompts of tasks in a chat template, used for scored items and for probe texts."""

from __future__ import annotations

import warnings

from transformers import PreTrainedTokenizerBase

from methods.core.chat import Turn, apply_template


def task_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: list[Turn], add_generation_prompt: bool = True
) -> str:
    """A prompt as lm-eval makes it; without its system turn if the template refuses that.

    Args:
        tokenizer: With a template.
        messages: Description, demonstrations and question of a task as turns.
        add_generation_prompt: True: the head of the answer follows. False: the answer continues the
            last turn.

    Raises:
        ValueError: The template refuses the turns, also without the system turn.
    """
    options = {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": not add_generation_prompt,
    }
    others = [turn for turn in messages if turn["role"] != "system"]
    try:
        return apply_template(tokenizer, messages, **options)
    except ValueError as error:
        if len(others) in (0, len(messages)):
            raise
        text = apply_template(tokenizer, others, **options)
        warnings.warn(f"{error}; prompts go without their system turn", stacklevel=2)
        return text
