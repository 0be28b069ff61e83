"""MoD-D: Mixture of Depths for each attention and each FFN of a trained model."""

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
    LoraSpec,
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
    check_least,
    decoder,
    draw_linear,
    generator,
    module_units,
    rank_and_world,
    router_of,
    weigh,
)
from methods.mod_d.competition import capacity_for, kth_largest, membership, upper_quantile


class MoDD(RoutedMethod):
    """The tokens of a document compete: those with the largest router weights run the module.

    Every attention and every FFN, except in the first and the last layer, has a router with one
    output. The language-model loss alone trains routers and LoRA: the capacity fixes how many
    tokens run, so there is no penalty.

    Formula: w = router(h), where h (B, T, D) is the raw input of the layer for both routers. Of the
    n tokens of a document k = max(1, floor(C n)) win, and tau is the k-th largest w. A token runs
    where w > tau (w >= tau for k = 1):
        h1 = h + w_attention Attention(LN1(h)),  h2 = h1 + w_ffn FFN(LN2(h1))
    A skipped module adds nothing. The gradient reaches the router only through the factor w.

    Args of ``Params`` (besides those of ``TrainingParams``):
        capacity: C; None: from the budget. If it is set, the row is the authors'.
        compare: ``"strict"``: w > tau, so k - 1 tokens run; ``"inclusive"``: k tokens run.
        inference: ``"topk"`` repeats the rule of training. It is not causal: later tokens take part
            in the decision, a cached step of one token runs everything, and texts of different
            lengths cannot share a batch. ``"threshold"`` is causal: a token runs where w exceeds
            the mean tau of the router over probe documents.
        initial: ``"near_one"``: bias 1 and weights of deviation 1e-3. ``"default"``: torch's values
            of a linear layer, as upstream; w then starts near 0, which switches the trained model
            off.
        membership_weight: Under ``match: split``: weight of a cross-entropy that teaches routers
            which tokens win.
        protected_first, protected_last: How many first and last layers have no routers.
        rank: Of LoRA on the query and value projections of every layer.
        lora_alpha: LoRA is scaled by lora_alpha / rank; None: twice the rank, as upstream's 32 for
            16.
    Source: Raposo et al., Mixture-of-Depths, arXiv 2404.02258; per module as in the baseline of
        SkipGPT, arXiv 2506.04179.
    Differs from upstream: routers start near one, which leaves the trained model whole, not near
        zero (``initial``). Weights and comparison are in float32, so that rounding makes no ties,
        which the strict comparison would skip. Pads do not compete, and packed documents compete
        apart from each other. Causal inference is the default; its taus are measured after training
        on the probe documents. With a budget, the capacity follows from the lengths of these
        documents, and a common shift of the taus is calibrated on them. Under ``match: split``
        prompt tokens compete within their document and answer tokens with all answer tokens of the
        batch; a loss modelled on the auxiliary one of the Mixture-of-Depths paper, which is taken
        at w, not at the distance of w to tau, brings both to the same tau. Data and schedule are
        those of every trained row, and there is no dropout. A skipped attention still makes keys
        and values, which count as run.
    """

    title = "MoD-D"
    source = "arXiv 2404.02258"
    kind = "dynamic"
    trained = True
    stochastic = True
    budgeted = True
    causal = True

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
            super().__post_init__()
            if self.capacity is not None and not 0 < self.capacity <= 1:
                raise ValueError(f"param 'capacity' is {self.capacity}, must be above 0, up to 1")
            check_least(self, 1, "rank", "lora_alpha")
            check_least(self, 0, "protected_first", "protected_last", "membership_weight")

    knob = "capacity"
    parts = "modules"
    stand_ins = {"capacity": 1.0, "levels": None}

    def layers(self, backbone: Backbone, budget: float | None) -> list[int]:
        """The layers that are not protected."""
        last = backbone.layer_count - self.params.protected_last
        return list(range(self.params.protected_first, last))

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """Attention and FFN, in the order in which they run."""
        return module_units(backbone.model, layers)

    def router(
        self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]
    ) -> CompetingRouter:
        """One router per module."""
        width = int(backbone.config.hidden_size)
        router = CompetingRouter(
            units, width, self.params, structure["capacity"], structure["seed"]
        )
        router.levels = structure["levels"]
        return router

    def lora(self) -> LoraSpec:
        """On queries and values of every layer."""
        rank, alpha = self.params.rank, self.params.lora_alpha
        return LoraSpec(("q_proj", "v_proj"), rank, 2 * rank if alpha is None else alpha)

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """No layer to route, no budget or one out of reach, or answers that compete with others."""
        split = self.effective_request(request).match == "split"
        divided = ["param 'micro_tokens'"] if self.params.micro_tokens else []
        divided += ["several processes"] if rank_and_world()[1] > 1 else []
        if split and self.params.inference == "topk":
            return (
                "under match 'split' answer tokens compete apart in training, which param "
                "'inference' 'topk' does not repeat"
            )
        if split and divided:
            return (
                "under match 'split' the answer tokens of an update compete with each other, which "
                f"{' and '.join(divided)} would divide"
            )
        return super().skip_reason(backbone, request)

    def prepare(self, backbone: Backbone, data: Data, plan: Plan) -> None:
        """The capacity: the param, or what the budget leaves to run of the probe documents."""
        capacity = self.params.capacity
        if capacity is None:
            split = plan.request.match == "split"
            lengths = [len(d.ids) - (d.answer_tokens if split else 0) for d in data.probe()]
            own = [length for length in lengths if length]
            capacity = capacity_for(_share_to_run(plan), own, self.params.compare)
        plan.structure |= {"capacity": capacity, "levels": None}
        plan.decisions["capacity"] = capacity

    def target(self, plan: Plan) -> None:
        """None: the competition fixes how many tokens run."""

    def weight(self, target: Target | None) -> FixedWeight:
        """Param ``membership_weight``."""
        return FixedWeight(self.params.membership_weight)

    def penalty(self, kind: str, target: Target | None, plan: Plan) -> Penalty | None:
        """Under ``match: split`` the cross-entropy that teaches routers which tokens win."""
        if plan.request.match == "pooled":
            return None
        return lambda gates: membership(gates.soft, gates.executed, gates.counted)

    def train(self, model: nn.Module, data: Data, plan: Plan) -> None:
        """Train while tokens compete; under ``match: split`` answer tokens compete apart."""
        if plan.request.match == "split":
            _competing(model).answer_share = _share_to_run(plan)
        super().train(model, data, plan)

    def calibrate(self, model: nn.Module, data: Data, plan: Plan) -> None:
        """Measure the taus, then calibrate their common shift to the budget."""
        if self.params.inference == "topk":
            return
        router, split = _competing(model), plan.request.match == "split"
        probe = weigh(data.probe(), "answer" if split else "pooled")
        router.levels = plan.structure["levels"] = measure_levels(model, router, probe, split)
        super().calibrate(model, data, plan)

    def batchable(self) -> bool:
        """Not by ``"topk"``: lm-eval masks no pads, so they would compete."""
        return bool(self.params.inference == "threshold")

    def authors_skip(self, rates: Rates) -> float:
        """The share of routed modules skipped; 1 - C, or slightly more by the strict comparison."""
        return 1.0 - sum(rates.executed) / len(rates.executed)


