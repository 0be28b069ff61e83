"""Recomputation: parts of a forward pass that the backward pass runs again, to save memory.

A part that is recomputed stores its inputs and frees everything else. One of the inputs is the
router's state, which can be large too. So a state exists in two forms. The full form holds every
tensor. The reduced form leaves out tensors that follow from others (:class:`Derived`). The forward
pass computes with the full form and stores the reduced one; the backward pass starts from the
reduced form and computes the rest again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class Derived:
    """A tensor in a router's state that follows from other tensors, which are stored anyway.

    Its reduced form holds no value. Without gradients nothing is recomputed, so the arguments are
    not stored.

    Args:
        function: Computes the tensor.
        of: Arguments of the function.
        value: The tensor; None: it is computed when it is needed.
    """

    def __init__(
        self, function: Callable[..., Tensor], *of: Tensor, value: Tensor | None = None
    ) -> None:
        self._function, self._value = function, value
        self._of = of if torch.is_grad_enabled() else ()

    def get(self) -> Tensor:
        """The tensor, computed now if there is no value."""
        return self._function(*self._of) if self._value is None else self._value

    def reduced(self) -> Derived:
        """The same tensor in its reduced form."""
        return Derived(self._function, *self._of)


def recompute(
    function: Callable[..., Any], state: Any, *arguments: Any, preserve_rng_state: bool = True
) -> Any:
    """``function(state, *arguments)``, recomputed in the backward pass.

    Args:
        function: What to run; its first call gets the full state, later calls the reduced one.
        state: Of the router, full.
        arguments: Further arguments of the function.
        preserve_rng_state: Whether the function draws random numbers.
    """
    reduced = _mapped(lambda part: part.reduced() if isinstance(part, Derived) else part, state)
    # The full state is popped by the first call, so that nothing holds it until the backward pass.
    states = [reduced, state]

    def run(*inputs: Any) -> Any:
        return function(states.pop() if len(states) > 1 else reduced, *inputs)

    return checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=preserve_rng_state)


def copy_parts(state: Any, *before: Any) -> Any:
    """The state, where new views of larger tensors are copied.

    A view holds the whole memory of the tensor that it is a part of.

    Args:
        state: Tensors, tuples of them and other values.
        before: Values that existed before, and that are stored anyway.
    """
    known = set[int]()
    _mapped(lambda part: known.add(id(part)), before)

    def copied(part: Any) -> Any:
        if not isinstance(part, Tensor) or id(part) in known or not part._is_view():
            return part
        return part.clone() if part.untyped_storage().nbytes() > part.nbytes else part

    return _mapped(copied, state)


def _mapped(function: Callable[[Any], Any], part: Any) -> Any:
    """The result of the function for every part of a state, at any depth of its tuples."""
    if not isinstance(part, tuple):
        return function(part)
    parts = [_mapped(function, each) for each in part]
    return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)
