"""Controls that skip at random: they show what a budget costs without any choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.api import (
    Backbone,
    Candidates,
    Context,
    Cost,
    Data,
    Fitted,
    Gate,
    Method,
    Request,
    Router,
    Tokens,
    Unit,
    block_units,
    ffn_units,
    route,
    routed_layers,
    seed_for,
    shortfall,
    uniform_hash,
)

GOLDEN = (5**0.5 - 1) / 2


class RandomSkip(Method):
    """Each token skips random units. Nothing is trained, and nothing runs instead.

    A hash of (seed, layer, position, token id) chooses the units, so that a token skips the same
    ones in a full forward pass, in cached decoding and in any batch.

    Formula: U units have equal size s, a fraction of the dense parameters; b = budget / s. The
    token at position t skips the floor(b + v_t) units with the smallest hashes, where
    v_t = frac(t * golden ratio + v_0). Over any stretch of positions the v_t fill [0, 1) evenly, so
    the mean over n tokens meets the budget up to about one unit in n.

    Args of ``Params``:
        unit: ``"ffn"`` skips FFNs of candidate layers, ``"block"`` whole layers.
        candidates: Layers to choose among: a list (0-based), a name (``"later-half"``,
            ``"later-three-quarters"``, ``"all-but-first"``), or ``"auto"``: for FFNs the later half
            for budgets up to 30 %, the later three quarters up to 45 %, else all; for whole layers
            all except the first and the last.
    Source: control of this suite.
    Differs from upstream: there is none.
    """

    title = "Random skip ({unit})"
    source = "control of this suite"
    kind = "dynamic"
    trained = False
    stochastic = True
    budgeted = True
    causal = True
    rows = {"random-skip": {"unit": "ffn"}, "random-skip-layers": {"unit": "block"}}

    @dataclass(frozen=True)
    class Params:
        """See the class."""

        unit: Literal["ffn", "block"] = "ffn"
        candidates: Candidates = "auto"

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """The candidates may be too small for the budget."""
        if request.budget is None:
            return "random skipping needs a budget"
        units = self._units(backbone, self._candidates(backbone, request.budget))
        most = sum(unit.parameters for unit in units) / backbone.parameters
        return shortfall("candidates", most, request.budget)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Compute the number of units to skip from the budget."""
        assert request.budget is not None
        layers = self._candidates(backbone, request.budget)
        sizes = [unit.parameters for unit in self._units(backbone, layers)]
        structure = {
            "layers": layers,
            "seed": request.seed,
            "skipped_units": request.budget * backbone.parameters * len(sizes) / sum(sizes),
        }
        return Fitted(self.build(backbone, structure), structure, {"unit_parameters": sizes})

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """Nothing: it reads no text."""
        return Cost()

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The routed backbone; nothing is trained, so nothing needs a gradient."""
        units = self._units(backbone, structure["layers"])
        router = RandomRouter(units, structure["seed"], structure["skipped_units"])
        return route(backbone.model.requires_grad_(False), router)

    def _candidates(self, backbone: Backbone, budget: float) -> list[int]:
        count, candidates = backbone.layer_count, self.params.candidates
        if candidates == "auto" and self.params.unit == "block":
            return list(range(1, count - 1)) if count > 2 else list(range(count))
        return routed_layers(candidates, count, budget)

    def _units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        make = ffn_units if self.params.unit == "ffn" else block_units
        return make(backbone.model, layers)


class RandomRouter(Router):
    """Skips the units with the smallest hashes.

    Args:
        units: U units.
        seed: Part of every hash.
        skips: Mean number of units that a token skips, in [0, U].
    """

    def __init__(self, units: list[Unit], seed: int, skips: float) -> None:
        super().__init__()
        self.units, self.seed, self.skips = units, seed, skips

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tensor:
        """Draw all decisions of the pass: which units run (B, U, T), bool."""
        if tokens.ids is None:
            raise ValueError("random skipping hashes token ids, so it needs input_ids")
        positions, layers = tokens.positions, [unit.layer for unit in self.units]
        draws = uniform_hash(self.seed, layers, positions, tokens.ids)
        rank = draws.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        start = seed_for(self.seed, "random skip") * 2.0**-63
        number = torch.floor(self.skips + torch.frac(positions.double() * GOLDEN + start))
        return rank >= number[:, None]

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """The decision that was drawn."""
        return Gate(execute=state[:, index]), state
