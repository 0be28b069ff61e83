"""Rows of a JSON Lines file of documents: reading them, and the form that one has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from methods.core.chat import check_turns
from methods.core.jsonfile import parse_json

# Keys of a row whose values must be texts.
TEXTS = ("prompt", "completion", "text", "fed", "task")


def read_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """The rows of a JSON Lines file with their place, for messages.

    Raises:
        ValueError: A line is not JSON in UTF-8.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            yield parse_json(line, where), where


def check_row(row: Any, where: str) -> None:
    """Check the form of a document.

    Args:
        row: As read from JSON.
        where: Its place, for messages.

    Raises:
        ValueError: It is no object with a text, or a value is of another kind.
    """
    if not isinstance(row, dict) or not {"messages", "completion", "text", "fed"} & row.keys():
        raise ValueError(f"{where}: expected an object with text, completion, messages or fed")
    for name in TEXTS:
        if not isinstance(row.get(name, ""), str):
            raise ValueError(f"{where}: '{name}' is no text: {row[name]!r:.80}")
    if not _are_counts(row.get("counts", [1, 1])):
        raise ValueError(f"{where}: 'counts' is not two numbers above 0: {row['counts']!r:.80}")
    if "messages" in row:
        check_turns(row["messages"], where)


def _are_counts(value: Any) -> bool:
    """Whether a value may be the ``counts`` of a row."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(count) in (int, float) and count > 0 for count in value)
    )
