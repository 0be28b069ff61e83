from __future__ import annotations

from itertools import product

import pytest

from methods import load_method
from methods.core.budget import (
    check_budget,
    layers_shortfall,
    layers_to_remove,
    nearest,
    out_of_reach,
    routed_layers,
    unremovable,
)
from methods.core.model.backbone import count, layers
from methods.core.model.ledger import Ledger, Tally
from methods.core.model.shapes import candidate_layers
from tests.toys import static
from tests.toys.models import make_model, wrap
from tests.toys.texts import ids_of


@pytest.mark.parametrize("budget", [0.25, "0.25", 0.001, 0.999])
def test_budgets_between_zero_and_one_pass(budget: object) -> None:
    assert check_budget(budget) == float(budget)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0, 1, 1.5, -0.1, "abc", "", None, True, "nan", "inf", [0.2]])
def test_other_budgets_are_refused_by_name(budget: object) -> None:
    with pytest.raises(ValueError, match="budget .* must be a number between 0 and 1"):
        check_budget(budget)


def test_nearest_setting_and_its_trace() -> None:
    setting, trace = nearest(range(5), lambda n: n * 0.1, 0.26)
    assert setting == 3
    assert [row["setting"] for row in trace] == [0, 1, 2, 3, 4]
    assert [round(row["skip"], 3) for row in trace] == [0, 0.1, 0.2, 0.3, 0.4]


def test_of_two_settings_at_equal_distance_the_earlier_wins() -> None:
    assert nearest([1, 2], lambda n: n * 0.25, 0.375)[0] == 1
    assert nearest([2, 1], lambda n: n * 0.25, 0.375)[0] == 2


def test_a_setting_may_be_a_share() -> None:
    assert nearest([0.1, 0.2, 0.3], lambda share: share, 0.21)[0] == 0.2


@pytest.mark.parametrize(("settings", "most"), [([0, 1, 2], 0.25), ([2], 0.2)])
def test_a_search_may_end_half_a_step_short(settings: list[int], most: float) -> None:
    """Of a single setting there is no step."""

    def reason(budget: float) -> str | None:
        return out_of_reach("heads", settings, lambda setting: setting * 0.1, budget)

    assert reason(most - 0.01) is None
    missed = "its heads hold 20.0% of the parameters, less than the budget"
    assert reason(most + 0.01) == missed


def test_whole_layers_may_end_half_a_layer_short() -> None:
    """Of six layers one stays."""
    backbone = wrap(make_model())
    layer = count(layers(backbone.model)[0]) / backbone.parameters
    assert layers_shortfall(backbone, 5.4 * layer) is None
    missed = f"its layers but one hold {5 * layer:.1%} of the parameters, less than the budget"
    assert layers_shortfall(backbone, 5.6 * layer) == missed


def test_a_pinned_number_of_layers_wins_over_the_budget() -> None:
    assert layers_to_remove(wrap(make_model()), 0.15, 4) == (4, [])


@pytest.mark.parametrize("number", [6, 7, -1])
def test_an_impossible_number_of_layers_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"param 'layers' is {number}, must be from 0 to 5"):
        layers_to_remove(wrap(make_model()), None, number)


def test_without_a_number_a_budget_is_asked_for() -> None:
    backbone, asked = wrap(make_model()), "neither a budget nor param 'layers' says how many layers"
    with pytest.raises(ValueError, match=asked):
        layers_to_remove(backbone, None, None)
    assert str(unremovable(backbone, None, None)).startswith(asked)


BUDGETS = [(0.05, 0), (0.15, 1), (0.25, 2), (0.40, 3), (0.70, 5)]


@pytest.mark.parametrize(
    ("row", "budget", "number"),
    [(row, *pair) for row, pair in product(("shortgpt", "shortened-ppl", "replaceme"), BUDGETS)],
)
def test_a_budget_takes_the_nearest_number_of_layers(row: str, budget: float, number: int) -> None:
    # A layer holds 9,280 of 59,808 parameters: 15.5 %.
    fitted = static.fit(row, make_model(), ids_of([8] * 10), budget)
    assert len(fitted.decisions["removed_layers"]) == number
    assert [each["setting"] for each in fitted.decisions["budget_search"]] == list(range(6))
    tally = Tally(Ledger.of(fitted.model, 59808, 6))
    tally.add(None, 7)
    assert load_method(row).authors_skip(tally.rates()) == pytest.approx(number / 6)
    assert tally.rates().skip == pytest.approx(number * 9280 / 59808)


def test_candidates_are_the_latter_half_or_the_last_three_quarters() -> None:
    assert candidate_layers(12, 0.25) == [6, 7, 8, 9, 10, 11]
    assert candidate_layers(12, 0.30) == [6, 7, 8, 9, 10, 11]
    assert candidate_layers(12, 0.40) == list(range(3, 12))
    assert candidate_layers(12, 0.50) == list(range(12))


def test_sets_of_layers_have_names() -> None:
    assert routed_layers("later-half", 30, 0.4) == list(range(15, 30))
    assert routed_layers("later-three-quarters", 30, 0.25) == list(range(7, 30))
    assert routed_layers("all-but-first", 30, None) == list(range(1, 30))
    names = "'auto', 'later-half', 'later-three-quarters', 'all-but-first' or list"
    with pytest.raises(ValueError, match=f"'candidates' is 'half', expected one of {names}"):
        load_method("hero", {"candidates": "half"})
