"""What is timed: number of sequences, tokens per sequence; rates that are forced."""

from __future__ import annotations

Case = tuple[int, int]  # sequences, tokens each


def case_name(case: Case) -> str:
    """A case as suites write it, such as 1x128."""
    return "x".join(map(str, case))


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


def rates(text: str) -> list[float]:
    """``0.25,0.5`` as numbers from 0 to 1.

    Raises:
        ValueError: Not of that form.
    """
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = [-1.0]
    if not all(0 <= rate <= 1 for rate in numbers):
        raise ValueError(f"--bypass '{text}' must be rates from 0 to 1, such as 0.25,0.5")
    return numbers


def check_length(name: str, text: str, window: int) -> None:
    """Refuse a text of cases with one that is longer than the window.

    Raises:
        ValueError: With ``name`` first.
    """
    longest = max(length for _, length in cases(text))
    if longest > window:
        raise ValueError(f"{name} {text}: the backbone's window is {window} tokens")
