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
            shares = any(ast.unparse(base) == SHARED for base in node.bases)
            return {**(_defaults_in(SHARED_FILE, SHARED) if shares else {}), **_literals(node)}
    return {}


def _literals(node: ast.ClassDef) -> dict[str, Any]:
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and part.value]
    return {ast.unparse(f.target): ast.literal_eval(f.value) for f in fields if f.value}
