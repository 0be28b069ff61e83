"""JSON files: written, and read with checks, as anyone may have written them; no torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def parse_json(text: str | bytes, where: object) -> Any:
    """A value from JSON in UTF-8.

    Args:
        text: The JSON.
        where: Its name, for the message.

    Raises:
        ValueError: It is not JSON, a number is NaN or infinite, or a text holds half a character.
    """
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(plain, parse_float=_finite, parse_constant=_finite)
        if "\\ud" in plain or "\\uD" in plain:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: It does not exist, is not JSON, or has another value.
    """
    if not file.is_file():
        raise ValueError(f"{file} does not exist")
    value = parse_json(file.read_bytes(), file)
    if not isinstance(value, dict):
        raise ValueError(f"{file} is no JSON object")
    return value


def cut(text: str, most: int = 300) -> str:
    """A text, shortened to ``most`` characters: it may quote a whole file."""
    return text if len(text) <= most else f"{text[:most]} ..."


def write_json(file: Path, value: Any) -> None:
    """Write JSON, indented, with a final newline; NaN is refused."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def first_line(error: BaseException) -> str:
    """The first line of an error's message, shortened."""
    return cut((str(error).strip() or type(error).__name__).splitlines()[0])


def check_plain(value: Any, where: str) -> None:
    """Refuse a value that JSON cannot hold, or reads back as another: numbers as keys.

    Raises:
        ValueError: It is one; the message names the place.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(f'{where}: the key {key!r} of a mapping is no text: write "{key}"')
            check_plain(part, f"{where}, {key}")
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            check_plain(part, f"{where}, {place}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON does not hold")
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"{where} is a {type(value).__name__}, which JSON does not hold")