def _share_to_run(plan: Plan) -> float:
    """The share of tokens that may run in every module at the budget."""
    assert plan.request.budget is not None
    return 1 - plan.request.budget / float(plan.shares.sum())


class Level(NamedTuple):
    """Of one router on probe documents: the mean tau and the deviation of all weights."""

    mean: float
    deviation: float


class CompetingRouter(Router):
    """One router per unit, which reads the raw input of its layer.

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
        # The share of answer tokens to run if they compete apart.
        self.answer_share: float | None = None
        # None: tokens compete, as in training.
        self.levels: Sequence[Sequence[float]] | None = None
        self.routers = nn.ModuleList(nn.Linear(width, 1) for _ in units)
        rng = generator(seed, "initial values")
        for linear in (m for m in self.routers if isinstance(m, nn.Linear)):
            if params.initial == "default":
                draw_linear(linear, rng)
            elif not linear.weight.is_meta:
                nn.init.normal_(linear.weight, std=1e-3, generator=rng)
                nn.init.ones_(linear.bias)

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> tuple[Tokens, Tensor | None]:
        """What decides which tokens compete with each other."""
        return tokens, at.answers

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Decide by the weight, in float32; it also scales the module."""
        with torch.autocast(block_input.device.type, enabled=False):
            weights = self.routers[index](block_input.float()).squeeze(-1)
        if self.levels is None:
            return self._compete(weights, *state), state
        mean, deviation = self.levels[index]
        shift = deviation * math.log(self.threshold / (1 - self.threshold))
        return Gate(scale=weights, execute=weights > mean + shift), state

    def _compete(self, weights: Tensor, tokens: Tokens, answers: Tensor | None) -> Gate:
        """The best of every document run; answer tokens compete with all answer tokens."""
        values, apart = weights.detach(), answers if self.answer_share is not None else None
        among = tokens.valid if apart is None else tokens.valid & (apart == 0)
        taus = kth_largest(values, tokens, self.capacity, among)
        execute = (values >= taus.value) & among
        if self.params.compare == "strict":
            execute &= (values > taus.value) | (taus.k == 1)
        if apart is None or self.answer_share is None:
            return Gate(scale=weights, execute=execute)
        # Over the batch: an answer of one token would have no competitor in its document.
        tau = upper_quantile(values, apart, self.answer_share)
        execute |= (apart > 0) & (values > tau)
        soft = torch.sigmoid((weights - tau) / (values.std() + 1e-6))
        return Gate(soft, weights, execute)


