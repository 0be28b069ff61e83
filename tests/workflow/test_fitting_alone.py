"""Fits, timings and backbones on a machine that has neither the harness nor Snakemake."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from tests import steps
from workflows.runtime import provenance

STEPS = ("fit", "cost", "data", "time", "tokens", "train_backbone", "tune")


def test_these_steps_import_neither() -> None:
    names = ", ".join(f"workflows.steps.{step}" for step in STEPS)
    found = "[m for m in ('lm_eval', 'snakemake', 'datasets') if m in sys.modules]"
    done = steps.python("-c", f"import sys, {names}; print({found})")
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_record_names_the_versions_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = provenance.version

    def version(package: str) -> str:
        if package == "lm_eval":
            raise PackageNotFoundError(package)
        return real(package)

    assert "lm_eval" in provenance.provenance([])["versions"]
    monkeypatch.setattr(provenance, "version", version)
    found = provenance.provenance([])["versions"]
    assert "lm_eval" not in found
    assert {"python", "torch", "transformers"} <= set(found)
