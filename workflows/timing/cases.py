"""Sizes of what is timed: number of sequences, tokens per sequence."""

from __future__ import annotations

Case = tuple[int, int]  # sequences, tokens each


def cases(text: str) -> list[Case]:
    """Pairs from a text such as ``1x512,8x2048``.

    Raises:
        ValueError: Not of that form.
    """
    try:
        pairs = [tuple(int(part) for part in word.split("x")) for word in text.split(",")]
        sizes = [(sequences, length) for sequences, length in pairs]
    except ValueError:
        sizes = [(0, 0)]
    if min(map(min, sizes)) < 1:
        raise ValueError(f"'{text}' must look like 1x512,8x2048")
    return sizes


def check_length(name: str, text: str, window: int) -> None:
    """Refuse a text of cases with one that is longer than the window.

    Raises:
        ValueError: With ``name`` first.
    """
    longest = max(length for _, length in cases(text))
    if longest > window:
        raise ValueError(f"{name} {text}: the backbone's window is {window} tokens")
