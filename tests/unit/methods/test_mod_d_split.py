"""MoD-D under ``match: split``: the capacity of prompts, the level of answers, who should win."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from methods import load_method
from methods.base import Request
from methods.core.data import Document
from methods.core.routing.calibration import weigh
from methods.core.training.method import Plan
from methods.mod_d import measure_levels
from methods.mod_d.competition import capacity_for, membership
from tests.toys.models import make_model, wrap
from tests.toys.routed import shake_variant
from tests.toys.texts import ids_of


def test_a_gate_is_taught_whether_its_token_won() -> None:
    """A mean over units, a weighted sum over positions."""
    soft = torch.tensor([[[0.5, 0.8], [0.25, 0.9]]])
    ran = torch.tensor([[[True, False], [False, True]]])
    first, second = (math.log(0.5) + math.log(0.75)) / 2, (math.log(0.2) + math.log(0.9)) / 2
    found = membership(soft, ran, torch.tensor([[1.0, 3.0]]))
    assert float(found) == pytest.approx(-first - 3 * second)


@pytest.mark.parametrize(("match", "competing"), [("pooled", 10), ("split", 6)])
def test_answer_tokens_take_no_part_in_the_capacity_of_prompts(
    match: Any, competing: int, tmp_path: Path
) -> None:
    dense, method = wrap(make_model()), load_method("mod-d")
    texts: Any = SimpleNamespace(
        probe=lambda: [Document(ids, 6, "", [(5, 9)]) for ids in ids_of([10] * 5)]
    )
    shares = method.shares(dense, 0.2)
    plan = Plan(0.2, Request(0.2, 1, tmp_path, match), shares, {})
    method.prepare(dense, texts, plan)
    expected = capacity_for(1 - 0.2 / float(shares.sum()), [competing] * 5, "strict")
    assert plan.structure["capacity"] == plan.decisions["capacity"] == expected


@torch.no_grad()
def test_levels_of_answers_are_exceeded_by_their_share_of_all_answer_tokens() -> None:
    model = shake_variant("mod-d-topk")
    router = model.model.router
    router.answer_share = 0.6
    spans = [(2, 4), (1, 6), (3, 9), (0, 5)]
    texts = [
        Document(ids, span[0], task, [span])
        for ids, span, task in zip(ids_of([5, 7, 9, 12]), spans, "aabb", strict=True)
    ]
    probe = weigh(texts, "answer")
    seen: list[Tensor] = []
    for made in router.routers:
        made.register_forward_hook(lambda _, __, out: seen.append(out.squeeze(-1)))
    levels = measure_levels(model, router, probe, split=True)
    ((_, weights, _),) = probe.batches(32)
    for values, level in zip(seen, levels, strict=True):
        falling, order = values.flatten().sort(descending=True)
        sums = weights.flatten()[order].double().cumsum(0)
        assert level.mean == falling[sums >= 0.6 * sums[-1]][0]
