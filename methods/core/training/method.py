"""The base of routed methods: a method says what is routed; fit and build are done here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from methods.base import Cost, Fitted, Method, Request
from methods.core.budget import routed_layers, unmet
from methods.core.data import Data
from methods.core.jsonfile import check_plain
from methods.core.model.backbone import Backbone
from methods.core.routing.calibration import BATCH, HasThreshold, calibrate
from methods.core.routing.routed import birthplace, route, router_of
from methods.core.routing.router import Router, Unit, check_units
from methods.core.routing.steering import (
    SHARE,
    START,
    STEADY_SHARE,
    Controller,
    FixedWeight,
    Penalty,
    Target,
    Term,
    Weight,
    check_penalty,
    squared_use,
    unit_shares,
)
from methods.core.training.fit import SURVEYS, check_kinds, train_routed
from methods.core.training.lora import add_lora
from methods.core.training.objective import MATCH_KINDS, Routing

# Passes over the probe texts under a budget: tries of a threshold.
TRIES = 7


class LoraSpec(NamedTuple):
    """LoRA of ``rank`` on projections of every layer, scaled by ``alpha / rank``."""

    projections: tuple[str, ...]
    rank: int
    alpha: int


@dataclass
class Plan:
    """A fit in progress.

    Args:
        budget: The budget of the run.
        request: The request by which the fit trains and calibrates. It has no budget where a param
            pins how much is skipped.
        shares: Each unit's share of the dense parameters (U,).
        structure: What :meth:`RoutedMethod.build` needs; becomes ``Fitted.structure``.
        decisions: Becomes ``Fitted.decisions``.
    """

    budget: float | None
    request: Request
    shares: Tensor
    structure: dict[str, Any]
    decisions: dict[str, Any] = field(default_factory=dict)


class RoutedMethod(Method):
    """A method with a router on a frozen backbone.

    A subclass says which layers it routes (:meth:`layers`), which units of them tokens may skip
    (:meth:`units`) and which router decides (:meth:`router`). If it is ``trained``, its ``Params``
    derive from ``TrainingParams``. It may then change what is added to the loss (:meth:`penalty`,
    :meth:`weight`, :meth:`target`; the defaults are HeRo's) and train LoRA too (:meth:`lora`).

    A fit calls :meth:`prepare`, :meth:`build`, :meth:`train` and :meth:`calibrate`; a subclass may
    extend each of them. A router with a ``threshold`` is calibrated to the budget.

    Class attributes:
        knob: Name of the param that fixes how much is skipped. If it is set, nothing is trained or
            calibrated towards the budget. None: there is no such param.
        stand_ins: For :meth:`cost`, which has no data: values of what :meth:`prepare` enters into
            the structure. No size may depend on them.
    """

    knob: ClassVar[str | None] = None
    stand_ins: ClassVar[Mapping[str, Any]] = {}

    @property
    def parts(self) -> str:
        """What tokens may skip, in the plural; for messages."""
        return "candidates"

    @property
    def reserved(self) -> int:
        """Number of tokens at the start of a document that the penalty leaves out."""
        return 0

    def layers(self, backbone: Backbone, budget: float | None) -> list[int]:
        """The layers to route, 0-based: those of param ``candidates``, if there is one."""
        candidates: Any = getattr(self.params, "candidates", "auto")
        return routed_layers(candidates, backbone.layer_count, budget)

    @abstractmethod
    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """What a token may skip in ``layers``."""

    @abstractmethod
    def router(self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]) -> Router:
        """The router before training; its initial values follow from ``structure["seed"]``.

        Args:
            backbone: Its model has LoRA already, if the method uses it.
            units: From :meth:`units`.
            structure: ``layers``, ``seed`` (0 if the row is not stochastic) and what
                :meth:`prepare` added; of a fitted model also ``threshold``, which the core sets.
        """

    def lora(self) -> LoraSpec | None:
        """The LoRA that is trained with the router; None: no LoRA."""
        return None

    def prepare(self, backbone: Backbone, data: Data, plan: Plan) -> None:
        """Look at the dense backbone and the data, and write decisions into the plan."""

    def target(self, plan: Plan) -> Target | None:
        """The skip rate that training aims at on positions of a kind; None: params decide."""
        budget, split = plan.request.budget, plan.request.match == "split"
        share = STEADY_SHARE if split else SHARE
        return None if budget is None else Target(budget, share=share)

    def weight(self, target: Target | None) -> Weight:
        """The weight of the penalty: a controller if there is a target, else param ``alpha``."""
        if target is not None:
            return Controller(target, START)
        alpha = getattr(self.params, "alpha", None)
        return FixedWeight(START if alpha is None else alpha)

    def penalty(self, kind: str, target: Target | None, plan: Plan) -> Penalty | None:
        """What routing adds to the loss on positions of a kind; None: nothing."""
        return lambda gates: squared_use(gates.soft, gates.counted)

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """No layer to route, units that cannot meet the budget, or neither budget nor param."""
        shares = self.shares(backbone, request.budget)
        if not len(shares):
            return f"it routes none of the {backbone.layer_count} layers"
        return unmet(self._pinned, self.knob, self.parts, shares, request.budget)

    def effective_request(self, request: Request) -> Request:
        """What of a request counts: a pinned param leaves out its budget and protocol."""
        return request if self._pinned is None else request.pinned()

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Prepare, build, train and calibrate."""
        effective = self.effective_request(request)
        if self.trained and effective.match == "split":
            check_kinds("training", data.training())
            if effective.budget is not None:
                check_kinds("probe", data.probe())
        layers = self.layers(backbone, request.budget)
        plan = Plan(
            request.budget,
            effective,
            self.shares(backbone, request.budget),
            {"layers": layers, "seed": request.seed if self.stochastic else 0},
        )
        self.prepare(backbone, data, plan)
        check_plain(plan.structure, "structure")
        check_plain(plan.decisions, "decisions")
        model = self.build(backbone, plan.structure)
        if self.trained:
            self.train(model, data, plan)
        self.calibrate(model, data, plan)
        router = router_of(model)
        if isinstance(router, HasThreshold):
            plan.structure["threshold"] = router.threshold
        return Fitted(model, plan.structure, plan.decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The frozen backbone with router and LoRA; only these ask for gradients, if trained."""
        model, lora = backbone.model.requires_grad_(False), self.lora()
        # Units count parameters of the backbone, so they are made before LoRA is added.
        layers = structure["layers"] if "layers" in structure else self.layers(backbone, None)
        units = self.units(backbone, layers)
        check_units(model, units)
        if lora is not None:
            every = range(backbone.layer_count)
            add_lora(model, lora.projections, every, lora.rank, lora.alpha, structure["seed"])
        with birthplace(model):
            router = self.router(backbone, units, structure)
        if isinstance(router, HasThreshold) and "threshold" in structure:
            router.threshold = float(structure["threshold"])
        return route(model, router.requires_grad_(self.trained))

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """Gradients go down to the first layer with a router, or through all layers with LoRA."""
        layers, effective = self.layers(backbone, request.budget), self.effective_request(request)
        surveys = len(SURVEYS[effective.match]) if self.trained else 0
        looks = (TRIES + surveys) * (effective.budget is not None)
        if not self.trained:
            return Cost(probe_passes=looks)
        depth = backbone.layer_count - (layers[0] if self.lora() is None else 0)
        structure = {"layers": layers, "seed": request.seed, **self.stand_ins}
        model = self.build(backbone, structure)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return Cost(probe_passes=looks, layers=depth, trained=trained)

    def train(self, model: nn.Module, data: Data, plan: Plan) -> None:
        """Train the routed model in place."""
        device = next(model.parameters()).device
        terms = {kind: self._term(kind, plan, device) for kind in MATCH_KINDS[plan.request.match]}
        routing = Routing(plan.shares, terms, self.reserved, plan.structure)
        plan.decisions |= train_routed(
            model, self.params, data, plan.request, routing, self._probe_batch
        )

    def calibrate(self, model: nn.Module, data: Data, plan: Plan) -> None:
        """Calibrate the router's threshold to the budget, if there are both."""
        if plan.request.budget is not None and isinstance(router_of(model), HasThreshold):
            plan.decisions |= calibrate(model, data, plan.shares, plan.request, self._probe_batch)

    def shares(self, backbone: Backbone, budget: float | None) -> Tensor:
        """Each unit's share of the dense parameters (U,)."""
        units = self.units(backbone, self.layers(backbone, budget))
        return unit_shares(units, backbone.parameters)

    def _term(self, kind: str, plan: Plan, device: torch.device) -> Term:
        target = self.target(plan)
        penalty = self.penalty(kind, target, plan)
        if penalty is None:
            return Term(FixedWeight(0.0), None)
        check_penalty(penalty, len(plan.shares), device)
        return Term(self.weight(target), penalty)

    @property
    def _probe_batch(self) -> int:
        """Probe documents per forward pass, in which pads must change nothing."""
        return BATCH if self.batchable() else 1

    @property
    def _pinned(self) -> object:
        """Value of the param that pins how much is skipped; None: the budget decides."""
        if self.knob is not None and not hasattr(self.params, self.knob):
            raise ValueError(f"knob is '{self.knob}', which is no param")
        return None if self.knob is None else getattr(self.params, self.knob)
