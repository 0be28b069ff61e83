"""What a routing method gives to the core: units, and a router that decides them per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from methods.core.model.backbone import attention, attention_norm, count, ffn, layers
from methods.core.routing.dispatch import Branch

Kind = Literal["attention", "ffn", "block", "evicting"]
Change = Callable[[Tensor], Tensor]


class Unit(NamedTuple):
    """A part of the backbone that a token may skip.

    ``layer`` is 0-based; ``parameters`` counts the dense parameters that do not run when skipped.
    ``kind``:
        ``"attention"``: the token reads nothing, yet leaves its key and value for later tokens.
        ``"ffn"``: the feed-forward network.
        ``"block"``: the whole layer; key and value are left.
        ``"evicting"``: the whole layer; no later token sees the token there.
    """

    layer: int
    kind: Kind
    parameters: int


class Gate(NamedTuple):
    """What a router says about one unit, each (B, T).

    ``value`` is the gate, in [0, 1], which penalties see: the token executes where it reaches the
    router's ``threshold``. None where nothing is trained; then ``execute`` says who runs.
    ``scale`` says what multiplies the branch that runs:
        ``"none"``: nothing.
        ``"gate"``: the gate where the unit executes, one minus the gate where it is skipped and
            something else runs.
        ``"straight-through"``: one where the unit executes, zero where it is skipped, with the
            gradient of the gate. The unit then runs for every token; penalties see the same.
        factors (B, T), where it is none of these.
    ``execute``, bool: who executes, where another rule than the threshold decides.
    """

    value: Tensor | None = None
    scale: Literal["none", "gate", "straight-through"] | Tensor = "none"
    execute: Tensor | None = None


class Tokens(NamedTuple):
    """What is known of the tokens of one forward pass, each (B, T).

    ``ids`` are token ids (None when embeddings were given), ``positions`` count from 0 within a
    sequence whatever the padding, ``valid`` is False on pads.
    """

    ids: Tensor | None
    positions: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Context:
    """What a forward pass knows beside its tokens.

    Args:
        progress: Of training, in [0, 1]; 1 outside training.
        generator: Of the step's noise; None outside training.
        answers: Weight (B, T) of each position whose output is scored, 0 on prompts; None where
            nobody tells the two apart.
    """

    progress: float = 1.0
    generator: torch.Generator | None = None
    answers: Tensor | None = None


class Router(nn.Module, ABC):
    """Decides per token which units run. Holds every parameter that routing adds.

    A router says a gate for each unit, in the order of ``units``, and hands a state on from one to
    the next. Thresholds, scales and what runs again in the backward pass are the core's.
    """

    units: Sequence[Unit]
    # Where a gate executes; one that is there is calibrated to the budget.
    threshold: float
    # Whether a gate that equals the threshold executes.
    ties_execute: ClassVar[bool] = True
    # Whether a gate keeps more for the backward pass than on a GPU it is worth.
    heavy: ClassVar[bool] = False
    # Whether one set of matrices decides every unit, and so runs once for each.
    shared: ClassVar[bool] = False

    @property
    def evicts(self) -> bool:
        """Whether a token that skips a unit leaves no key and value there."""
        return any(unit.kind == "evicting" for unit in self.units)

    @abstractmethod
    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Any:
        """The routing state before the first unit; ``hidden`` (B, T, D) are the embeddings.

        The state is a tensor, None, or a tuple of such (large ones that follow from others may be
        ``Derived``), or, where nothing is trained, any object: one forward pass owns it. Noise is
        drawn here, from ``at.generator``, and never in a gate.
        """

    @abstractmethod
    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """The gate of unit ``index``, and the state for the next one.

        Args:
            index: Position in ``units``.
            block_input: Residual stream at the layer's input (B, T, D).
            post_attention: Residual stream behind attention (B, T, D) for an FFN unit; None for
                the others, which are decided before attention runs.
            state: What ``start`` or the previous call returned.
            at: Training progress, and which tokens are answer tokens.
        """

    def alternative(self, index: int) -> Branch | None:
        """What runs instead of the FFN unit ``index``, (n, D) to (n, D); None means nothing."""
        return None

    def alternatives(self) -> list[nn.Module]:
        """The modules among what runs instead of a unit."""
        branches = map(self.alternative, range(len(self.units)))
        return [branch for branch in branches if isinstance(branch, nn.Module)]

    def _apply(self, fn: Change, recurse: bool = True) -> Router:
        """Convert and move: alternatives follow the backbone, what decides stays in 32 bits."""
        for branch in self.alternatives():
            branch._apply(fn)
        super()._apply(without_narrowing(fn), recurse)
        return self


def without_narrowing(change: Change) -> Change:
    """What moves tensors as ``change`` does, yet leaves numbers of 32 bits and more as they are.

    Args:
        change: A conversion or a move, as modules apply to their tensors.
    """

    def move(tensor: Tensor) -> Tensor:
        after = change(tensor)
        narrow = after.is_floating_point() and after.element_size() < min(4, tensor.element_size())
        return tensor.to(after.device) if narrow else after

    return move


def ffn_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The feed-forward networks of the layers ``which``."""
    return [Unit(n, "ffn", count(ffn(layers(model)[n]))) for n in which]


def attention_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The attention of the layers ``which``: queries and output; keys and values always run."""
    units = []
    for number in which:
        heads = attention(layers(model)[number])
        units.append(Unit(number, "attention", count(heads) - _kept(heads)))
    return units


def module_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """Attention and FFN of the layers ``which``, in the order in which they run."""
    pairs = zip(attention_units(model, which), ffn_units(model, which), strict=True)
    return [unit for pair in pairs for unit in pair]


def block_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The layers ``which`` as a whole: all but the input norm, keys and values can be skipped."""
    units = []
    for number in which:
        layer = layers(model)[number]
        kept = count(attention_norm(layer)) + _kept(attention(layer))
        units.append(Unit(number, "block", count(layer) - kept))
    return units


def evicting_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The layers ``which`` with all their parameters: a skipped token leaves nothing there."""
    return [Unit(n, "evicting", count(layers(model)[n])) for n in which]


def _kept(heads: nn.Module) -> int:
    """Parameters of an attention that make keys and values."""
    # Qwen3 norms its keys; the key norm runs with them.
    names = [name for name in ("k_proj", "v_proj", "k_norm") if hasattr(heads, name)]
    return sum(count(getattr(heads, name)) for name in names)
