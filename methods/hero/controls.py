"""Controls that keep HeRo's adapters and training but not its router."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from methods.core.routing.hashing import uniform_hash
from methods.core.routing.router import Context, Decision, Router, Tokens, Unit
from methods.hero.branch import Adapter
from methods.hero.router import Sizes


class _WithAdapters(Router):
    """A router with HeRo's adapters."""

    def __init__(self, units: list[Unit], sizes: Sizes, generator: torch.Generator | None) -> None:
        super().__init__()
        self.units = units
        self.adapters = nn.ModuleList(
            Adapter(sizes.hidden, sizes.adapter, generator) for _ in units
        )

    def otherwise(self, index: int) -> Adapter:
        """The adapter of block ``index``."""
        adapter = self.adapters[index]
        assert isinstance(adapter, Adapter)
        return adapter


class StaticGates(_WithAdapters):
    """One learned gate per block, the same for every token: routing without tokens.

    The blocks with the smallest gates are bypassed; in training their number grows to its target
    over the first half, so that the gates have told the blocks apart before.

    Args:
        units: R feed-forward networks.
        sizes: Widths.
        initial_bias: First logit of every gate.
        closed: Number of blocks to bypass.
        generator: Of the adapters' initial values.
    """

    def __init__(
        self,
        units: list[Unit],
        sizes: Sizes,
        initial_bias: float,
        closed: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(units, sizes, generator)
        self.logits = nn.Parameter(torch.full((len(units),), initial_bias))
        self.closed = closed

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tensor:
        """Which blocks run (R,)."""
        order = self.logits.detach().argsort(stable=True)
        run = torch.ones_like(self.logits, dtype=torch.bool)
        run[order[: round(self.closed * min(1.0, 2 * at.progress))]] = False
        return run

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Decision, Any]:
        """The block's gate, for every token."""
        shape = block_input.shape[:2]
        gate = torch.sigmoid(self.logits[index].float()).expand(shape)
        scale = torch.where(state[index], gate, 1 - gate)
        return Decision(state[index].expand(shape), scale, gate), state


class RandomBypass(_WithAdapters):
    """Tokens bypass block j with a fixed rate, drawn from a hash of (seed, layer, position, token).

    Both branches run at full strength; only the adapters are trained.

    Args:
        units: R feed-forward networks.
        sizes: Widths.
        rates: Bypass rate of each block, R of them.
        seed: Of the hash.
        generator: Of the adapters' initial values.
    """

    def __init__(
        self,
        units: list[Unit],
        sizes: Sizes,
        rates: list[float],
        seed: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(units, sizes, generator)
        self.rates, self.seed = rates, seed

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tokens:
        """Positions and ids, for the hash."""
        if tokens.ids is None:
            raise ValueError("random bypassing hashes token ids, so it needs input_ids")
        return tokens

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Decision, Any]:
        """The draw of block ``index``."""
        draw = uniform_hash(self.seed, self.units[index].layer, state.positions, state.ids)
        execute = draw >= self.rates[index]
        return Decision(execute, None, execute.float()), state
