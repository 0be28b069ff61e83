"""Params are checked by name, type and range when a method is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from methods import Row, discover, load_method
from methods.base import make_params
from workflows.suite.params import defaults


@dataclass(frozen=True)
class Params:
    count: int = 1
    rate: float = 0.5
    mode: Literal["a", "b"] = "a"
    layers: Literal["auto"] | list[int] = "auto"
    limit: int | None = None
    flag: bool = False
    name: str = "x"
    steps: list | None = None  # type: ignore[type-arg]
    ends: tuple[int, int] = (0, 0)
    sizes: tuple[int, ...] | None = None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("count", 3), ("rate", 2), ("rate", 0.1), ("mode", "b"), ("layers", [1, 2]), ("layers", []),
        ("layers", "auto"), ("limit", None), ("limit", 4), ("flag", True), ("name", "y"),
        ("steps", [1, "two"]), ("ends", (1, 2)), ("sizes", (1, 2, 3)),
    ],
)  # fmt: skip
def test_fitting_values_pass(key: str, value: Any) -> None:
    assert getattr(make_params(Params, {key: value}), key) == value


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("count", "3", "int"), ("count", 1.5, "int"), ("count", True, "int"),
        ("count", None, "int"), ("rate", "a", "float"), ("rate", False, "float"),
        ("mode", "c", "one of 'a', 'b'"), ("layers", [1, "2"], "one of 'auto' or list"),
        ("layers", "all", "one of 'auto' or list"), ("layers", 3, "list"),
        ("limit", "4", "int or null"), ("flag", 1, "bool"), ("name", 5, "str"),
        ("layers", [[1]], "list"), ("mode", ["a"], "one of"), ("ends", [1], "tuple"),
        ("ends", [1, 2, 3], "tuple"),
    ],
)  # fmt: skip
def test_other_values_are_refused_by_name(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^param '{key}' is .*expected .*{expected}"):
        make_params(Params, {key: value})


def test_a_list_from_json_becomes_the_tuple_that_the_hint_says() -> None:
    params = make_params(Params, {"ends": [1, 2], "sizes": [3], "layers": [4]})
    assert (params.ends, params.sizes, params.layers) == ((1, 2), (3,), [4])


def test_a_default_is_a_literal() -> None:
    @dataclass(frozen=True)
    class Made:
        steps: list[int] = field(default_factory=list)

    with pytest.raises(ValueError, match="param 'steps' has no default that is a literal"):
        make_params(Made, {})


def test_an_unknown_name_lists_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown param 'cuont' \(allowed: count, rate, "):
        make_params(Params, {"cuont": 1})


def test_a_method_without_params_says_so() -> None:
    with pytest.raises(ValueError, match=r"row 'dense': unknown param 'x' \(allowed: none\)"):
        load_method("dense", {"x": 1})


@pytest.mark.parametrize("value", [-1e-9, float("nan")])
def test_what_is_not_at_least_the_least_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="param 'alpha' is .*, must be at least 0 or null"):
        load_method("hero", {"alpha": value})
    assert load_method("hero", {"alpha": 0.0}).params.alpha == 0


def test_given_params_stand_over_the_rows_own() -> None:
    assert load_method("random-skip-layers").params.unit == "block"
    assert load_method("random-skip-layers", {"unit": "ffn"}).params.unit == "ffn"


@pytest.mark.parametrize("row", discover().values(), ids=lambda row: row.name)
def test_defaults_read_from_the_source_are_those_of_the_class(row: Row) -> None:
    assert {**defaults(row), **row.params} == vars(load_method(row.name).params)
