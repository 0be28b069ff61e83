"""FlexiDepth: each token runs or skips whole layers; a small adapter runs instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from methods.api import (
    Backbone,
    Candidates,
    Context,
    Gate,
    Penalty,
    Plan,
    Rates,
    RoutedMethod,
    SlimRouter,
    Target,
    TrainingParams,
    Unit,
    attention_norm,
    check_least,
    layers,
    module_units,
    squared_use,
)


class FlexiDepth(RoutedMethod):
    """A router per layer lets a token skip attention and FFN together; a slim FFN runs instead.

    Router and adapters are trained; the backbone stays frozen. Keys and values are always made.

    Formula: z = LN1(h), w = sigmoid(r(z)). The layer runs where w > 0.5, and a tie skips it:
        run:   x = h + Attention(z),  out = x + w FFN(LN2(x))
        skip:  out = h + (1 - w) P(LN2(h))
        loss = LM + alpha * mean over predicting positions of (sum over routed layers of w)^2
    r is a bottleneck router and P a SwiGLU of width F / 16 (``methods/core/routing/slim.py``). The
    comparison has no gradient: it flows through the factors w and 1 - w. Attention is not scaled.
    Without norms in front (OLMo 2, EXAONE 4) LN1 and LN2 change nothing.

    Args of ``Params`` (besides those of ``TrainingParams``):
        candidates: Layers to choose among: a list (0-based), a name (``"later-half"``,
            ``"later-three-quarters"``, ``"all-but-first"``), or ``"auto"``: the later half for
            budgets up to 30 %, the later three quarters up to 45 %, else all.
        router_width: Of the router's bottleneck; None: D / 16, at least 32.
        adapter_width: Of P; None: F / 16.
        alpha: Weight of the penalty, 1e-3 in the paper; None: steered to the budget.
        initial_bias: Added to the router's logit; 0 in the authors' code.
        norm_place: Whether the router's RMSNorm comes ``"before"`` tanh, as in the released
            checkpoint, or ``"after"`` it, as in the paper.
    Source: Luo et al., Adaptive Layer-Skipping in Pre-trained LLMs, arXiv 2503.23798, its training
        scripts and the names of its checkpoint.
    Differs from upstream: gates start at 0.88 and P at zero, because gates of one half run every
        FFN at half strength and skip at random. The factors are plainly w and 1 - w, as the
        released code computes them; the paper names SparseMixer. Router and comparison are in
        float32. The penalty leaves out pads and the last token of a document. With a budget,
        training steers alpha and the threshold is calibrated on the probe texts. Under
        ``match: split`` prompt tokens and answer tokens have an alpha each, and the threshold is
        calibrated on answer tokens. Of a skipped layer the keys, values and norms count as run.
        Data and schedule are those of every trained row.
    """

    title = "FlexiDepth"
    source = "arXiv 2503.23798"
    kind = "dynamic"
    trained = True
    stochastic = True
    budgeted = True
    causal = True
    knob = "alpha"

    @dataclass(frozen=True)
    class Params(TrainingParams):
        """See the class."""

        candidates: Candidates = "auto"
        router_width: int | None = None
        adapter_width: int | None = None
        alpha: float | None = None
        initial_bias: float = 2.0
        norm_place: Literal["before", "after"] = "before"

        def __post_init__(self) -> None:
            super().__post_init__()
            check_least(self, 1, "router_width", "adapter_width")
            check_least(self, 0, "alpha")

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """Attention and FFN of each layer, which share a decision."""
        return module_units(backbone.model, layers)

    def router(
        self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]
    ) -> FlexiDepthRouter:
        """A head and an adapter per layer."""
        norms = [attention_norm(layers(backbone.model)[unit.layer]) for unit in units[::2]]
        return FlexiDepthRouter(
            units, backbone.config, self.params, structure["seed"], tuple(norms)
        )

    def penalty(self, kind: str, target: Target | None, plan: Plan) -> Penalty:
        """The squared sum of gates; attention and FFN share one, which counts once."""
        return lambda gates: squared_use(gates.soft, gates.counted, units=2)

    def authors_skip(self, rates: Rates) -> float:
        """Layers that were skipped over all layers."""
        return sum(1 - ran for ran in rates.executed[::2]) / rates.ledger.dense_layers


class FlexiDepthRouter(SlimRouter):
    """Decides on attention and FFN of a layer together, from its normed input, in float32.

    Args:
        units, config, params, seed: As :class:`SlimRouter`.
        norms: The layers' own norms; in a tuple they do not become the router's parameters.
    """

    def __init__(
        self,
        units: list[Unit],
        config: PreTrainedConfig,
        params: FlexiDepth.Params,
        seed: int,
        norms: tuple[nn.Module, ...],
    ) -> None:
        super().__init__(units, config, params, seed, norm_place=params.norm_place)
        self.norms = norms

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Decide at the attention; w stays as the state, and the FFN takes the same decision."""
        block, second = divmod(index, 2)
        if not second:
            with torch.autocast(block_input.device.type, enabled=False):
                state = self.weight(block, self.norms[block](block_input).float())
        return Gate(state, "gate" if second else "none"), state

    def alternative(self, index: int) -> nn.Module | None:
        """The slim FFN of the layer, for its FFN unit."""
        return self.adapters[index // 2] if index % 2 else None
