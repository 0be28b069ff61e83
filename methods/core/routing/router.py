"""What a routing method gives to the core: its units, and a router that gates them per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from methods.core.model.backbone import (
    attention,
    attention_norm,
    count,
    ffn,
    layers,
    norm_behind,
)
from methods.core.routing.dispatch import Branch

Kind = Literal["attention", "ffn", "block", "evicting"]
Change = Callable[[Tensor], Tensor]


class Unit(NamedTuple):
    """A part of the backbone that a token may skip.

    ``layer`` is 0-based; ``parameters`` counts the dense parameters that do not run when skipped.
    ``kind``:
        ``"attention"``: a token that skips it still leaves its key and value for later tokens.
        ``"ffn"``: the feed-forward network.
        ``"block"``: the whole layer; a token that skips it still leaves its key and value.
        ``"evicting"``: the whole layer; a token that skips it leaves nothing, so no later token
        reads it there.
    """

    layer: int
    kind: Kind
    parameters: int


class Gate(NamedTuple):
    """What a router says about one unit; each tensor is (B, T).

    A router returns ``value``, ``execute`` or both. With ``execute`` these decisions hold. Without
    it the core decides: a token executes the unit if its value reaches the router's ``threshold``,
    or exceeds it where ties skip (``ties_execute``).

    ``value`` is the gate, in [0, 1], which penalties see; None: ``execute`` decides, and no penalty
        sees this unit, as in inference or in a method that trains nothing.
    ``scale`` says what multiplies the update:
        ``"none"``: nothing.
        ``"gate"``: the gate for tokens that execute the unit; one minus the gate for tokens that
            skip it, whose update is that of the alternative.
        ``"straight-through"``: one for tokens that execute the unit, zero for the others, with the
            gradient of the gate. The unit then runs for every token, and penalties see this scale.
        a tensor: these factors.
    ``execute``, bool: the decisions of a router that decides by itself: by another rule than the
        threshold, with noise in training, or on logits (``decide_gates``).
    """

    value: Tensor | None = None
    scale: Literal["none", "gate", "straight-through"] | Tensor = "none"
    execute: Tensor | None = None


class Tokens(NamedTuple):
    """The tokens of one forward pass; each tensor is (B, T).

    ``ids`` are token ids, None where the call has embeddings in their place. ``positions`` count
    the tokens of a document from 0, without pads; training packs documents into one row, so they
    start at 0 again in it. ``valid`` is False on pads where the call has a mask; without one, as in
    training and calibration, pads on the right count as tokens.
    """

    ids: Tensor | None
    positions: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Context:
    """What a router may use beside the tokens of a forward pass.

    Args:
        progress: Of training, in [0, 1]; 1 outside training.
        generator: Of the noise of this pass; None outside training.
        answers: Weight (B, T) of each answer token, 0 on prompt tokens; None where it is not known
            which tokens are answer tokens.
    """

    progress: float = 1.0
    generator: torch.Generator | None = None
    answers: Tensor | None = None


class Router(nn.Module, ABC):
    """Gives each token a gate for each unit, and holds every parameter that routing adds.

    The core asks for the gates in the order of ``units``, which is that in which they run, and
    hands the router's state on from one to the next. It applies the scales, and it recomputes gates
    and layers. It compares a gate with the threshold only if the router returns no decisions (see
    :class:`Gate`). A module of the backbone that the router reads must be no submodule of it: in a
    tuple it is none.
    """

    units: Sequence[Unit]
    # The gate value from which a unit runs. A router that sets it is calibrated to the budget. A
    # router that returns decisions compares with it itself.
    threshold: float
    # Whether a gate that equals the threshold executes.
    ties_execute: ClassVar[bool] = True
    # Whether a gate stores so much for the backward pass that a GPU recomputes it instead.
    heavy: ClassVar[bool] = False
    # Whether all layers use the same matrices, which then run once per layer.
    shared: ClassVar[bool] = False

    @property
    def reads_kinds(self) -> bool:
        """Whether it reads ``Context.answers``; only then scoring marks the answer tokens."""
        return False

    @property
    def by_kernels(self) -> bool:
        """Whether kernels decide a step of decoding on a GPU; else each operation is a launch."""
        return False

    @property
    def evicts(self) -> bool:
        """Whether a token that skips a unit leaves no key and value there."""
        return any(unit.kind == "evicting" for unit in self.units)

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Any:
        """The state before the first unit; ``hidden`` (B, T, D) are the embeddings.

        The state belongs to one forward pass. It is a tensor, None, or a tuple of these; a large
        tensor that follows from others may be ``Derived``. If nothing is trained it may be any
        object. Noise is drawn here, from ``at.generator``, and never in a gate: a gate may be
        recomputed, and would then draw other noise. The default has none.
        """
        return None

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
            index: Place of the unit in ``units``.
            block_input: Hidden states at the layer's input (B, T, D).
            post_attention: Post-attention states (B, T, D) for an FFN unit; None for the others,
                which are decided before attention runs.
            state: Result of ``start`` or of the previous call.
            at: Training progress, and which tokens are answer tokens.
        """

    def alternative(self, index: int) -> Branch | None:
        """What runs in place of the FFN unit ``index``, (n, D) to (n, D); None: nothing."""
        return None

    def alternatives(self) -> list[nn.Module]:
        """The alternatives that are modules, each once."""
        branches = map(self.alternative, range(len(self.units)))
        return list({id(b): b for b in branches if isinstance(b, nn.Module)}.values())

    def _apply(self, fn: Change, recurse: bool = True) -> Router:
        """Convert and move; alternatives get the backbone's dtype, the rest stays in 32 bits."""
        for branch in self.alternatives():
            branch._apply(fn)
        super()._apply(without_narrowing(fn), recurse)
        return self


