"""Defaults of a method's params, read from the syntax tree: no torch is imported."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from methods import ROOT, Row

SHARED = "TrainingParams"
SHARED_FILE = ROOT / "core" / "training" / "params.py"


def defaults(row: Row) -> dict[str, Any]:
    """Defaults of ``Params`` of the row's method, with those that all trained rows share."""
    return _defaults_in(row.path / "__init__.py" if row.path.is_dir() else row.path, "Params")


@cache
def _defaults_in(source: Path, name: str) -> dict[str, Any]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
            if other := [base for base in bases if base not in (SHARED, "Params")]:
                raise ValueError(
                    f"method file {source.relative_to(ROOT)}: {name} derives from {other[0]}, must "
                    f"be from nothing or {SHARED}: its fields are read without an import"
                )
            own = _literals(node, source.relative_to(ROOT))
            return {**(_defaults_in(SHARED_FILE, SHARED) if SHARED in bases else {}), **own}
    return {}


def _literals(node: ast.ClassDef, source: Path) -> dict[str, Any]:
    values = {}
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and part.value is not None:
            name = ast.unparse(part.target)
            try:
                values[name] = ast.literal_eval(part.value)
            except ValueError as error:
                raise ValueError(
                    f"method file {source}: the default of param '{name}' is not a literal"
                ) from error
    return values
