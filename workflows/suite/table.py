"""The rows of a suite with their params, budgets and seeds; no torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from methods import Row
from workflows.records.record import PROTOCOLS, Protocol


@dataclass(frozen=True)
class Choice:
    """Params, and the budget and the protocol that they are for; None: for every one."""

    params: Mapping[str, Any]
    budget: float | None = None
    match: Protocol | None = None


# The first one that fits a job holds.
Choices = Sequence[Choice]


def choose(choices: Choices, budget: float | None, match: Protocol | None) -> Mapping[str, Any]:
    """The params of the first choice that fits a budget and a protocol; none if none fits."""
    for choice in choices:
        if choice.budget in (None, budget) and choice.match in (None, match):
            return choice.params
    return {}


@dataclass(frozen=True)
class SuiteRow:
    """A row of the suite; ``start`` and ``lender`` are names of others.

    ``layers`` are params: those of the suite, and those that the tune step chose.
    """

    name: str
    method: Row
    layers: Sequence[Choices]
    budgets: Sequence[float | None]
    seeds: Sequence[int]
    start: str | None = None
    lender: str | None = None

    def params(self, budget: float | None, match: Protocol | None) -> dict[str, Any]:
        """The params of a job; of ``layers``, the later over the earlier."""
        chosen: dict[str, Any] = {}
        for layer in self.layers:
            chosen |= choose(layer, budget, match)
        return chosen


def read_table(
    config: Mapping[str, Any], rows: Mapping[str, Row], root: Path
) -> dict[str, SuiteRow]:
    """Name -> row of the suite.

    Args:
        config: Complete.
        rows: Discovered rows by name.
        root: Checkout in which the file of tuned params is looked up.

    Raises:
        ValueError: A row, the file of tuned params or a seed is wrong; one sentence names it.
    """
    names = _row_names(config["rows"], rows)
    tuned = _tuned(config, root)
    base = _base_layers(config, rows, tuned)
    table: dict[str, SuiteRow] = {}
    for name in names:
        row = _find(rows, name, "rows")
        budgets = list(config["budgets"]) if row.budgeted else [None]
        table[name] = SuiteRow(name, row, base[name], budgets, _seeds(name, row, config))
    for name, spec in config["derive"].items():
        if name in rows:
            raise ValueError(f"suite config, derive.{name}: a row has this name already")
        table[name] = _derived(name, spec, config, rows, base, tuned)
    for name in config["row_seeds"]:
        if name not in table:  # an overlay may run fewer rows
            _find(rows, name, "row_seeds")
    for line in table.values():
        for other in filter(None, (line.start, line.lender)):
            _check_other(line, other, table, config)
    return table


def _row_names(choice: Any, rows: Mapping[str, Row]) -> list[str]:
    """The suite's key ``rows``: ``all``, ``{all_but: [...]}`` or a list."""
    if isinstance(choice, list):
        return choice
    excluded = [] if choice == "all" else choice["all_but"]
    for name in excluded:
        _find(rows, name, "rows.all_but")
    return [name for name in rows if name not in excluded]


def _seeds(name: str, row: Row, config: Mapping[str, Any]) -> list[int]:
    """The seeds of a row: its own or the suite's; only the first if the seed changes nothing."""
    seeds: list[int] = config["row_seeds"].get(name, config["seeds"])
    return seeds if row.stochastic else seeds[:1]


def seeds_at(
    config: Mapping[str, Any], budget: float | None, seeds: Sequence[int]
) -> Sequence[int]:
    """The seeds of a line that run at a budget: all, or the first few as ``budget_seeds`` says."""
    numbers = {float(key): number for key, number in config["budget_seeds"].items()}
    return seeds if budget is None else seeds[: numbers.get(budget)]


def _check_other(
    line: SuiteRow, other: str, table: Mapping[str, SuiteRow], config: Mapping[str, Any]
) -> None:
    """The line that another starts or borrows from must run, at its budgets and under its seeds."""
    where = f"suite config, derive.{line.name}"
    if other not in table:
        raise ValueError(f"{where}: '{other}' is not among the suite's rows")
    if table[other].lender is not None:
        raise ValueError(f"{where}: '{other}' has a lender itself")
    seeds = [seed for seed in line.seeds if seed not in table[other].seeds]
    if table[other].method.stochastic and seeds:
        raise ValueError(f"{where}: '{other}' does not run its seed {seeds[0]} (see row_seeds)")
    budgets = [budget for budget in line.budgets if budget not in table[other].budgets]
    if table[other].method.budgeted and budgets:
        raise ValueError(f"{where}: '{other}' does not run its budget {budgets[0]}")
    for budget in line.budgets if table[other].method.stochastic else []:
        own, others = (seeds_at(config, budget, one.seeds) for one in (line, table[other]))
        if seeds := [seed for seed in own if seed not in others]:
            raise ValueError(
                f"{where}: '{other}' does not run its seed {seeds[0]} at a budget of {budget} "
                "(see budget_seeds)"
            )


