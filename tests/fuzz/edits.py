"""Damage to a good input: one value of a file is replaced, or bytes are cut or changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

Edit = Callable[[Path], None]
GONE = "@gone"  # as a value: the key or entry is deleted
VALUES: list[Any] = [
    GONE, None, True, 0, -1, 1, 3, 2.5, 1e308, float("nan"), float("inf"), 10**9, 10**30, "", "x",
    "../../etc/passwd", "\ud800", "{{ x }}", "<script>", "w1 w2", [], [[]], [0, -1], {}, {"x": {}},
]  # fmt: skip


def read(file: Path) -> Any:
    """Content of a JSON, JSON Lines or YAML file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return yaml.safe_load(text) if file.suffix == ".yaml" else json.loads(text)


def write(file: Path, value: Any) -> None:
    if file.suffix == ".yaml":
        text = yaml.safe_dump(value)
    elif file.suffix == ".jsonl" and isinstance(value, list):
        text = "".join(json.dumps(row) + "\n" for row in value)
    else:
        text = json.dumps(value)
    file.write_text(text, encoding="utf-8")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document; of a list the first three entries."""
    yield path
    if isinstance(value, dict):
        inner = list(value.items())
    else:
        inner = list(enumerate(value[:3])) if isinstance(value, list) else []
    for key, part in inner:
        yield from places(part, (*path, key))


def put(name: str, value: Any, *path: Any) -> Edit:
    """The edit that puts a value at a place of a file; the key may be new."""

    def edit(folder: Path) -> None:
        document = read(folder / name)
        if not path:
            return write(folder / name, None if value == GONE else value)
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        if isinstance(value, str) and value == GONE:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        return write(folder / name, document)

    return edit


def raw(name: str, content: bytes) -> Edit:
    """The edit that replaces a file."""
    return lambda folder: (folder / name).write_bytes(content) and None


def remove(name: str) -> Edit:
    return lambda folder: (folder / name).unlink()


def value_edits(good: Path, name: str) -> st.SearchStrategy[Edit]:
    """Edits that replace one value of a file."""
    all_places = [place for place in places(read(good / name)) if place]
    return st.builds(
        lambda place, value: put(name, value, *place), st.sampled_from(all_places), values()
    )


def values() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.sampled_from(VALUES), st.integers(), st.floats(), st.text(max_size=20),
        st.lists(st.integers(-1, 99), max_size=4),
    )  # fmt: skip


def byte_edits(good: Path, name: str) -> st.SearchStrategy[Edit]:
    """Edits that cut a file, change a few bytes or insert some, most often near its start."""
    whole = (good / name).read_bytes()
    head = st.integers(0, min(len(whole), 300) - 1)
    where = st.one_of(head, head, st.integers(0, len(whole) - 1))

    def change(place: int, new: bytes, stays: int) -> bytes:
        return whole[:place] + new + whole[place + stays :]

    cut = where.map(lambda place: whole[:place])
    insertion = st.builds(change, where, st.binary(min_size=1, max_size=8), st.integers(0, 8))
    return st.one_of(cut, insertion, insertion).map(lambda content: raw(name, content))
