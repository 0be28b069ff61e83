"""Recomputation: the backward pass runs parts of the forward pass again, to save memory.

With param ``checkpointing`` whole layers are recomputed. Without it only gates are: on a GPU, if
their router is ``heavy``.

Such a part stores its inputs and frees everything else. One of the inputs is the router's state,
which can be large too. So a state has two forms. The full form has every tensor. The reduced form
leaves out tensors that follow from others (:class:`Derived`). The forward pass computes with the
full form and stores the reduced one. The backward pass starts from the reduced form and computes
the rest again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class Derived:
    """A tensor in a router's state that follows from other tensors, which are stored anyway.

    Its reduced form holds no value, only the function and its arguments. Without gradients nothing
    is recomputed, so the arguments are not stored either.

    Args:
        function: Computes the tensor.
        of: Arguments of the function.
        value: The tensor itself; None in the reduced form.
    """

    def __init__(
        self, function: Callable[..., Tensor], *of: Tensor, value: Tensor | None = None
    ) -> None:
        self._function, self._value = function, value
        self._of = of if torch.is_grad_enabled() else ()

    def get(self) -> Tensor:
        """The tensor, computed now if there is no value."""
        return self._function(*self._of) if self._value is None else self._value

    def reduce(self) -> Derived:
        """The same tensor in its reduced form."""
        return Derived(self._function, *self._of)


def recompute(function: Callable[..., Any], state: Any, *arguments: Any) -> Any:
    """``function(state, *arguments)``, recomputed in the backward pass.

    The function draws no random numbers from global generators, whose states are not kept.

    Args:
        function: The forward pass calls it with the full state, the backward pass with the reduced
            one.
        state: Of the router, full.
        arguments: Further arguments of the function.
    """
    reduced = _map_parts(lambda part: part.reduce() if isinstance(part, Derived) else part, state)
    # The forward pass takes the full state out of the list. So no reference to it is left until the
    # backward pass, and its memory is freed.
    states = [reduced, state]

    def run(*inputs: Any) -> Any:
        return function(states.pop() if len(states) > 1 else reduced, *inputs)

    return checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)


def copy_parts(state: Any, *before: Any) -> Any:
    """The state, with copies in place of new views of larger tensors.

    A view would keep the whole memory of the larger tensor.

    Args:
        state: Tensors, tuples of them and other values.
        before: Values that existed before, and that are stored anyway.
    """
    old = set[int]()
    _map_parts(lambda part: old.add(id(part)), before)

    def copy_view(part: Any) -> Any:
        if not isinstance(part, Tensor) or id(part) in old or not part._is_view():
            return part
        return part.clone() if part.untyped_storage().nbytes() > part.nbytes else part

    return _map_parts(copy_view, state)


def _map_parts(function: Callable[[Any], Any], part: Any) -> Any:
    """The result of the function for every part of a state, at any depth of its tuples."""
    if not isinstance(part, tuple):
        return function(part)
    parts = [_map_parts(function, each) for each in part]
    return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)
