"""What is timed: sequences and the tokens of each."""

from __future__ import annotations

Case = tuple[int, int]  # sequences, tokens each


def cases(text: str) -> list[Case]:
    """``1x512,8x2048`` as pairs.

    Raises:
        ValueError: Not of that form.
    """
    try:
        pairs = [tuple(int(part) for part in word.split("x")) for word in text.split(",")]
        found = [(sequences, length) for sequences, length in pairs]
    except ValueError:
        found = [(0, 0)]
    if min(map(min, found)) < 1:
        raise ValueError(f"'{text}' must look like 1x512,8x2048")
    return found


def check_length(name: str, text: str, window: int) -> None:
    """Hold cases, as :func:`cases` reads them, against a window.

    Raises:
        ValueError: One is longer; the message begins with ``name``.
    """
    longest = max(length for _, length in cases(text))
    if longest > window:
        raise ValueError(f"{name} {text}: the backbone's window is {window} tokens")
