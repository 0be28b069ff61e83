"""Budgets: checks, and the search for the setting of a param that comes nearest to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, get_args

from torch import Tensor

from methods.core.model.backbone import Backbone, count, layers
from methods.core.model.shapes import candidate_layers

# Sets of layers that a row may be given by name, the smallest first.
LayerSet = Literal["later-half", "later-three-quarters", "all-but-first"]
LAYER_SETS: tuple[LayerSet, ...] = get_args(LayerSet)
# Param ``candidates`` of a row: the paper's layers for a budget, a set by name, or 0-based layers.
Candidates = Literal["auto", LayerSet] | list[int]
# A value of the param that a search sets: a number of layers, a share.
Setting = TypeVar("Setting", int, float)


def check_budget(budget: object) -> float:
    """``budget`` as a float.

    Raises:
        ValueError: Not a number strictly between 0 and 1.
    """
    try:
        value = float(budget)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = float("nan")
    if isinstance(budget, bool) or not 0.0 < value < 1.0:
        raise ValueError(f"budget {budget!r} must be a number between 0 and 1, such as 0.25")
    return value


def shortfall(what: str, share: float, budget: float) -> str | None:
    """Why parts with this share of the parameters cannot meet a budget, or None."""
    if share < budget:
        return f"its {what} hold {share:.1%} of the parameters, less than the budget"
    return None


def out_of_reach(
    what: str, settings: Sequence[int], skip_of: Callable[[int], float], budget: float
) -> str | None:
    """Why no setting of a search (:func:`nearest`) comes near a budget, or None.

    Args:
        what: The parts that a setting removes, in the plural.
        settings: By ascending skip. The last one may be short of the budget by half of its step at
            most, as rounding is.
        skip_of: Skip rate of a setting.
        budget: Fraction to skip.
    """
    before, most = (skip_of(setting) for setting in (settings[-2:][0], settings[-1]))
    return shortfall(what, most, budget) if most + (most - before) / 2 < budget else None


def unmet(
    pinned: object, knob: str | None, what: str, shares: Tensor, budget: float | None
) -> str | None:
    """Why a row cannot meet a budget, or None. A row is not checked if a param pins its skip.

    Args:
        pinned: Value of that param; None: a budget decides.
        knob: Its name; None: there is no such param.
        what: The parts that can be skipped, in the plural.
        shares: Share of the dense parameters in each of them.
        budget: Fraction to skip.
    """
    if pinned is not None:
        return None
    if budget is None:
        return "no budget is given" if knob is None else f"neither a budget nor '{knob}' is given"
    return shortfall(what, float(shares.sum()), budget)


def nearest(
    settings: Sequence[Setting], skip_of: Callable[[Setting], float], budget: float
) -> tuple[Setting, list[dict[str, float]]]:
    """The setting whose skip rate is nearest to the budget.

    Args:
        settings: Values to try, at least one; at equal distance the earlier one wins.
        skip_of: Skip rate of a setting.
        budget: Fraction in (0, 1).

    Returns:
        The setting, and the trace of the search as JSON rows.
    """
    trace = [{"setting": setting, "skip": skip_of(setting)} for setting in settings]
    best = min(range(len(trace)), key=lambda n: abs(trace[n]["skip"] - budget))
    return settings[best], trace


def layers_to_remove(
    backbone: Backbone, budget: float | None, pinned: int | None, free: int | None = None
) -> tuple[int, list[dict[str, float]]]:
    """How many whole layers to remove, and the trace of the search (empty if pinned).

    Args:
        backbone: Dense model.
        budget: Fraction in (0, 1).
        pinned: Param ``layers``, which takes precedence over the budget.
        free: How many layers param ``protect`` lets go; None: the method protects none.

    Raises:
        ValueError: The pinned number is negative or leaves no layer, protected layers would go,
            or there is neither a number nor a budget.
    """
    total, trace = backbone.layer_count, list[dict[str, float]]()
    if pinned is None:
        if budget is None:
            raise ValueError("neither a budget nor param 'layers' says how many layers go")
        size = count(layers(backbone.model)[0])
        number, trace = nearest(range(total), lambda n: n * size / backbone.parameters, budget)
    elif 0 <= pinned < total:
        number = pinned
    else:
        raise ValueError(f"param 'layers' is {pinned}, must be from 0 to {total - 1}")
    if free is not None and number > free:
        asked = (
            f"param 'layers' is {number}" if pinned is not None else f"{number} layers should go"
        )
        raise ValueError(
            f"{asked}, must be at most {free}: 'protect' keeps {total - free} of {total} layers"
        )
    return number, trace


def unremovable(
    backbone: Backbone, budget: float | None, pinned: int | None, free: int | None = None
) -> str | None:
    """Why a budget cannot be met by removing ``free`` layers at most, or None.

    A pinned number is not checked. Without ``free`` all layers but one may go.
    """
    if pinned is not None:
        return None
    if budget is None:
        return "neither a budget nor param 'layers' says how many layers to delete"
    number, _ = layers_to_remove(backbone, budget, None)
    if free is not None and number > free:
        return f"the budget takes {number} layers, param 'protect' leaves {free} to delete"
    return layers_shortfall(backbone, budget)


def layers_shortfall(backbone: Backbone, budget: float) -> str | None:
    """Why no number of whole layers comes near a budget, or None."""
    size = count(layers(backbone.model)[0]) / backbone.parameters
    counts = range(backbone.layer_count)
    return out_of_reach("layers but one", counts, lambda number: number * size, budget)


def routed_layers(candidates: Candidates, layer_count: int, budget: float | None) -> list[int]:
    """The layers that param ``candidates`` stands for, ascending.

    Without a budget ``"auto"`` stands for the layers of a budget of 25 %.

    Raises:
        ValueError: The list is empty, or a layer does not exist.
    """
    if isinstance(candidates, list):
        return check_candidates(candidates, layer_count)
    if candidates == "auto":
        return candidate_layers(layer_count, 0.25 if budget is None else budget)
    first = {
        "later-half": layer_count // 2,
        "later-three-quarters": layer_count // 4,
        "all-but-first": 1,
    }[candidates]
    return list(range(first, layer_count))


def check_candidates(numbers: Sequence[int], layer_count: int) -> list[int]:
    """The layers in a list of param ``candidates``: distinct, ascending.

    Raises:
        ValueError: The list is empty, or a layer does not exist.
    """
    layers = sorted(set(numbers))
    if not layers or layers[0] < 0 or layers[-1] >= layer_count:
        raise ValueError(f"param 'candidates' is {layers}, layers go from 0 to {layer_count - 1}")
    return layers
