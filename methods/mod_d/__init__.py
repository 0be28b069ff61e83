"""MoD-D: Mixture of Depths on attention and feed-forward network apart, on a trained model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from methods.api import (
    Backbone,
    Context,
    Data,
    FixedWeight,
    Gate,
    Lora,
    Penalty,
    Plan,
    Rates,
    Request,
    RoutedMethod,
    Router,
    Target,
    Tokens,
    TrainingParams,
    Unit,
    WeightedDocuments,
    decoder,
    generator,
    module_units,
    router_of,
    weigh,
)
from methods.mod_d.competition import capacity_for, kth_largest, membership, upper_quantile


class MoDD(RoutedMethod):
    """The tokens of a document compete: those with the largest router weights run the module.

    One scalar router per attention and FFN of every layer but the first and the last, trained with
    LoRA by the language-model loss alone; the capacity fixes the rate, so there is no penalty.

    Formula: w = router(h), h (B, T, D) the raw input of the layer for both routers; among the n
    tokens of a document, k = max(1, floor(C n)) and tau the k-th largest w. A token runs where
    w > tau (w >= tau for k = 1):
        h1 = h + w_attention Attention(LN1(h)),  h2 = h1 + w_ffn FFN(LN2(h1))
    A skipped module adds nothing. The factor w is the only path of a gradient to the router.

    Args of ``Params`` (besides those of ``TrainingParams``):
        capacity: C; None: from the budget. Pinned, it is the authors' recipe.
        compare: ``"strict"``, w > tau, runs k - 1 tokens; ``"inclusive"`` runs k.
        inference: ``"topk"`` repeats the training rule: not causal, what follows a token decides
            with it, a cached step of one token runs everything, and texts of different lengths are
            not scored in one batch. ``"threshold"`` is causal: a token runs where w exceeds the
            mean tau of the router over validation documents.
        initial: ``"near_one"``, bias 1 and weights of deviation 1e-3; ``"default"``, torch's linear
            layer as upstream, under which w starts near 0 and the trained model is switched off.
        membership_weight: Under ``match: split``, of a cross-entropy that teaches routers who wins.
        protected_first, protected_last: Layers without routers at either end.
        rank: Of LoRA on the query and value projections of every layer.
        lora_alpha: Scale of LoRA; None: twice the rank, as 32 to 16 upstream.
    Source: Raposo et al., Mixture-of-Depths, arXiv 2404.02258; per module as in the baseline of
        SkipGPT, arXiv 2506.04179.
    Differs from upstream: routers start near one, where the trained model is whole, not near zero
        (``initial``); weights and comparison in float32, so that rounding makes no ties, which the
        strict comparison would skip; pads do not compete and packed documents compete each on
        its own; causal inference is the default, its taus measured after training on the documents
        that calibrate; with a budget, the capacity follows from the lengths of these documents and
        a common shift of the taus is calibrated on them; under ``match: split`` prompt tokens
        compete in their document and answer tokens with all of their kind, and the auxiliary loss
        of the Mixture-of-Depths paper brings both to one tau; the same data, schedule and no
        dropout as every trained row. Attention that is skipped still makes keys and values, which
        count as used.
    """

    title = "MoD-D"
    source = "arXiv 2404.02258"
    kind = "dynamic"
    trained = True
    stochastic = True
    budgeted = True
    causal = True
    rows = {"mod-d": {}}

    @dataclass(frozen=True)
    class Params(TrainingParams):
        """See the class."""

        capacity: float | None = None
        compare: Literal["strict", "inclusive"] = "strict"
        inference: Literal["threshold", "topk"] = "threshold"
        initial: Literal["near_one", "default"] = "near_one"
        membership_weight: float = 0.1
        protected_first: int = 1
        protected_last: int = 1
        rank: int = 16
        lora_alpha: int | None = None

        def __post_init__(self) -> None:
            """Check ranges."""
            super().__post_init__()
            if self.capacity is not None and not 0 < self.capacity <= 1:
                raise ValueError(f"param 'capacity' is {self.capacity}, must be above 0, up to 1")
            for name in ("protected_first", "protected_last"):
                if getattr(self, name) < 0:
                    raise ValueError(f"param '{name}' is {getattr(self, name)}, must be at least 0")

    knob = "capacity"
    parts = "modules"
    stand_ins = {"capacity": 1.0, "levels": None}

    def layers(self, backbone: Backbone, budget: float | None) -> list[int]:
        """Those that are not protected."""
        last = backbone.layer_count - self.params.protected_last
        return list(range(self.params.protected_first, last))

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """Attention and FFN, in the order in which they run."""
        return module_units(backbone.model, layers)

    def router(
        self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]
    ) -> CompetingRouter:
        """A scalar router per module."""
        width = int(backbone.config.hidden_size)
        router = CompetingRouter(
            units, width, self.params, structure["capacity"], structure["seed"]
        )
        router.levels = structure["levels"]
        return router

    def lora(self) -> Lora:
        """On queries and values of every layer."""
        rank, alpha = self.params.rank, self.params.lora_alpha
        return Lora(("q_proj", "v_proj"), rank, 2 * rank if alpha is None else alpha)

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """Too few layers, units too small for the budget, or nothing says how much to skip."""
        if not self.layers(backbone, request.budget):
            return f"none of the {backbone.layer_count} layers is left between the protected ones"
        return super().skip_reason(backbone, request)

    def prepare(self, backbone: Backbone, data: Data, plan: Plan) -> None:
        """The capacity: the param, or what the budget leaves to run of the probe documents."""
        capacity = self.params.capacity
        if capacity is None:
            held = [len(document.ids) for document in data.probe()]
            if plan.request.match == "split":
                held = [n - d.answer_tokens for n, d in zip(held, data.probe(), strict=True)]
            capacity = capacity_for(_running(plan), [n for n in held if n], self.params.compare)
        plan.structure |= {"capacity": capacity, "levels": None}
        plan.decisions["capacity"] = capacity

    def target(self, plan: Plan) -> None:
        """None: the competition keeps the rate."""

    def weight(self, target: Target | None) -> FixedWeight:
        """Param ``membership_weight``."""
        return FixedWeight(self.params.membership_weight)

    def penalty(self, kind: str, target: Target | None, plan: Plan) -> Penalty | None:
        """Where kinds compete apart, teaches routers who wins."""
        if plan.request.match == "pooled":
            return None
        return lambda gates: membership(gates.soft, gates.executed, gates.counted)

    def train(self, model: nn.Module, data: Data, plan: Plan) -> None:
        """While tokens compete, under ``match: split`` by kind."""
        if plan.request.match == "split":
            _competing(model).running = _running(plan)
        super().train(model, data, plan)

    def calibrate(self, model: nn.Module, data: Data, plan: Plan) -> None:
        """Measure the taus, then shift them to the budget."""
        if self.params.inference == "topk":
            return
        router, each = _competing(model), plan.request.match == "split"
        probe = weigh(data.probe(), "answer" if each else "pooled")
        router.levels = plan.structure["levels"] = measure_levels(model, router, probe, each)
        super().calibrate(model, data, plan)

    def batchable(self) -> bool:
        """Under the training rule the pads of a batch would compete: lm-eval masks none."""
        return bool(self.params.inference == "threshold")

    def authors_skip(self, rates: Rates) -> float:
        """The share of routed modules skipped: 1 - C, but for the comparison."""
        return 1.0 - sum(rates.executed) / len(rates.executed)


def _running(plan: Plan) -> float:
    """Share of the tokens that a budget leaves to run in every module."""
    assert plan.request.budget is not None
    return 1 - plan.request.budget / float(plan.shares.sum())


class Level(NamedTuple):
    """Of one router on validation documents: mean tau, and the deviation of all weights."""

    mean: float
    deviation: float


class CompetingRouter(Router):
    """A scalar router for every unit, on the raw input of its layer.

    Args:
        units: U units.
        width: D.
        params: Of the method.
        capacity: C.
        seed: Of the initial values.
    """

    def __init__(
        self, units: list[Unit], width: int, params: MoDD.Params, capacity: float, seed: int
    ) -> None:
        super().__init__()
        self.units, self.params, self.capacity = units, params, capacity
        self.threshold = 0.5
        # Share of the answer tokens to run where these compete on their own.
        self.running: float | None = None
        # Without levels, as in training, tokens compete.
        self.levels: Sequence[Sequence[float]] | None = None
        self.routers = nn.ModuleList(nn.Linear(width, 1) for _ in units)
        rng = generator(seed, "initial values")
        for linear in (m for m in self.routers if isinstance(m, nn.Linear)):
            if linear.weight.is_meta:
                continue
            if params.initial == "near_one":
                nn.init.normal_(linear.weight, std=1e-3, generator=rng)
                nn.init.ones_(linear.bias)
            else:
                bound = width**-0.5
                nn.init.uniform_(linear.weight, -bound, bound, generator=rng)
                nn.init.uniform_(linear.bias, -bound, bound, generator=rng)

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> tuple[Tokens, Tensor | None]:
        """What says which tokens compete with each other."""
        return tokens, at.answers

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """The weight scales the module and decides, in float32."""
        with torch.autocast(block_input.device.type, enabled=False):
            weights = self.routers[index](block_input.float()).squeeze(-1)
        if self.levels is None:
            return self._compete(weights, *state), state
        mean, deviation = self.levels[index]
        shift = deviation * math.log(self.threshold / (1 - self.threshold))
        return Gate(scale=weights, execute=weights > mean + shift), state

    def _compete(self, weights: Tensor, tokens: Tokens, answers: Tensor | None) -> Gate:
        """The best of every document run; answer tokens compete with all of their kind."""
        found, apart = weights.detach(), answers if self.running is not None else None
        among = tokens.valid if apart is None else tokens.valid & (apart == 0)
        taus = kth_largest(found, tokens, self.capacity, among)
        execute = (found >= taus.value) & among
        if self.params.compare == "strict":
            execute &= (found > taus.value) | (taus.k == 1)
        if apart is None or self.running is None:
            return Gate(scale=weights, execute=execute)
        # An answer of one word has nobody to compete with in its document.
        tau = upper_quantile(found, apart, self.running)
        execute |= (apart > 0) & (found > tau)
        soft = torch.sigmoid((weights - tau) / (found.std() + 1e-6))
        return Gate(soft, weights, execute)


def _competing(model: nn.Module) -> CompetingRouter:
    router = router_of(model)
    assert isinstance(router, CompetingRouter)
    return router


@torch.no_grad()
def measure_levels(
    model: nn.Module, router: CompetingRouter, probe: WeightedDocuments, each: bool
) -> list[Level]:
    """Level of each router while tokens compete as in training, over all documents.

    Args:
        model: Routed causal LM.
        router: Its router.
        probe: Documents, and the weights of the positions that a budget speaks of.
        each: Whether answer tokens compete on their own; then theirs is the level.
    """
    device = next(model.parameters()).device
    taus = [list[Tensor]() for _ in router.units]
    seen = [list[Tensor]() for _ in router.units]
    shares = list[Tensor]()
    weights = dict[int, Tensor]()

    def listen(number: int) -> Any:
        return lambda module, inputs, output: weights.update({number: output.squeeze(-1)})

    hooks = [r.register_forward_hook(listen(n)) for n, r in enumerate(router.routers)]
    try:
        for batch, share, answers in probe.batches(32):
            ids, valid = batch.ids.to(device), batch.valid.to(device)
            context = Context(answers=answers.to(device) if each else None)
            decoder(model)(
                input_ids=ids, attention_mask=valid.long(), use_cache=False, context=context
            )
            positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
            shares.append(share[batch.valid][:, 0])
            for number, found in weights.items():
                tokens = Tokens(ids, positions, valid)
                taus[number].append(kth_largest(found, tokens, router.capacity, valid).value[:, 0])
                seen[number].append(found[valid])
    finally:
        for hook in hooks:
            hook.remove()
    held = torch.cat(shares).to(device)
    return [
        Level(
            float(
                upper_quantile(torch.cat(s), held, router.running or router.capacity)
                if each
                else torch.cat(t).double().mean()
            ),
            float(torch.cat(s).double().std()),
        )
        for t, s in zip(taus, seen, strict=True)
    ]