def _competing(model: nn.Module) -> CompetingRouter:
    router = router_of(model)
    assert isinstance(router, CompetingRouter)
    return router


@torch.no_grad()
def measure_levels(
    model: nn.Module, router: CompetingRouter, probe: WeightedDocuments, split: bool
) -> list[Level]:
    """The level of each router over all documents, while tokens compete as in training.

    Args:
        model: Routed causal LM.
        router: Its router.
        probe: Documents, and the weights of the positions that the budget is about.
        split: Whether answer tokens compete apart; then the level is theirs.
    """
    device = next(model.parameters()).device
    taus, values = ([list[Tensor]() for _ in router.units] for _ in range(2))
    shares = list[Tensor]()
    weights = dict[int, Tensor]()

    def listen(number: int) -> Any:
        return lambda module, inputs, output: weights.update({number: output.squeeze(-1)})

    hooks = [r.register_forward_hook(listen(n)) for n, r in enumerate(router.routers)]
    try:
        for batch, share, answers in probe.batches(32):
            ids, valid = batch.ids.to(device), batch.valid.to(device)
            context = Context(answers=answers.to(device) if split else None)
            decoder(model)(
                input_ids=ids, attention_mask=valid.long(), use_cache=False, context=context
            )
            positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
            shares.append(share[batch.valid][:, 0])
            for number, of_router in weights.items():
                tokens = Tokens(ids, positions, valid)
                tau = kth_largest(of_router, tokens, router.capacity, valid).value
                taus[number].append(tau[:, 0])
                values[number].append(of_router[valid])
    finally:
        for hook in hooks:
            hook.remove()
    weights_of_tokens, levels = torch.cat(shares).to(device), []
    for of_documents, of_tokens in zip(taus, values, strict=True):
        everything = torch.cat(of_tokens)
        if split:
            target = router.answer_share or router.capacity
            level = upper_quantile(everything, weights_of_tokens, target)
        else:
            level = torch.cat(of_documents).double().mean()
        levels.append(Level(float(level), float(everything.double().std())))
    return levels
