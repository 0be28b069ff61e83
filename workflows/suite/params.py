"""Params of a run with its method's defaults, read from the syntax tree: no torch is imported."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from methods import ROOT, Row
from workflows.suite.job import Job

SHARED = "TrainingParams"
SHARED_FILE = ROOT / "core" / "training" / "params.py"


def params_of(job: Job) -> dict[str, Any]:
    """Defaults of the method, then the row's own params, then those of the suite."""
    return {**defaults(job.method), **job.method.params, **job.params}


def defaults(row: Row) -> dict[str, Any]:
    """Defaults of ``Params`` of the row's method, those that all trained rows share among them."""
    return _defaults_in(row.path / "__init__.py" if row.path.is_dir() else row.path, "Params")


def training_defaults() -> dict[str, Any]:
    """Defaults that every trained row shares."""
    return _defaults_in(SHARED_FILE, SHARED)


@cache
def _defaults_in(source: Path, name: str) -> dict[str, Any]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            shares = any(ast.unparse(base) == SHARED for base in node.bases)
            return {**(training_defaults() if shares else {}), **_literals(node)}
    return {}


def _literals(node: ast.ClassDef) -> dict[str, Any]:
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and part.value]
    return {ast.unparse(f.target): ast.literal_eval(f.value) for f in fields if f.value}
