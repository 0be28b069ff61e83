"""Meeting a budget: the penalty's weight in training, the threshold behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from methods import load_method
from methods.base import Request
from methods.core.data import Document
from methods.core.model.backbone import count
from methods.core.routing import calibration
from methods.core.routing.calibration import (
    calibrate_threshold,
    next_logit,
    skip_rates,
    weigh,
)
from methods.core.routing.routed import route
from methods.core.routing.router import Context, Gate, Router, Tokens, ffn_units
from methods.core.routing.steering import (
    SHARE,
    STEADY_SHARE,
    Controller,
    FixedWeight,
    Target,
    unit_shares,
)
from methods.core.training.method import Plan
from tests.toys.models import make_model
from tests.toys.texts import documents
from tests.toys.training import ByNumber


def test_steering_moves_alpha_towards_the_target() -> None:
    for skip, sign in ((0.0, 1), (0.5, -1)):
        steering = Controller(Target(0.25, ramp=0.1), 0.0)
        for _ in range(600):
            steering.observe(skip, skip, 1.0)
        assert steering.alpha == pytest.approx(steering.limits[1 if sign > 0 else 0])


def test_steering_by_hand() -> None:
    steering = Controller(Target(0.2), 0.01, integral=0.001, proportional=0.02)
    steering.observe(0.04, 0.06, 0.0)
    # The first rate of the gates, 0.06, is where the ramp starts: no error yet.
    assert steering.alpha == 0.01
    steering.observe(0.3, 0.22, 0.25)
    # Half way both rates count alike: smoothed 0.06 + 0.3 * (0.26 - 0.06), target 0.13.
    error = 0.13 - 0.12
    assert steering.alpha == pytest.approx(0.01 + 0.001 * error + 0.02 * error)
    copy = Controller(Target(0.2), 0.0, integral=0.001, proportional=0.02)
    copy.restore(steering.state())
    for each in (steering, copy):
        # Behind the ramp decisions alone count.
        each.observe(0.1, 0.7 if each is copy else 0.3, 0.6)
    assert copy.alpha == steering.alpha


def test_a_gain_scales_alpha_and_its_limits() -> None:
    one, other = Controller(Target(0.2), 0.0), Controller(Target(0.2), 0.0, gain=8.0)
    alphas = list[float]()
    for step in range(800):
        skip = 0.0 if step < 400 else 0.4
        for each in (one, other):
            each.observe(skip, skip, min(1.0, step / 400))
        alphas.append(one.alpha)
        assert other.alpha == pytest.approx(8 * one.alpha)
    assert (min(alphas), max(alphas)) == one.limits


def test_a_noisy_rate_does_not_go_into_the_target() -> None:
    rates = [0.2, 0.3] * 200
    pooled, few = Target(0.25), Target(0.25, share=STEADY_SHARE)
    for rate in rates:
        for target in (pooled, few):
            target.observe(rate, rate, 1.0)
    # Both controllers see the same rate; inference is compared with another one.
    assert few.rate == pooled.rate == pooled.mean
    assert pooled.rate == pytest.approx(0.25 + 0.05 * 0.3 / 1.7)
    assert few.mean == pytest.approx(0.25 + 0.05 * 0.03 / 1.97, abs=1e-6)
    copy = Target(0.25, share=STEADY_SHARE)
    copy.restore(few.state())
    for target in (few, copy):
        target.observe(0.1, 0.1, 1.0)
        target.correct(0.25)
    assert copy == few
    assert few.value == pytest.approx(few.mean)


@pytest.mark.parametrize(("match", "share"), [("pooled", SHARE), ("split", STEADY_SHARE)])
def test_a_kind_with_few_positions_is_compared_over_more_updates(match: Any, share: float) -> None:
    plan = Plan(0.25, Request(0.25, 1, Path(), match), torch.ones(1), {})
    assert load_method("hero").target(plan) == Target(0.25, share=share)


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.9, 1.0)])
def test_the_floor_of_alpha_falls_along_the_ramp(progress: float, share: float) -> None:
    steering = Controller(Target(0.25), 1e-3, first=0.0)
    for _ in range(600):
        steering.observe(0.5, 0.5, progress)
    assert steering.alpha == pytest.approx(share * steering.limits[0])


def test_a_fixed_alpha_stays() -> None:
    for weight in (FixedWeight(1e-3), FixedWeight(1e-3, Target(0.2))):
        for step in range(9):
            weight.observe(0.9, 0.9, step / 9)
        assert weight.alpha == 1e-3


@pytest.mark.parametrize("budget", [0.1, 0.25, 0.4])
@pytest.mark.parametrize("speed", [0.02, 0.05, 0.2])
def test_steering_brings_gates_that_drift_open_to_the_budget(budget: float, speed: float) -> None:
    # Gates of different worth: the loss opens each, the penalty closes all, and an optimizer that
    # normalises gradients moves the logits at a speed of its own, into saturation if nothing stops
    # them. A gate at exactly one gets no gradient.
    worth = torch.linspace(0.2, 2, 40, dtype=torch.float64) * 1e-3
    steering = Controller(Target(budget), 0.0)
    logits, skips = torch.full((40,), 2.0, dtype=torch.float64), list[float]()
    for update in range(2000):
        gates = torch.sigmoid(logits.float()).double()
        skips.append(0.5 * float((gates < 0.5).double().mean()))
        steering.observe(skips[-1], 0.5 * float(1 - gates.mean()), update / 2000)
        push = (worth - steering.alpha) * gates * (1 - gates)
        logits = logits + speed * push / (push.abs() + 1e-6)
    assert sum(skips[-200:]) / 200 == pytest.approx(budget, abs=0.015)
    assert max(skips) < budget + 0.12


class ByHash(Router):
    """A gate per token and unit, uniform in (0, 1)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.units = ffn_units(model, [2, 3, 4, 5])
        self.threshold = 0.5

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tensor:
        return tokens.ids * 97 + tokens.positions * 31

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Tensor,
        at: Context,
    ) -> tuple[Gate, Tensor]:
        gate = ((state * 7919 + index * 104_729) % 9973) / 9973
        return Gate(gate), state


