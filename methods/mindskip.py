"""MindSkip: one vector per layer decides whether attention, FFN or the whole layer runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.api import (
    Backbone,
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
    ffn_units,
    generator,
    layers,
    router_of,
    thresholded,
)

UNITS: Mapping[str, Callable[[nn.Module, Sequence[int]], list[Unit]]] = {
    "attention": attention_units,
    "mlp": ffn_units,
    "block": block_units,
}
# What a unit of this penalty's weight moves, against HeRo's, of a layer: its slope is 1, HeRo's is
# twice the number of layers that run.
STEERED = 8.0


class MindSkip(RoutedMethod):
    """Router tuning: routers alone are trained, a vector per layer, on the layer's normed input.

    Formula: z = LN1(h), s = sigmoid(v . z), execute m = 1[s >= 0.5], a tie executes, with the
    gradient of s; by target:
        attention: x = h + m Attention(z),  FFN as usual
        mlp:       out = x + m FFN(LN2(x)),  m from z
        block:     out = h + m (layer(h) - h)
        loss = LM + gradient_scale * sum over routed layers of the mean of m
    Nothing scales a branch that runs, nothing runs in place of one that does not. Keys and values
    are made for every token.

    Args of ``Params`` (besides those of ``TrainingParams``):
        target: ``"attention"`` as named, ``"mlp"`` or ``"block"``. Attention holds 13 % of
            Llama-3.1-8B, so that budgets above need another target.
        level: ``"token"``, or ``"sequence"`` as the authors' default: z is averaged over the
            tokens of a document. That is not causal: an answer helps to decide its prompt, and a
            cached step sees its own token alone.
        candidates: ``"auto"``: the latter half of the layers up to 30 %, the last three quarters
            up to 45 %, else all; or 0-based layers.
        gradient_scale: Of the penalty; None: steered to the budget. The shipped script has 0.
        target_capacity: Mean of m below which a layer's penalty is silent; None: never.
        initial: Of v: ``"zero"``, where the tie executes everything, or ``"normal"`` (0.02).
    Source: He et al., Router-Tuning, arXiv 2410.13184, and both states of its code.
    Differs from upstream: skipped branches send a gradient to their router, as in the later code;
        the mean of a sequence leaves out pads and ends with its document, nothing stays on modules
        between calls; the shared schedule in place of 15 updates at 1e-5; with a budget the weight
        of the penalty is steered and the threshold calibrated on the validation split, under
        ``match: split`` for prompts and answer tokens apart; the last layer may be routed,
        which the authors leave out; ``prompt_weight`` is 1, where they train on answers alone.
        Trained are D numbers per layer, far fewer than in any other row.
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
        candidates: Literal["auto"] | list[int] = "auto"
        gradient_scale: float | None = None
        target_capacity: float | None = None
        initial: Literal["zero", "normal"] = "zero"

        def __post_init__(self) -> None:
            """Check ranges."""
            super().__post_init__()
            if self.target_capacity is not None and not 0 < self.target_capacity < 1:
                raise ValueError(
                    f"param 'target_capacity' is {self.target_capacity}, must be between 0 and 1"
                )
            if self.target_capacity is not None and self.gradient_scale is None:
                raise ValueError("param 'target_capacity' needs param 'gradient_scale'")

    knob = "gradient_scale"

    @property
    def parts(self) -> str:
        """Attentions, FFNs or layers."""
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
        return Controller(target, 0.0, unit=STEERED)

    def penalty(self, kind: str, target: Target | None, plan: Plan) -> Penalty:
        """Of the mean gates."""
        capacity = self.params.target_capacity
        return lambda gates: mean_use(gates.soft, gates.counted, capacity)

    def train(self, model: nn.Module, data: Data, plan: Plan) -> None:
        """Note how long the vectors have become."""
        super().train(model, data, plan)
        router = router_of(model)
        assert isinstance(router, VectorRouter)
        plan.decisions["router_norms"] = [float(v.detach().norm()) for v in router.parameters()]

    def batchable(self) -> bool:
        """Pads of a batch would enter the mean of a sequence: lm-eval masks none."""
        return self.params.level == "token"

    def authors_skip(self, rates: Rates) -> float:
        """Skipped targets over all layers."""
        return sum(1 - ran for ran in rates.executed) / rates.ledger.dense_layers


class VectorRouter(Router):
    """A vector of its own for every routed layer.

    Args:
        units: U units.
        width: D.
        params: Of the method.
        norms: The input norms of the units' layers; a tuple, so that they stay the backbone's.
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
        """Which document each token belongs to (B, T), pads to none (0); None by token."""
        if not self.averages:
            return None
        starts = (tokens.positions == 0) & tokens.valid
        # A cached step starts no document; its token is one of its own.
        return torch.where(tokens.valid, starts.cumsum(dim=1).clamp(min=1), 0)

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Decide from the layer's normed input, in float32."""
        with torch.autocast(block_input.device.type, enabled=False):
            normed = self.norms[index](block_input).float()
            logit = self.vectors[index](normed).squeeze(-1)
            if state is not None:
                logit = mean_by(state, logit)
            execute = thresholded(logit, self.threshold)
            if at.generator is None:
                return Gate(execute=execute), state
            return Gate(torch.sigmoid(logit), "straight-through", execute), state


def mean_by(groups: Tensor, values: Tensor) -> Tensor:
    """Each value's mean over its group, (B, T); the mean of products is the product of the mean.

    Args:
        groups: Number of the group (B, T), within a row.
        values: (B, T).
    """
    size = int(groups.max()) + 1
    sums = values.new_zeros(len(values), size).scatter_add(1, groups, values)
    counts = values.new_zeros(len(values), size).scatter_add(1, groups, torch.ones_like(values))
    return (sums / counts.clamp(min=1)).gather(1, groups)


def mean_use(soft: Tensor, counted: Tensor, capacity: float | None) -> Tensor:
    """Sum over routed layers of the mean of m over counted positions, times their number.

    Args:
        soft: Gates (B, U, T), 0 or 1 with a soft gradient.
        counted: Positions that predict a token (B, T).
        capacity: What a layer's mean must exceed to count; None: nothing.
    """
    ran = (soft * counted[:, None]).sum(dim=(0, 2))
    return (ran if capacity is None else torch.relu(ran - capacity * counted.sum())).sum()
