"""DiffSkip: a token skips the FFN by what attention has changed in its hidden states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from methods.api import (
    Backbone,
    Candidates,
    Context,
    Data,
    Document,
    Gate,
    Plan,
    Rates,
    RoutedMethod,
    SlimRouter,
    Sublayer,
    TrainingParams,
    Unit,
    batches,
    check_least,
    decoder,
    ffn_units,
    last_module,
    layers,
)

PARTS: tuple[Sublayer, ...] = ("attention", "ffn")


class DiffSkip(RoutedMethod):
    """A router reads what attention changed and lets a token skip the FFN; a slim FFN runs instead.

    Attention always runs, so the cache is complete. Router and adapters are trained; the backbone
    stays frozen.

    Formula: x = h + Attention(LN1(h)), delta = x - h, u = LN2(x), w = sigmoid(r(n(delta))). The FFN
    runs where w > 0.5, and a tie skips it:
        run: out = x + w FFN(u),   skip: out = x + (1 - w) P(u)
        loss = LM + alpha * mean over predicting positions of (sum over routed layers of w)^2
    n divides by the root mean square. Without a norm in front (OLMo 2, EXAONE 4) u = x. The router
    r and the slim FFN P are FlexiDepth's (``methods/core/routing/slim.py``).

    Args of ``Params`` (besides those of ``TrainingParams``):
        candidates: Layers to choose among: a list (0-based), a name (``"later-half"``,
            ``"later-three-quarters"``, ``"all-but-first"``), or ``"auto"``: the later half for
            budgets up to 30 %, the later three quarters up to 45 %, else all.
        router_width: Of the router's bottleneck; None: D / 16, at least 32.
        adapter_width: Of P; None: F / 16.
        append_norm: Whether the router also reads log(rms(delta) / rms(h)), because n removes the
            length.
        alpha: Weight of the penalty; None: steered to the budget.
        initial_bias: Added to the router's logit.
    Source: Luo et al., DiffSkip: Differential Layer Skipping in Large Language Models, Findings of
        ACL 2025. No training code was found.
    Differs from upstream: this is our reading of the paper. Router and adapter are those of
        FlexiDepth, by the same group; the parameter count of the released checkpoint agrees. n, the
        initial values (gates of 0.88, P at zero) and the learning rates are our choices. The
        factors are plainly w and 1 - w, not SparseMixer, and the penalty is HeRo's, steered to the
        budget, not one that pulls to 4 or 8 skipped FFNs; so such rows differ in router and adapter
        (HeRo's ``variant: difference`` changes the router alone).
        delta is computed in float32 from hidden states in the backbone's dtype; in bfloat16 large
        hidden states have already lost digits.
    """

    title = "DiffSkip"
    source = "Findings of ACL 2025, paper 377"
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
        append_norm: bool = False
        alpha: float | None = None
        initial_bias: float = 2.0

        def __post_init__(self) -> None:
            super().__post_init__()
            check_least(self, 1, "router_width", "adapter_width")
            check_least(self, 0, "alpha")

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """The FFN of each layer."""
        return ffn_units(backbone.model, layers)

    def router(
        self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]
    ) -> DifferenceRouter:
        """A head and an adapter per layer."""
        beside = int(self.params.append_norm)
        return DifferenceRouter(
            units, backbone.config, self.params, structure["seed"], beside=beside
        )

    def prepare(self, backbone: Backbone, data: Data, plan: Plan) -> None:
        """Note how the changes by attention and by FFN correlate; without a budget nothing."""
        if plan.request.budget is not None:
            layers = plan.structure["layers"]
            plan.decisions["correlation"] = correlations(backbone, data.probe(), layers)

    def authors_skip(self, rates: Rates) -> float:
        """FFNs that were skipped over all layers."""
        return sum(1 - ran for ran in rates.executed) / rates.ledger.dense_layers


class DifferenceRouter(SlimRouter):
    """Decides from what the layer's attention adds, in float32.

    With ``beside`` = 1 the router reads one more number: log(rms(delta) / rms(h)).
    """

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Decide from delta = post_attention - block_input."""
        assert post_attention is not None
        with torch.autocast(block_input.device.type, enabled=False):
            before = block_input.float()
            delta = post_attention.float() - before
            scale = torch.rsqrt(delta.pow(2).mean(-1, keepdim=True) + self.eps)
            features = delta * scale
            if self.beside:
                length = 0.5 * torch.log(before.pow(2).mean(-1, keepdim=True) + self.eps)
                features = torch.cat([features, -scale.log() - length], dim=-1)
            return Gate(self.weight(index, features), "gate"), state

    def alternative(self, index: int) -> nn.Module:
        """The slim FFN of the layer."""
        return self.adapters[index]


@torch.no_grad()
def correlations(
    backbone: Backbone, documents: Sequence[Document], routed: Sequence[int]
) -> list[dict[str, float | None]]:
    """How similar the changes by attention and by FFN are in a dense model.

    This is the observation that the paper starts from.

    Args:
        backbone: Dense model.
        documents: Texts to read.
        routed: Layers.

    Returns:
        Per layer: ``cosine``: the mean over tokens of the cosine between both changes; ``lengths``:
        the correlation of their lengths over tokens, None where one part writes alike for all.
    """
    changes: dict[tuple[int, str], Tensor] = {}

    def keep(layer: int, part: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            changes[layer, part] = (output[0] if isinstance(output, tuple) else output).float()

        return hook

    hooks = [
        last_module(layers(backbone.model)[number], part).register_forward_hook(keep(number, part))
        for number in routed
        for part in PARTS
    ]
    cosines, lengths = ({number: list[Tensor]() for number in routed} for _ in range(2))
    try:
        for batch in batches(documents, 32):
            device = backbone.model.device
            decoder(backbone.model)(input_ids=batch.ids.to(device), use_cache=False)
            for number in routed:
                both = [changes[number, part].cpu()[batch.valid] for part in PARTS]
                cosines[number].append(cosine_similarity(both[0], both[1], dim=-1).double())
                lengths[number].append(torch.stack([each.norm(dim=-1) for each in both]).double())
    finally:
        for hook in hooks:
            hook.remove()
    return [
        {
            "cosine": float(torch.cat(cosines[number]).mean()),
            "lengths": _correlation(torch.cat(lengths[number], dim=1)),
        }
        for number in routed
    ]


def _correlation(lengths: Tensor) -> float | None:
    """Pearson's correlation of two rows (2, N); None where one of them is constant."""
    value = float(torch.corrcoef(lengths)[0, 1])
    return None if math.isnan(value) else value
