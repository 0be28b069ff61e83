"""MindSkip: one vector per layer decides whether attention, FFN or the whole layer runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.api import (
    Backbone,
    Candidates,
    Context,
    Controller,
    Data,
    FixedWeight,
    Gate,
    Penalty,
    Plan,
    Rates,
    RoutedMethod,
    Router,
    Target,
    Tokens,
    TrainingParams,
    Unit,
    Weight,
    attention_norm,
    attention_units,
    block_units,
    decide_gates,
    ffn_units,
    generator,
    layers,
    router_of,
    sum_over_processes,
)

UNITS: Mapping[str, Callable[[nn.Module, Sequence[int]], list[Unit]]] = {
    "attention": attention_units,
    "mlp": ffn_units,
    "block": block_units,
}
# The controller is tuned to HeRo's penalty: its slope in a gate is twice the number of layers that
# run. The slope of this penalty is 1, so its weight moves in larger steps.
STEERED = 8.0


class MindSkip(RoutedMethod):
    """Router tuning: only routers are trained, one vector per layer, on the layer's normed input.

    Formula: z = LN1(h), s = sigmoid(v . z), m = 1[s >= 0.5] with the gradient of s; a tie runs. By
    target:
        attention: x = h + m Attention(z),  FFN as usual
        mlp:       out = x + m FFN(LN2(x)),  m from z
        block:     out = h + m (layer(h) - h)
        loss = LM + gradient_scale * sum over routed layers of the mean of m
    A unit that runs is not scaled, and nothing runs in place of a skipped unit. Keys and values are
    made for every token.

    Args of ``Params`` (besides those of ``TrainingParams``):
        target: What is skipped: ``"attention"``, as in the name of the method, ``"mlp"`` (the FFN)
            or ``"block"`` (the layer). Attention holds 13 % of Llama-3.1-8B; larger budgets need
            another target.
        level: ``"token"``; or ``"sequence"``, the authors' default: z is averaged over the tokens
            of a document. This is not causal: the answer takes part in the decision about its
            prompt, and a cached step sees only its own token.
        candidates: Layers to choose among: a list (0-based), a name (``"later-half"``,
            ``"later-three-quarters"``, ``"all-but-first"``), or ``"auto"``: the later half for
            budgets up to 30 %, the later three quarters up to 45 %, else all.
        gradient_scale: Of the penalty; None: steered to the budget. The shipped script has 0.
        target_capacity: A layer has no penalty while its mean of m is below this; None: always a
            penalty.
        initial: Initial values of v: ``"zero"``, so that by the tie everything runs, or
            ``"normal"`` with deviation 0.02.
    Source: He et al., Router-Tuning, arXiv 2410.13184, and both states of its code.
    Differs from upstream: a skipped unit gives its router a gradient, as in the later code. The
        mean over a sequence leaves out pads and other documents, and modules store nothing between
        calls. The schedule is that of every trained row, not 15 updates at 1e-5. With a budget,
        training steers the weight of the penalty and the threshold is calibrated on the probe
        texts. Under ``match: split`` prompt tokens and answer tokens have a weight each, and the
        threshold is calibrated on answer tokens. The last layer may be routed; the authors leave it
        out. ``prompt_weight`` is 1 (0.1 in the demo's suites); the authors train on
        answers only. Without a norm in front of attention, as in OLMo 2, z = h. It trains D numbers
        per layer, far fewer than any other row.
    """

    title = "MindSkip ({target})"
    source = "arXiv 2410.13184"
    kind = "dynamic"
    trained = True
    stochastic = True
    budgeted = True
    causal = True
    rows = {"mindskip": {"target": "attention"}, "mindskip-block": {"target": "block"}}

    @dataclass(frozen=True)
    class Params(TrainingParams):
        """See the class."""

        target: Literal["attention", "mlp", "block"] = "attention"
        level: Literal["token", "sequence"] = "token"
        candidates: Candidates = "auto"
        gradient_scale: float | None = None
        target_capacity: float | None = None
        initial: Literal["zero", "normal"] = "zero"

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.target_capacity is not None and not 0 < self.target_capacity < 1:
                raise ValueError(
                    f"param 'target_capacity' is {self.target_capacity}, must be between 0 and 1"
                )
            if self.target_capacity is not None and self.gradient_scale is None:
                raise ValueError("param 'target_capacity' needs param 'gradient_scale'")
            if self.target_capacity is not None and self.micro_tokens:
                raise ValueError(
                    "param 'target_capacity' is about all tokens of an update, which param "
                    "'micro_tokens' divides: set one of them to null, the other to 0"
                )

    knob = "gradient_scale"

    @property
    def parts(self) -> str:
        """What the routed parts are called in messages."""
        return f"{self.params.target} targets"

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """The target of each layer."""
        return UNITS[self.params.target](backbone.model, layers)

    def router(
        self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]
    ) -> VectorRouter:
        """A vector per layer."""
        norms = tuple(attention_norm(layers(backbone.model)[unit.layer]) for unit in units)
        width = int(backbone.config.hidden_size)
        return VectorRouter(units, width, self.params, norms, structure["seed"])

    def weight(self, target: Target | None) -> Weight:
        """Controlled from 0, or param ``gradient_scale``."""
        if target is None:
            return FixedWeight(self.params.gradient_scale)
        return Controller(target, 0.0, gain=STEERED)

    def penalty(self, kind: str, target: Target | None, plan: Plan) -> Penalty:
        """The mean gates, added up over layers."""
        capacity = self.params.target_capacity
        return lambda gates: mean_use(gates.soft, gates.counted, capacity)

    def train(self, model: nn.Module, data: Data, plan: Plan) -> None:
        """Train, then note how long the vectors have become."""
        super().train(model, data, plan)
        router = router_of(model)
        assert isinstance(router, VectorRouter)
        plan.decisions["router_norms"] = [float(v.detach().norm()) for v in router.parameters()]

    def batchable(self) -> bool:
        """Not by sequence: lm-eval masks no pads, so they would enter the mean."""
        return self.params.level == "token"

    def authors_skip(self, rates: Rates) -> float:
        """Units that were skipped over all layers."""
        return sum(1 - ran for ran in rates.executed) / rates.ledger.dense_layers


class VectorRouter(Router):
    """One vector per routed layer.

    Args:
        units: U units.
        width: D.
        params: Of the method.
        norms: The input norms of the layers; in a tuple they do not become the router's parameters.
        seed: Of the initial values.
    """

    def __init__(
        self,
        units: list[Unit],
        width: int,
        params: MindSkip.Params,
        norms: tuple[nn.Module, ...],
        seed: int,
    ) -> None:
        super().__init__()
        self.units, self.norms, self.threshold = units, norms, 0.5
        self.averages = params.level == "sequence"
        self.vectors = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in units)
        rng = generator(seed, "initial values")
        for vector in (v for v in self.vectors if isinstance(v, nn.Linear)):
            if vector.weight.is_meta:
                continue
            if params.initial == "normal":
                nn.init.normal_(vector.weight, std=0.02, generator=rng)
            else:
                nn.init.zeros_(vector.weight)

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tensor | None:
        """The number of each token's document (B, T), 0 for pads; None at level ``"token"``."""
        if not self.averages:
            return None
        starts = (tokens.positions == 0) & tokens.valid
        # A cached step starts no document: its token then counts as one.
        return torch.where(tokens.valid, starts.cumsum(dim=1).clamp(min=1), 0)

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Decide from the normed input of the layer, in float32."""
        with torch.autocast(block_input.device.type, enabled=False):
            normed = self.norms[index](block_input).float()
            logit = self.vectors[index](normed).squeeze(-1)
            if state is not None:
                logit = mean_by(state, logit)
            execute = decide_gates(logit, self.threshold)
            if at.generator is None:
                return Gate(execute=execute), state
            return Gate(torch.sigmoid(logit), "straight-through", execute), state


def mean_by(groups: Tensor, values: Tensor) -> Tensor:
    """The mean over each value's group (B, T).

    The mean of v . z over tokens is v . (mean of z), so averaging the logits is enough.

    Args:
        groups: Number of the group (B, T), within a row; from 0 to T.
        values: (B, T).
    """
    size = groups.shape[1] + 1
    sums = values.new_zeros(len(values), size).scatter_add(1, groups, values)
    counts = values.new_zeros(len(values), size).scatter_add(1, groups, torch.ones_like(values))
    return (sums / counts.clamp(min=1)).gather(1, groups)


def mean_use(soft: Tensor, weights: Tensor, capacity: float | None) -> Tensor:
    """Sum over routed layers of m at the positions that count.

    Args:
        soft: Gates (B, U, T), 0 or 1 with a soft gradient.
        weights: How much each position counts (B, T); 0: it predicts no token.
        capacity: A layer counts only what exceeds this share; None: everything.
    """
    use = (soft * weights[:, None]).sum(dim=(0, 2))
    if capacity is None:
        return use.sum()
    excess = use - capacity * weights.sum()
    total = excess.detach().clone()
    sum_over_processes(total)
    return (excess * (total > 0)).sum()
