"""D-LLM under a budget: what its reserved tokens leave to skip."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from methods import d_llm, load_method
from methods.base import Request
from methods.core.data import Document
from methods.core.training.method import Plan
from tests.toys.models import make_model, wrap


def test_a_budget_is_met_by_the_tokens_that_are_not_reserved(tmp_path: Path) -> None:
    dense, method = wrap(make_model()), load_method("d-llm", {"reserved": 4})
    texts: Any = SimpleNamespace(training=lambda: [Document(list(range(8)), 1)] * 3)
    shares = method.shares(dense, 0.25)
    few, many = (part * float(shares.sum()) for part in (0.4, 0.6))
    plans = [Plan(budget, Request(budget, 1, tmp_path), shares, {}) for budget in (few, many)]
    method.prepare(dense, texts, plans[0])
    # Of seven tokens with a next one, three are not reserved.
    omega = 1 - few / (3 / 7) / (float(shares.mean()) * 6)
    assert plans[0].decisions["omega"] == {"pooled": pytest.approx(omega, rel=1e-5)}
    with pytest.raises(ValueError, match=f"a budget of {many:.1%} is more than pooled"):
        method.prepare(dense, texts, plans[1])


def test_tokens_that_the_first_documents_lack_are_found_in_later_ones() -> None:
    plain, asked = (Document(list(range(8)), 4, answers=[(first, 8)]) for first in (0, 4))
    share = d_llm.reserved_share([plain] * 3 + [asked], 2, "prompt", sample=3)
    assert share == d_llm.reserved_share([asked], 2, "prompt") == 0.5
