"""The ledger: the only place that turns decisions and shapes into skip rates.

All methods have the same denominator, the parameters of the dense backbone. For one token

    skip = 1 - (dense parameters that ran + matrices and biases a static method added) / dense total

``skip_net`` also charges what a dynamic method added: router and LoRA for every token, adapters
where they ran. Both rates are means over real tokens; pads never count.

A ``Tally`` sums what ran: how many tokens executed each unit. What was skipped follows at the end,
as one minus the share that ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from methods.core.model.backbone import count, layers
from methods.core.routing.routed import router_of
from methods.core.routing.router import Unit

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ledger:
    """The sizes from which the rates of one model follow, all in parameters.

    Args:
        total: Dense backbone.
        resident: Parameters of the model that belong to the backbone or replace parts of it, such
            as the shortcuts of a sliced model or biases in place of removed channels.
        units: Routed units, U of them; empty for static models.
        always: Added parameters that every token uses: router, LoRA.
        instead: Added parameters (U,) that a token uses where it skips a unit: adapters.
        layers: Layers of the model.
        dense_layers: Layers of the backbone.
        fused: Parameters of a sliced model before it was sliced, with folded norms and shortcuts
            of full width; None for other models.
        linear: The part of ``resident`` in the layers' seven projections, biases included.
    """

    total: int
    resident: int
    units: Sequence[Unit]
    always: int
    instead: tuple[int, ...]
    layers: int
    dense_layers: int
    fused: int | None = None
    linear: int = 0

    @classmethod
    def of(cls, model: nn.Module, total: int, dense_layers: int) -> Ledger:
        """The ledger of a model whose backbone has ``total`` parameters in ``dense_layers``."""
        router = router_of(model)
        units = () if router is None else tuple(router.units)
        branches = [] if router is None else [router.alternative(n) for n in range(len(units))]
        instead = tuple(count(b) if isinstance(b, nn.Module) else 0 for b in branches)
        alternatives = [] if router is None else router.alternatives()
        added = 0 if router is None else count(router)
        stack = layers(model)
        sizes = {name: p.numel() for name, p in stack.named_parameters()}
        lora = sum(size for name, size in sizes.items() if "lora_" in name)
        projected = [n for n in sizes if "_proj." in n and "lora_" not in n]
        return cls(
            total=total,
            resident=count(model) - added - lora,
            units=units,
            always=added - count(*alternatives) + lora,
            instead=instead,
            layers=len(stack),
            dense_layers=dense_layers,
            fused=getattr(model.config, "fused_parameters", None),
            linear=sum(sizes[name] for name in projected),
        )

    @property
    def sizes(self) -> Floats:
        """Dense parameters per unit, (U,)."""
        return np.array([unit.parameters for unit in self.units], dtype=np.float64)


@dataclass(frozen=True)
class Rates:
    """Mean rates over the counted tokens, as fractions of the dense parameters.

    Args:
        tokens: Number of counted tokens.
        skip: Dense parameters that did not run.
        skip_net: The same with routers, adapters and LoRA charged.
        skip_std: Standard deviation of ``skip`` over tokens.
        executed: Share of tokens that ran each unit, (U,).
        ledger: The sizes of the model.
    """

    tokens: int
    skip: float
    skip_net: float
    skip_std: float
    executed: tuple[float, ...]
    ledger: Ledger


@dataclass
class Tally:
    """Running sums over counted tokens; the sum of two tallies is the tally of all tokens."""

    ledger: Ledger
    tokens: int = 0
    executed: Floats = field(default_factory=lambda: np.zeros(0))
    saved_squares: float = 0.0

    def __post_init__(self) -> None:
        if self.executed.size == 0:
            self.executed = np.zeros(len(self.ledger.units))

    def add(self, executed: Tensor | None, tokens: int) -> None:
        """Count tokens.

        Args:
            executed: Decisions (U, tokens), bool; None for a model without units.
            tokens: Their number.
        """
        self.tokens += tokens
        if executed is None or not self.ledger.units:
            return
        ran = executed.to("cpu", torch.float64).numpy()
        self.executed += ran.sum(axis=1)
        saved = self.ledger.sizes @ (1.0 - ran) / self.ledger.total
        self.saved_squares += float(saved @ saved)

    def merge(self, other: Tally) -> None:
        """Pool the tokens of another tally of the same model."""
        self.tokens += other.tokens
        self.executed = self.executed + other.executed
        self.saved_squares += other.saved_squares

    def rates(self) -> Rates:
        """The mean rates.

        Raises:
            ValueError: No token was counted.
        """
        if not self.tokens:
            raise ValueError("no token was counted, so there is no skip rate")
        ledger, total = self.ledger, self.ledger.total
        ran = self.executed / self.tokens
        saved = float(ledger.sizes @ (1.0 - ran)) / total
        skip = 1.0 - ledger.resident / total + saved
        added = (ledger.always + float(np.array(ledger.instead) @ (1.0 - ran))) / total
        spread = max(0.0, self.saved_squares / self.tokens - saved**2) ** 0.5
        return Rates(self.tokens, skip, skip - added, spread, tuple(map(float, ran)), ledger)
