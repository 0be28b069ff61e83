"""SkipGPT: in every layer each token skips the attention, the FFN, both or neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.api import (
    Backbone,
    Context,
    FixedWeight,
    Gate,
    LoraSpec,
    Penalty,
    Plan,
    Rates,
    RoutedMethod,
    Router,
    Target,
    Tokens,
    TrainingParams,
    Unit,
    aim_of,
    check_least,
    decide_gates,
    generator,
    hashed_noise,
    logistic_noise,
    mean_deviation,
    module_units,
    sample_gates,
)

# Temperatures at the first update and after the last.
FIRST, LAST = 5.0, 1.0


class SkipGPT(RoutedMethod):
    """Two routers per layer, one for attention and one for the FFN, let each token skip either.

    RT ("router tuning") trains the routers alone, on a frozen backbone. Joint also trains LoRA; its
    authors show it as the less stable form. Their second stage, LoRA on top of RT's frozen routers,
    is left out, as in HeRo's tables.

    Formula: z = router(h) has two components; component 0 stands for run. Both routers of a layer
    read its raw input h, D numbers per token. Training: y = softmax((z + Gumbel) / T), and
    e = 1[y_0 >= 1/2] with the gradient of y_0;
        h1 = h + e_attention Attention(LN1(h)),  h2 = h1 + e_ffn FFN(LN2(h1))
        loss = LM + 20 |mean share skipped - target|
    The temperature T falls linearly from 5 to 1 over the updates. Inference: a unit runs where
    softmax(z)_0 reaches the threshold, 1/2 in the paper.

    Args of ``Params`` (besides those of ``TrainingParams``):
        tuning: ``"RT"`` (router tuning) or ``"Joint"``.
        router: ``"linear"``: D to 2, as in the paper and its checkpoint; ``"mlp"``: D to D/4 to 2
            with ReLU, as in the released training code.
        measure: What the penalty counts without a budget: ``"params"``: the share of the dense
            parameters that does not run; ``"module"``: the share of modules skipped, as in the
            authors' code.
        sparsity: Target of the penalty, a fraction of what ``measure`` counts; None: the budget. If
            it is set, the row is trained as by the authors: no budget steers it, and the threshold
            stays 1/2.
        penalty_weight: Weight of the penalty in the loss, 20 in the formula.
        evaluation: ``"argmax"``; or ``"sample"``: noise at T = 1 in inference too, as in the
            released code, but from a hash of the token, so that cached decoding repeats it.
        rank: Of LoRA on the query and value projections of every layer (Joint).
        lora_alpha: LoRA is scaled by lora_alpha / rank; None: twice the rank, as the paper's 32
            for 16.
    Source: Zhao et al., SkipGPT: Each Token is One of a Kind, arXiv 2506.04179, and its code.
    Differs from upstream: noise and softmax are in float32, so that rounding makes no ties. The
        temperature follows the optimizer's step, which survives an interrupted run. Pads and the
        last token of a document, which predicts nothing, count neither in the penalty nor in the
        rates. With a budget, the penalty counts parameters; its target is corrected by what
        inference skips on the probe texts, and the threshold is calibrated on them. Under
        ``match: split`` prompt tokens and answer tokens have a penalty each. Data and schedule are
        those of every trained row, and there is no dropout; suites may give LoRA (``lora_rate``)
        another rate than the routers. A skipped attention still makes keys
        and values, which count as run.
    """

    title = "SkipGPT-{tuning}"
    source = "arXiv 2506.04179"
    kind = "dynamic"
    trained = True
    stochastic = True
    budgeted = True
    causal = True
    rows = {"skipgpt-joint": {"tuning": "Joint"}, "skipgpt-rt": {"tuning": "RT"}}

    @dataclass(frozen=True)
    class Params(TrainingParams):
        """See the class."""

        tuning: Literal["RT", "Joint"] = "RT"
        router: Literal["linear", "mlp"] = "linear"
        measure: Literal["params", "module"] = "params"
        sparsity: float | None = None
        penalty_weight: float = 20.0
        evaluation: Literal["argmax", "sample"] = "argmax"
        rank: int = 16
        lora_alpha: int | None = None

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.sparsity is not None and not 0 < self.sparsity < 1:
                raise ValueError(f"param 'sparsity' is {self.sparsity}, must be between 0 and 1")
            check_least(self, 1, "rank", "lora_alpha")
            check_least(self, 0, "penalty_weight")

    knob = "sparsity"
    parts = "modules"

    def layers(self, backbone: Backbone, budget: float | None) -> list[int]:
        """All layers."""
        return list(range(backbone.layer_count))

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """Attention and FFN, in the order in which they run."""
        return module_units(backbone.model, layers)

    def router(
        self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]
    ) -> PairRouter:
        """Two routers per layer."""
        return PairRouter(units, int(backbone.config.hidden_size), self.params, structure["seed"])

    def lora(self) -> LoraSpec | None:
        """None for RT; for Joint on queries and values."""
        rank, alpha = self.params.rank, self.params.lora_alpha
        if self.params.tuning == "RT":
            return None
        return LoraSpec(("q_proj", "v_proj"), rank, 2 * rank if alpha is None else alpha)

    def weight(self, target: Target | None) -> FixedWeight:
        """A fixed weight, because the penalty itself measures the distance to the target."""
        return FixedWeight(self.params.penalty_weight, target)

    def penalty(self, kind: str, target: Target | None, plan: Plan) -> Penalty:
        """The distance of the mean share skipped from the target."""
        params, sizes = self.params, plan.shares
        skip = params.sparsity if target is None else target.budget
        if params.measure == "module" and target is None:
            sizes = torch.full_like(sizes, 1 / len(sizes))
        return lambda gates: mean_deviation(gates.soft, gates.counted, sizes, aim_of(skip, target))

    def authors_skip(self, rates: Rates) -> float:
        """The share of modules skipped; an attention counts as much as an FFN."""
        return 1.0 - sum(rates.executed) / len(rates.executed)


class PairRouter(Router):
    """One router per unit, which reads the raw input of its layer.

    Args:
        units: U units.
        width: D.
        params: Of the method.
        seed: Of the initial values, and of the noise in inference (``"sample"``).
    """

    def __init__(self, units: list[Unit], width: int, params: SkipGPT.Params, seed: int) -> None:
        super().__init__()
        self.units, self.params, self.seed, self.threshold = units, params, seed, 0.5
        self.routers = nn.ModuleList(self._router(width) for _ in units)
        rng = generator(seed, "initial values")
        for linear in (m for m in self.modules() if isinstance(m, nn.Linear)):
            nn.init.zeros_(linear.bias)
            if not linear.weight.is_meta:
                # Bound sqrt(3 / inputs); times sqrt(2) before a ReLU.
                bound = (3 if linear.out_features == 2 else 6) ** 0.5 * linear.in_features**-0.5
                nn.init.uniform_(linear.weight, -bound, bound, generator=rng)

    def _router(self, width: int) -> nn.Module:
        if self.params.router == "linear":
            return nn.Linear(width, 2)
        return nn.Sequential(nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, 2))

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Any:
        """The noise of all units (B, U, T); None without noise."""
        if at.generator is None and self.params.evaluation == "sample":
            return hashed_noise(self.seed, len(self.units), tokens)
        return logistic_noise(len(self.units), tokens, at)

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Decide from the input of the layer, in float32."""
        with torch.autocast(block_input.device.type, enabled=False):
            logits = self.routers[index](block_input.float())
            difference = logits[..., 0] - logits[..., 1]
            if state is not None and at.generator is not None:
                temperature = FIRST + (LAST - FIRST) * at.progress
                execute, soft = sample_gates(difference, state[:, index], temperature)
                return Gate(soft, "straight-through", execute), state
            noise = 0.0 if state is None else state[:, index]
            return Gate(execute=decide_gates(difference + noise, self.threshold)), state
