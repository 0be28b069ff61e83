"""Parts of a forward pass that run again in the backward pass, and what they keep until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class Derived:
    """A tensor of a router's state that follows from others, which are kept in any case.

    Until a layer runs again its state keeps those others alone. Without gradients nothing runs
    again, and they are let go.

    Args:
        function: Makes the tensor.
        of: Its arguments.
        value: What it has made; None: not yet.
    """

    def __init__(
        self, function: Callable[..., Tensor], *of: Tensor, value: Tensor | None = None
    ) -> None:
        self._function, self._value = function, value
        self._of = of if torch.is_grad_enabled() else ()

    def get(self) -> Tensor:
        """The tensor."""
        return self._function(*self._of) if self._value is None else self._value

    def reduced(self) -> Derived:
        """Without the value."""
        return Derived(self._function, *self._of)


def recompute(
    function: Callable[..., Any], state: Any, *arguments: Any, preserve_rng_state: bool = True
) -> Any:
    """``function(state, *arguments)``, whose insides the backward pass makes again.

    The first call makes the graph and takes the whole state along; later ones make values from the
    reduced state, which is all that is kept.
    """
    states = [_mapped(lambda part: part.reduced() if isinstance(part, Derived) else part, state)]
    states.append(state)

    def run(*given: Any) -> Any:
        return function(states.pop() if len(states) > 1 else states[0], *given)

    return checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=preserve_rng_state)


def copy_parts(state: Any, *before: Any) -> Any:
    """The state with copies of new tensors that would keep alive what they are a part of.

    Args:
        state: Tensors, tuples of them and others.
        before: What is not new.
    """
    known = set[int]()
    _mapped(lambda part: known.add(id(part)), before)

    def alone(part: Any) -> Any:
        if not isinstance(part, Tensor) or id(part) in known or not part._is_view():
            return part
        return part.clone() if part.untyped_storage().nbytes() > part.nbytes else part

    return _mapped(alone, state)


def _mapped(function: Callable[[Any], Any], part: Any) -> Any:
    """A state whose parts, however deep in tuples, went through the function."""
    if not isinstance(part, tuple):
        return function(part)
    parts = [_mapped(function, each) for each in part]
    return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)
