"""Params that are read from the source without importing it."""

from __future__ import annotations

import pytest

from methods import Row, discover, load_method
from workflows.suite.params import defaults


@pytest.mark.parametrize("row", discover().values(), ids=lambda row: row.name)
def test_defaults_read_from_the_source_are_those_of_the_class(row: Row) -> None:
    assert {**defaults(row), **row.params} == vars(load_method(row.name).params)