def test_skip_rates_count_real_tokens() -> None:
    model = make_model()
    router = ByNumber(model)
    route(model, router)
    texts = [Document([1, 2, 4, 4, 4], 0), Document([1], 0)]
    shares = torch.tensor([0.1, 0.2], dtype=torch.float64)
    # 1 skips 0.3, 2 skips 0.2, 4 nothing; pads hold id 0, which would skip 0.2.
    for batch_size in (1, 2):
        found = skip_rates(model, weigh(texts, "pooled"), batch_size) @ shares
        assert float(found) == pytest.approx((0.3 + 0.2 + 0.3) / 6)


def test_skip_rates_of_answer_tokens_count_every_task_the_same() -> None:
    model = make_model()
    route(model, ByNumber(model))
    texts = [
        Document([4, 4, 1, 2, 4], 3, "a", [(2, 5)]),
        Document([1, 4, 4], 1, "b", [(0, 1)]),
        Document([1, 4], 2, "c", []),
    ]
    shares = torch.tensor([0.1, 0.2], dtype=torch.float64)
    for batch_size in (1, 3):
        found = skip_rates(model, weigh(texts, "answer", "prompt"), batch_size) @ shares
        # Prompts: 4 and 4 before the first answer; the third text throughout.
        answers, prompt = ((0.3 + 0.2 + 0.0) / 3 + 0.3) / 2, (0.0 + 0.0 + 0.3 + 0.0) / 4
        assert found.tolist() == pytest.approx([answers, prompt])


@pytest.mark.parametrize("budget", [0.05, 0.13, 0.24])
def test_calibration_meets_the_budget(budget: float) -> None:
    model = make_model()
    router = ByHash(model)
    route(model, router)
    texts = documents(120, longest=30)
    shares = unit_shares(router.units, count(make_model()))
    assert float(shares.sum()) > budget
    probe = weigh(texts, "pooled")
    trace, rates = calibrate_threshold(model, router, probe, shares, budget)
    torch.testing.assert_close(rates, skip_rates(model, probe)[0], rtol=0, atol=0)
    realised = float(rates @ shares)
    assert realised == pytest.approx(budget, abs=2e-3)
    assert trace[0]["threshold"] == 0.5
    assert {"threshold": router.threshold, "skip": realised} in trace
    assert len(trace) <= 8


def test_calibration_keeps_the_best_of_its_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    skips = iter([0.10, 0.24, *[0.40] * 8])
    found = [torch.tensor([[skip]], dtype=torch.float64) for skip in skips]
    monkeypatch.setattr(calibration, "skip_rates", lambda *_: found.pop(0))
    router, share = ByHash(make_model()), torch.ones(1, dtype=torch.float64)
    nothing: Any = None
    trace, rates = calibrate_threshold(nothing, router, nothing, share, 0.25)
    assert (len(trace), router.threshold, float(rates)) == (10, trace[1]["threshold"], 0.24)


def test_calibration_leaves_a_threshold_that_fits() -> None:
    model = make_model()
    router = ByHash(model)
    route(model, router)
    probe = weigh(documents(20), "pooled")
    shares = torch.full((4,), 0.1, dtype=torch.float64)
    budget = float(skip_rates(model, probe)[0] @ shares) + 5e-4
    assert len(calibrate_threshold(model, router, probe, shares, budget)[0]) == 1
    assert router.threshold == 0.5


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        ([(0.0, -0.02)], 1.0),
        ([(0.0, 0.02)], -1.0),
        ([(0.0, -0.04), (1.0, -0.02)], 2.0),
        ([(0.0, -0.04), (1.0, -0.039)], 3.0),
        ([(0.0, -0.04), (1.0, -0.05)], 2.0),
        ([(0.0, -0.03), (1.0, 0.01)], 0.75),
        ([(0.0, -0.001), (1.0, 0.4)], 0.1),
        ([(0.0, -0.03), (1.0, 0.01), (0.75, -0.01)], 0.875),
    ],
)
def test_the_next_threshold(tries: list[tuple[float, float]], expected: float) -> None:
    assert next_logit(tries) == pytest.approx(expected)


def test_documents_without_a_token_have_no_weight() -> None:
    texts = [Document([], 0), Document([1, 2], 1), Document([], 0)]
    assert weigh(texts, "pooled").documents == [texts[1]]
