"""HeRo: history-aware routing of feed-forward networks on a frozen backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from methods.api import (
    Backbone,
    Candidates,
    Data,
    LoraSpec,
    Penalty,
    Plan,
    Request,
    RoutedMethod,
    Router,
    Target,
    TrainingParams,
    Unit,
    check_least,
    ffn_units,
    generator,
    module_units,
    nearest,
    shortfall,
    squared_use,
)
from methods.hero.controls import RandomGates, StaticGates, lender_rates, token_table
from methods.hero.heads import Sizes
from methods.hero.layers import LayerGates
from methods.hero.router import HeroRouter

# Controls that skip at random, and what their rates depend on.
RATES: dict[str, Literal["unit", "kind", "token"]] = {
    "random": "unit", "by-kind": "kind", "by-token": "token",
}  # fmt: skip


class Hero(RoutedMethod):
    """A router with a memory over depth lets each token replace late FFNs by small adapters.

    Router and adapters are trained; the backbone stays frozen. Training and inference use the same
    hard threshold and run one branch per token. Attention is dense, so the cache is complete.

    Formula: u = LN(hbar); the FFN runs where g >= 0.5:
        h = hbar + g FFN(u)  if it runs,  h = hbar + (1 - g) W2 SiLU(W1 u)  if it is skipped
        loss = LM + alpha * mean over predicting positions of (sum over routed FFNs of g)^2
    ``methods/hero/router.py`` describes the gate g. The comparison has no gradient: it flows
    through the factors g and 1 - g. Without a norm in front (OLMo 2, EXAONE 4) u = hbar.

    Args of ``Params`` (besides those of ``TrainingParams``):
        candidates: Layers to choose among: a list (0-based), a name (``"later-half"``,
            ``"later-three-quarters"``, ``"all-but-first"``), or ``"auto"``: the later half for
            budgets up to 30 %, the later three quarters up to 45 %, else all.
        variant: ``"full"``, an ablation of the paper or a control. Ablations: ``"no-history"``,
            ``"no-memread"``, ``"no-aux"``, ``"no-position"``. Controls without a history:
            ``"same-size"`` has a second local head of as many parameters instead;
            ``"difference"`` too, and both heads read what attention added, as in DiffSkip;
            ``"static"`` has one learned gate per FFN and skips the FFNs with the lowest.
            Controls that skip by a hash, at the rates of the request's lender, a fitted HeRo:
            ``"random"`` (rates by FFN; without a lender equal rates), ``"by-kind"`` (by FFN,
            prompt and answer tokens apart) and ``"by-token"`` (by FFN and token id). What HeRo
            retains above the last two comes neither from the kind of a token nor from its id.
        unit: ``"ffn"``, or ``"block"``: attention and FFN of a layer together, decided at the
            layer's input, as in FlexiDepth. ``"block"`` excludes ``"static"`` and the controls that
            skip by a hash.
        adapter_width: Of the bottleneck; None: the paper's 896, in proportion below D = 4096;
            0: nothing runs in place of a skipped FFN.
        head_width: Of both heads and W_hd; None: the paper's 256, or D / 16 below, at least 32.
        memory_width: M, of keys, queries and values.
        alpha: Weight of the penalty, 1e-3 in the paper; None: steered to the budget.
        initial_bias: Of the gate's logit.
        lora_rank: Of LoRA on the query and value projections of every layer, which is trained in
            the same updates and scaled by two, as in SkipGPT-Joint; 0: the backbone is frozen.
    Source: the HeRo paper, equations of its method section. It released no code; the choices that
        it leaves open are listed here.
    Differs from upstream: the paper tries values of alpha; here, with a budget, training steers
        alpha and the threshold is calibrated on the probe texts. Under ``match: split`` prompt
        tokens and answer tokens have a penalty and an alpha each. A steered alpha may fall slightly
        below zero and then rewards large gates (``core/routing/steering.py``). Gates start at 0.88,
        because gates of 0.5 run every FFN at half strength. The path MLP's weights of the distance
        start divided by sqrt(D), because the distance grows with sqrt(D). Vectors and scalars have
        no weight decay. Documents are packed. The loss counts every token, as in the paper
        (``prompt_weight`` 1); the demo's suites set 0.1.
    """

    title = "HeRo"
    source = "HeRo: history-aware routing"
    kind = "dynamic"
    trained = True
    stochastic = True
    budgeted = True
    causal = True
    knob = "alpha"
    borrows = True

    @dataclass(frozen=True)
    class Params(TrainingParams):
        """See the class."""

        candidates: Candidates = "auto"
        variant: Literal[
            "full", "no-history", "no-memread", "no-aux", "no-position", "same-size", "difference",
            "static", "random", "by-kind", "by-token",
        ] = "full"  # fmt: skip
        unit: Literal["ffn", "block"] = "ffn"
        adapter_width: int | None = None
        head_width: int | None = None
        memory_width: int = 64
        alpha: float | None = None
        initial_bias: float = 2.0
        lora_rank: int = 0

        def __post_init__(self) -> None:
            super().__post_init__()
            check_least(self, 1, "head_width", "memory_width")
            check_least(self, 0, "lora_rank", "adapter_width", "alpha")
            if self.unit == "block" and self.variant in ("static", *RATES):
                raise ValueError(f"param 'unit' is block, which variant '{self.variant}' lacks")

    stand_ins = {"closed": 0, "rates": [[-1, 0.5]]}

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """The candidates may be too small for the budget, or neither budget nor alpha is set."""
        variant = self.params.variant
        if variant not in ("static", *RATES):
            return super().skip_reason(backbone, request)
        # What controls skip follows from the budget or from a lender, not from alpha.
        if request.budget is None:
            lent = request.lender is not None and variant in RATES
            return None if lent else f"variant '{variant}' needs a budget"
        total = float(self.shares(backbone, request.budget).sum())
        return shortfall("candidates", total, request.budget)

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """FFNs; or attention and FFN of each layer, which then share a gate."""
        make = ffn_units if self.params.unit == "ffn" else module_units
        return make(backbone.model, layers)

    def lora(self) -> LoraSpec | None:
        """None, or on queries and values if param ``lora_rank`` says so."""
        rank = self.params.lora_rank
        return LoraSpec(("q_proj", "v_proj"), rank, 2 * rank) if rank else None

    def prepare(self, backbone: Backbone, data: Data, plan: Plan) -> None:
        """Note what a control takes in place of gates.

        Raises:
            ValueError: A control lacks its lender, or what is no control has one.
        """
        if plan.request.lender is not None and self.params.variant not in RATES:
            raise ValueError(
                f"variant '{self.params.variant}' takes no rates of a lender; {', '.join(RATES)} do"
            )
        if self.params.variant in RATES:
            plan.structure["rates"] = self._rates(backbone, data, plan)
            plan.decisions["rates"] = plan.structure["rates"]
        elif self.params.variant == "static":
            plan.structure["closed"] = self._ffns_to_skip(plan.budget, plan.shares)

    def target(self, plan: Plan) -> Target | None:
        """The budget; None for a control that meets it by itself."""
        return None if self.params.variant in ("static", *RATES) else super().target(plan)

    def penalty(self, kind: str, target: Target | None, plan: Plan) -> Penalty | None:
        """The squared sum of gates; a gate that two units share counts once.

        None for ``static``: the number of its closed gates is fixed, and a weight that nothing
        steers would only push the open ones down.
        """
        if self.params.variant == "static":
            return None
        units = 2 if self.params.unit == "block" else 1
        return lambda gates: squared_use(gates.soft, gates.counted, units)

    def router(self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]) -> Router:
        """HeRo's router, or that of a control."""
        width, params = int(backbone.config.hidden_size), self.params
        ffns = [unit for unit in units if unit.kind == "ffn"]
        meta = backbone.model.device.type == "meta"
        rng = None if meta else generator(structure["seed"], "initial values")
        adapter = params.adapter_width
        sizes = Sizes(
            hidden=width,
            head=params.head_width or min(256, max(32, width // 16)),
            memory=params.memory_width,
            adapter=min(896, round(width * 896 / 4096)) if adapter is None else adapter,
        )
        if params.variant == "static":
            return StaticGates(units, sizes, params.initial_bias, structure["closed"], rng)
        if params.variant in RATES:
            rates = torch.tensor(structure["rates"], dtype=torch.float64, device="cpu")
            if params.variant == "by-token":
                rates = token_table(structure["rates"], int(backbone.config.vocab_size))
            key = RATES[params.variant]
            return RandomGates(units, sizes, rates, key, structure["seed"], rng)
        eps = float(backbone.config.rms_norm_eps)
        router = HeroRouter(ffns, sizes, eps, params.variant, params.initial_bias, rng)
        return LayerGates(router, units) if params.unit == "block" else router

    def _ffns_to_skip(self, budget: float | None, shares: Tensor) -> int:
        """The number of FFNs whose share is nearest to the budget; all are equal."""
        if budget is None:
            raise ValueError("variant 'static' needs a budget")
        return nearest(range(len(shares) + 1), lambda n: n * float(shares.mean()), budget)[0]

    def _rates(self, backbone: Backbone, data: Data, plan: Plan) -> list[list[float]]:
        """Rates of a control (R, K); by token: rows of a token id and its R rates."""
        variant, lender = self.params.variant, plan.request.lender
        if lender is not None:
            device, layers = str(backbone.model.device), plan.structure["layers"]
            return lender_rates(lender, RATES[variant], data, device, layers)
        if variant != "random" or plan.budget is None:
            budget = "a budget or " if variant == "random" else ""
            raise ValueError(f"variant '{variant}' needs {budget}a lender, a fitted HeRo")
        return [[plan.budget / float(plan.shares.sum())]] * len(plan.shares)