def without_narrowing(change: Change) -> Change:
    """The same change, but no number of 32 bits or more becomes narrower than 32 bits.

    Args:
        change: A conversion or a move that a module applies to its tensors.
    """

    def move(tensor: Tensor) -> Tensor:
        after = change(tensor)
        narrow = after.is_floating_point() and after.element_size() < min(4, tensor.element_size())
        return tensor.to(after.device) if narrow else after

    return move


def ffn_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The feed-forward networks of the layers ``which``, with the norm of what they add."""
    parts = [(n, layers(model)[n]) for n in which]
    return [Unit(n, "ffn", count(ffn(layer), norm_behind(layer, "ffn"))) for n, layer in parts]


def attention_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The attention of the layers ``which``, without keys and values, which always run."""
    units = []
    for number in which:
        layer = layers(model)[number]
        heads, behind = attention(layer), norm_behind(layer, "attention")
        size = count(heads, behind) - _key_value_parameters(heads)
        units.append(Unit(number, "attention", size))
    return units


def module_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """Attention and FFN of the layers ``which``, in the order in which they run."""
    pairs = zip(attention_units(model, which), ffn_units(model, which), strict=True)
    return [unit for pair in pairs for unit in pair]


def block_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The layers ``which`` as a whole, without input norm, keys and values, which always run."""
    units = []
    for number in which:
        layer = layers(model)[number]
        always = count(attention_norm(layer)) + _key_value_parameters(attention(layer))
        units.append(Unit(number, "block", count(layer) - always))
    return units


def evicting_units(model: nn.Module, which: Sequence[int]) -> list[Unit]:
    """The layers ``which`` with all their parameters: a skipped token leaves nothing there."""
    return [Unit(n, "evicting", count(layers(model)[n])) for n in which]


UNITS: Mapping[Kind, Callable[[nn.Module, Sequence[int]], list[Unit]]] = {
    "attention": attention_units,
    "ffn": ffn_units,
    "block": block_units,
    "evicting": evicting_units,
}


def check_units(model: nn.Module, units: Iterable[Unit]) -> None:
    """Hold the parameters of units against the backbone, before anything is added to it.

    Raises:
        ValueError: A unit counts other parameters than its kind has in its layer, or there is no
            such kind or layer.
    """
    for unit in units:
        if unit.kind not in UNITS or unit.layer not in range(len(layers(model))):
            raise ValueError(
                f"a unit is of kind '{unit.kind}' in layer {unit.layer}, kinds are "
                f"{', '.join(UNITS)}, layers 0 to {len(layers(model)) - 1}"
            )
        (counted,) = UNITS[unit.kind](model, [unit.layer])
        if unit.parameters != counted.parameters:
            raise ValueError(
                f"a unit of kind '{unit.kind}' in layer {unit.layer} counts {unit.parameters} "
                f"parameters, must be {counted.parameters}; make units by {unit.kind}_units"
            )


def _key_value_parameters(heads: nn.Module) -> int:
    """Parameters of an attention that make keys and values."""
    # Some families have a norm on their keys.
    names = [name for name in ("k_proj", "v_proj", "k_norm") if hasattr(heads, name)]
    return sum(count(getattr(heads, name)) for name in names)
