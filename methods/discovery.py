"""Finds methods by reading their files, not by importing them: a job list then needs no torch."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from methods.order import ORDER

if TYPE_CHECKING:
    from methods.base import Method

ROOT = Path(__file__).resolve().parent
NOT_METHODS = {"__init__", "api", "base", "core", "discovery", "kernels", "order", "registration"}
# A method's class derives from one of these; methods.api exports them.
BASES = {"Method", "RoutedMethod"}
KINDS = ("reference", "static", "dynamic")
TEXTS = ("title", "source", "kind")
LITERALS = (*TEXTS, "trained", "stochastic", "budgeted", "causal")
# Literals that a class may leave out.
OPTIONAL = ("rows", "borrows")
# Of a row's name, which becomes a folder.
NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Row:
    """One row of the table: its method's literals and its params.

    ``module`` is the import path of the method's file, ``path`` the file or folder itself.
    """

    name: str
    module: str
    path: Path
    title: str
    source: str
    kind: str
    trained: bool
    stochastic: bool
    budgeted: bool
    causal: bool
    borrows: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)

    def title_of(self, params: Mapping[str, Any]) -> str:
        """The title with the values of params.

        Raises:
            ValueError: It names what is no param, or is no format.
        """
        try:
            return self.title.format(**params)
        except (LookupError, ValueError, AttributeError) as error:
            raise ValueError(
                f"row '{self.name}': its title is {self.title!r}, whose braces must hold params "
                f"({', '.join(params)}): {error}"
            ) from error

    def is_matched(self, budget: float | None) -> bool:
        """Whether the protocol (``match``) changes its run; else one run serves all protocols."""
        return self.kind == "dynamic" and self.budgeted and budget is not None


def discover(root: Path = ROOT) -> dict[str, Row]:
    """Every row of every method file below ``root``, in the table's order.

    Raises:
        ValueError: A method file lacks a literal, cannot be parsed, or repeats a row's name.
    """
    rows: dict[str, Row] = {}
    for path in sorted(root.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        name = path.stem
        if name in NOT_METHODS or name.startswith((".", "__")):
            continue
        if source.suffix != ".py" or not source.is_file():
            continue
        try:
            text = source.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"method file {path.name} is not in UTF-8: {error}") from error
        for row in _read_rows(text, f"{root.name}.{name}", path):
            if row.name in rows:
                where = rows[row.name].path.name
                raise ValueError(f"row '{row.name}' is defined in {where} and in {path.name}")
            rows[row.name] = row
    order = {name: position for position, name in enumerate(ORDER)}
    return dict(sorted(rows.items(), key=lambda item: (order.get(item[0], len(ORDER)), item[0])))


@lru_cache(maxsize=256)
def _read_rows(text: str, module: str, path: Path) -> tuple[Row, ...]:
    """The rows of one method file, read from the syntax tree of its text."""
    try:
        tree = ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise ValueError(f"method file {path.name} is not valid Python: {error}") from error
    for node in tree.body:
        bases = [ast.unparse(base) for base in getattr(node, "bases", [])]
        if isinstance(node, ast.ClassDef) and BASES & {base.split(".")[-1] for base in bases}:
            break
    else:
        raise ValueError(
            f"method file {path.name} defines no class that derives from Method or RoutedMethod"
        )
    literals = {}
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target = (
                statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            )
            name = ast.unparse(target)
            if name in (*LITERALS, *OPTIONAL):
                literals[name] = _literal(statement.value, name, path)
    missing = [name for name in LITERALS if name not in literals]
    if missing:
        raise ValueError(f"method file {path.name} lacks the literals: {', '.join(missing)}")
    if literals["kind"] not in KINDS:
        raise ValueError(
            f"method file {path.name}: kind is {literals['kind']!r}, must be {', '.join(KINDS)}"
        )
    for name, value in literals.items():
        kind = dict if name == "rows" else str if name in TEXTS else bool
        if not isinstance(value, kind):
            raise ValueError(
                f"method file {path.name}: {name} is {value!r}, must be a {kind.__name__}"
            )
    params_of = literals.pop("rows", None) or {path.stem.replace("_", "-"): {}}
    for name, params in params_of.items():
        if not isinstance(name, str) or not NAME.fullmatch(name) or not isinstance(params, dict):
            raise ValueError(
                f"method file {path.name}: rows has {name!r}: {params!r}, must be a name of "
                "letters, digits, '.', '_' and '-', and a dict of params"
            )
    return tuple(
        Row(name=name, module=module, path=path, params=params, **literals)
        for name, params in params_of.items()
    )


def _literal(value: ast.expr, name: str, path: Path) -> Any:
    try:
        return ast.literal_eval(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"method file {path.name}: '{name}' is not a literal") from error


def find_row(name: str) -> Row:
    """The row called ``name``.

    Raises:
        ValueError: There is no such row; the message lists all rows.
    """
    rows = discover()
    if name not in rows:
        raise ValueError(f"unknown row '{name}' (rows: {', '.join(rows)})")
    return rows[name]


def load_method(name: str, params: Mapping[str, Any] | None = None) -> Method:
    """The method of row ``name``; ``params`` replace those of the row.

    Raises:
        ValueError: There is no such row or param, or a value does not fit.
    """
    from methods.base import Method

    row = find_row(name)
    module = importlib.import_module(row.module)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value is not Method
    ]
    own = [cls for cls in classes if cls.__module__.startswith(row.module)]
    try:
        method = own[0]({**row.params, **(params or {})})
    except ValueError as error:
        raise ValueError(f"row '{name}': {error}") from error
    row.title_of(vars(method.params))
    return method
