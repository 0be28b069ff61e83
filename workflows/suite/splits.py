"""ARC has two splits with answers, test and validation: one Retain never mixes them.

In the paper the scores of dense Llama-3.1-8B and of its ablations are of the validation splits,
those of its other rows of the test splits (``reports/reference/paper``). Suites score the test
splits for all rows; ``overlays/paper_literal`` also scores the validation splits and puts these
into the Retain.
"""

from __future__ import annotations

from collections.abc import Iterable

VALIDATION = {name: f"{name}_validation" for name in ("arc_easy", "arc_challenge")}


def check_one_split(retain_tasks: Iterable[str]) -> None:
    """Refuse a Retain that takes ARC from both splits.

    Raises:
        ValueError: Tasks of the test and of the validation splits are among its tasks.
    """
    names = list(retain_tasks)
    test = [name for name in names if name in VALIDATION]
    validation = [name for name in names if name in VALIDATION.values()]
    if test and validation:
        raise ValueError(
            f"retain_tasks: {test[0]} is of ARC's test split, {validation[0]} of the validation "
            "split; a Retain takes one of them"
        )


def without_second_split(tasks: Iterable[str]) -> list[str]:
    """The tasks without ARC's validation splits if its test splits are among them."""
    names = list(tasks)
    has_test = any(name in VALIDATION for name in names)
    return [name for name in names if not (has_test and name in VALIDATION.values())]
