"""From a router's gates to decisions: the threshold, the scale, and what stays decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from methods.core.routing.recompute import copy_parts, recompute
from methods.core.routing.router import Context, Gate, Router


class Decision(NamedTuple):
    """What happens to one unit, each (B, T).

    ``execute`` is bool. ``scale`` multiplies the branch that runs (None: 1). ``soft`` is the gate
    that penalties see, in [0, 1] (None where nothing is trained). ``dense``: the branch runs for
    every token and is multiplied by ``scale``, which is 0 where it is skipped: a straight-through
    gradient needs what a skipped branch would have said.
    """

    execute: Tensor
    scale: Tensor | None = None
    soft: Tensor | None = None
    dense: bool = False


class Decider:
    """Asks a router about the units of one forward pass.

    A layer that runs again does what its first pass decided: a recomputed gate may round to the
    other side of the threshold, and numbers of rows follow from a decision.

    Args:
        router: Of the model.
        at: Of the pass.
        forced: Decisions (B, T) by unit that take the place of the router's; None: none do.
        recomputes: Whether layers run again in the backward pass.
    """

    def __init__(
        self, router: Router, at: Context, forced: Sequence[Tensor] | None, recomputes: bool
    ) -> None:
        self.router, self.at, self.forced = router, at, forced
        # Unit -> who executed in the first pass (B, T); None where there is but one.
        self.first: dict[int, Tensor] | None = {} if recomputes else None

    def decide(
        self, index: int, block_input: Tensor, post_attention: Tensor | None, state: Any
    ) -> tuple[Decision, Any]:
        """The decision about unit ``index`` and the state behind it; arguments as of a gate."""
        arguments = (index, block_input, post_attention, state, self.at)
        if self._recomputes_gates(block_input):
            gate, state = recompute_gate(self.router, *arguments)
        else:
            gate, state = self.router.gate(*arguments)
        return self._decision(index, gate), state

    def _recomputes_gates(self, hidden: Tensor) -> bool:
        """On a GPU, where memory is dearer than a gate; unless the whole layer is recomputed."""
        heavy = self.router.heavy and hidden.is_cuda and torch.is_grad_enabled()
        return heavy and self.first is None

    def _decision(self, index: int, gate: Gate) -> Decision:
        forced = None if self.forced is None else self.forced[index]
        own = self._executes(gate)
        decision = decision_of(gate, self._settle(index, own if forced is None else forced))
        return decision if forced is None else Decision(forced, None, decision.soft)

    def _settle(self, index: int, execute: Tensor) -> Tensor:
        """Who executes unit ``index``: what its first pass decided, or now ``execute``."""
        return execute if self.first is None else self.first.setdefault(index, execute)

    def _executes(self, gate: Gate) -> Tensor:
        if gate.execute is not None:
            return gate.execute
        assert gate.value is not None, "a gate has a value, or says who executes"
        if self.router.ties_execute:
            return gate.value >= self.router.threshold
        return gate.value > self.router.threshold


def decision_of(gate: Gate, execute: Tensor) -> Decision:
    """The decision of a gate once it is known who executes (B, T)."""
    if isinstance(gate.scale, Tensor):
        return Decision(execute, gate.scale, gate.value)
    if gate.scale == "none":
        return Decision(execute, None, gate.value)
    assert gate.value is not None, "what scales a branch is the gate's value"
    if gate.scale == "gate":
        return Decision(execute, torch.where(execute, gate.value, 1 - gate.value), gate.value)
    hard = execute.to(gate.value.dtype) - gate.value.detach() + gate.value
    return Decision(execute, hard, hard, dense=True)


def recompute_gate(
    router: Router,
    index: int,
    block_input: Tensor,
    post_attention: Tensor | None,
    state: Any,
    at: Context,
) -> tuple[Gate, Any]:
    """:meth:`Router.gate` to the bit, run again in the backward pass.

    Until then it keeps its arguments and what it adds to the state: with HeRo half a KB per token
    and unit at M = 64, where a gate as it is keeps 58 KB at D = 4096.
    """

    def run(before: Any, hidden: Tensor, mixed: Tensor | None) -> tuple[Gate, Any]:
        gate, after = router.gate(index, hidden, mixed, before, at)
        return gate, copy_parts(after, before, hidden, mixed)

    result: tuple[Gate, Any] = recompute(
        run, state, block_input, post_attention, preserve_rng_state=False
    )
    return result