def _derived(
    name: str,
    spec: Mapping[str, Any],
    config: Mapping[str, Any],
    rows: Mapping[str, Row],
    base: Mapping[str, Sequence[Choices]],
    tuned: Mapping[str, Choices],
) -> SuiteRow:
    """A line derived from a row, or from a static row that a trained row starts from."""
    where = f"derive.{name}"
    for key in ("from", "then"):
        if spec.get(key) in config["derive"] and spec[key] not in rows:
            raise ValueError(
                f"suite config, {where}.{key}: '{spec[key]}' is a derived line itself; name the "
                "row that it comes from"
            )
    row = _find(rows, spec["from"], f"{where}.from")
    if not row.budgeted and spec.get("budgets", [None]) != [None]:
        raise ValueError(f"suite config, {where}.budgets: row '{row.name}' has no budget")
    budgets = spec.get("budgets", config["budgets"]) if row.budgeted else [None]
    first = None
    if "then" in spec:
        first, row = row.name, _find(rows, spec["then"], f"{where}.then")
        if rows[first].kind != "static" or not row.trained or row.budgeted:
            raise ValueError(
                f"suite config, {where}: 'from' must be a static row and 'then' a trained row "
                f"without a budget, not '{first}' and '{row.name}'"
            )
    if "lender" in spec and not row.borrows:
        borrowers = ", ".join(name for name, one in rows.items() if one.borrows)
        raise ValueError(
            f"suite config, {where}.lender: row '{row.name}' takes no rates of another (these do: "
            f"{borrowers})"
        )
    layers = [*base[row.name], tuned.get(name, []), [Choice(spec["params"])]]
    seeds = _seeds(name, row, config)
    return SuiteRow(name, row, layers, budgets, seeds, first, spec.get("lender"))


def _tuned(config: Mapping[str, Any], root: Path) -> dict[str, Choices]:
    """Line -> what the tune step chose for it."""
    if "tuned" not in config:
        return {}
    file = root / config["tuned"]
    if not file.is_file():
        raise ValueError(f"suite config, tuned: file {config['tuned']} does not exist")
    try:
        return read_choices(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, ValueError):
        raise ValueError(
            f"suite config, tuned: {config['tuned']} is no file of the tune step (under 'params', "
            "row -> a list of 'params', each with a 'budget' in (0, 1) and a 'match', pooled or "
            "split, if it is for one alone)"
        ) from None


def read_choices(content: Mapping[str, Any]) -> dict[str, Choices]:
    """Line -> choices, of the content of a file of the tune step.

    Raises:
        TypeError, AttributeError, LookupError, ValueError: It is none.
    """
    choices: dict[str, Choices] = {
        row: [Choice(**{**entry, "params": dict(entry["params"])}) for entry in entries]
        for row, entries in content["params"].items()
    }
    for choice in (choice for entries in choices.values() for choice in entries):
        if choice.match not in (None, *PROTOCOLS):
            raise ValueError(f"match is '{choice.match}'")
        if choice.budget is not None and not 0 < choice.budget < 1:
            raise ValueError(f"budget is {choice.budget}")
    return choices


def _base_layers(
    config: Mapping[str, Any], rows: Mapping[str, Row], tuned: Mapping[str, Choices]
) -> dict[str, list[Choices]]:
    """Row -> params a suite gives it: shared training params, then tuned ones, then its own."""
    for name in config["params"]:
        _find(rows, name, "params")
    return {
        name: [
            [Choice(config["training"] if row.trained else {})],
            tuned.get(name, []),
            [Choice(config["params"].get(name, {}))],
        ]
        for name, row in rows.items()
    }


def _find(rows: Mapping[str, Row], name: str, key: str) -> Row:
    if name not in rows:
        raise ValueError(f"suite config, {key}: unknown row '{name}' (rows: {', '.join(rows)})")
    return rows[name]
