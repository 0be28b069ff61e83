"""From a router's gates to decisions: the threshold, the scale, and recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from methods.core.routing.recompute import copy_parts, recompute
from methods.core.routing.router import Context, Gate, Router


class Decision(NamedTuple):
    """What happens to one unit; each tensor is (B, T).

    ``execute``, bool: which tokens execute the unit.
    ``scale``: multiplies the update, of the unit or of its alternative; None: 1.
    ``soft``: the gate that penalties see, in [0, 1]; None: no penalty sees this unit.
    ``run_all``: the unit runs for every token, and ``scale`` is 0 for tokens that skip it. A
    straight-through gradient needs the update that was skipped.
    """

    execute: Tensor
    scale: Tensor | None = None
    soft: Tensor | None = None
    run_all: bool = False


class Decider:
    """Decides the units of one forward pass by the gates of a router.

    A layer that is recomputed must decide as it did in the forward pass. A recomputed gate can
    round to the other side of the threshold; then the number of executing tokens would differ, and
    with it the shapes of tensors. So the first decision about a unit is stored.

    Args:
        router: Of the model.
        at: Progress and noise of the pass.
        forced: Decisions (B, T) by unit, in place of the router's; None: the router decides.
        recomputes: Whether layers are recomputed in the backward pass.
    """

    def __init__(
        self, router: Router, at: Context, forced: Sequence[Tensor] | None, recomputes: bool
    ) -> None:
        self.router, self.at, self.forced = router, at, forced
        # Unit -> the first decision (B, T); None where no layer is recomputed.
        self.first_decisions: dict[int, Tensor] | None = {} if recomputes else None

    def decide(
        self, index: int, block_input: Tensor, post_attention: Tensor | None, state: Any
    ) -> tuple[Decision, Any]:
        """The decision about unit ``index``, and the next state; see :meth:`Router.gate`."""
        arguments = (index, block_input, post_attention, state, self.at)
        if self._recomputes_gates(block_input):
            answer = recompute_gate(self.router, *arguments)
        else:
            answer = self.router.gate(*arguments)
        gate, state = self._checked(index, answer, block_input.shape[:2])
        return self._decision(index, gate), state

    def _checked(self, index: int, answer: Any, shape: torch.Size) -> tuple[Gate, Any]:
        """What a router says, if it is a gate of ``shape`` (B, T) and a state.

        Raises:
            ValueError: It is not: a wider gate would be broadcast, and other tokens would skip.
        """
        name = f"{type(self.router).__name__}.gate, unit {index}"
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Gate):
            raise ValueError(f"{name}: it must return a Gate and the next state")
        gate: Gate = answer[0]
        if gate.value is None and gate.execute is None:
            raise ValueError(f"{name}: a gate needs a value or decisions")
        for part, value in gate._asdict().items():
            if isinstance(value, Tensor) and value.shape != shape:
                raise ValueError(
                    f"{name}: '{part}' has the shape {tuple(value.shape)}, must be (B, T) = "
                    f"{tuple(shape)}"
                )
        if gate.execute is not None and gate.execute.dtype != torch.bool:
            raise ValueError(f"{name}: 'execute' is {gate.execute.dtype}, must be bool")
        return answer

    def _recomputes_gates(self, hidden: Tensor) -> bool:
        """Whether a gate alone is recomputed: a heavy one on a GPU, where memory is scarce.

        Not if whole layers are recomputed, which includes their gates.
        """
        heavy = self.router.heavy and hidden.is_cuda and torch.is_grad_enabled()
        return heavy and self.first_decisions is None

    def _decision(self, index: int, gate: Gate) -> Decision:
        forced = None if self.forced is None else self.forced[index]
        execute = self._first(index, self._by_threshold(gate) if forced is None else forced)
        decision = decision_of(gate, execute)
        if forced is None or (self.router.training and torch.is_grad_enabled()):
            return decision
        return Decision(forced, None, decision.soft)

    def _first(self, index: int, execute: Tensor) -> Tensor:
        """The first decision about unit ``index`` (B, T); ``execute`` if this is the first."""
        if self.first_decisions is None:
            return execute
        return self.first_decisions.setdefault(index, execute)

    def _by_threshold(self, gate: Gate) -> Tensor:
        """Which tokens execute a unit (B, T), by its gate alone."""
        if gate.execute is not None:
            return gate.execute
        assert gate.value is not None
        if self.router.ties_execute:
            return gate.value >= self.router.threshold
        return gate.value > self.router.threshold


def decision_of(gate: Gate, execute: Tensor) -> Decision:
    """The decision about a unit, from its gate and from who executes it, ``execute`` (B, T)."""
    if isinstance(gate.scale, Tensor):
        return Decision(execute, gate.scale, gate.value)
    if gate.scale == "none":
        return Decision(execute, None, gate.value)
    assert gate.value is not None, "a gate that scales has a value"
    if gate.scale == "gate":
        return Decision(execute, torch.where(execute, gate.value, 1 - gate.value), gate.value)
    if gate.scale != "straight-through":
        raise ValueError(
            f"a gate's scale is {gate.scale!r}, must be a tensor, none, gate or straight-through"
        )
    # The value is 0 or 1, the gradient is that of the gate.
    hard = execute.to(gate.value.dtype) - gate.value.detach() + gate.value
    return Decision(execute, hard, hard, run_all=True)


def recompute_gate(
    router: Router,
    index: int,
    block_input: Tensor,
    post_attention: Tensor | None,
    state: Any,
    at: Context,
) -> tuple[Gate, Any]:
    """:meth:`Router.gate`, recomputed in the backward pass; the result is the same to the bit.

    Until then only its arguments and the new parts of the state are stored. For HeRo with M = 64
    and D = 4096 these are half a KB per token and unit; a gate that is not recomputed stores 58 KB.
    """

    def run(before: Any, hidden: Tensor, states: Tensor | None) -> tuple[Gate, Any]:
        gate, after = router.gate(index, hidden, states, before, at)
        return gate, copy_parts(after, before, hidden, states)

    result: tuple[Gate, Any] = recompute(run, state, block_input, post_attention)
    return result
