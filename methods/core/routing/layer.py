"""One decoder layer whose units tokens may skip.

A unit has an update: what it adds to the hidden states. For each unit the router decides which
tokens execute it; their update, times its scale, is added. For a token that skips the unit the
update is that of the alternative, or zero.

The work is done in one of three ways, all with the same result up to rounding:

- one token on a CPU: the host reads the decision and runs what it says, nothing else;
- many tokens: tokens that execute are gathered, run together and put back in place;
- a capturable step (``Call.capturable``): kernels look at the decisions on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from methods.core.model.backbone import (
    attention,
    attention_norm,
    ffn,
    ffn_norm,
    finish,
    is_finished,
)
from methods.core.routing.attend import attend, attend_static
from methods.core.routing.decisions import Decider, Decision
from methods.core.routing.dispatch import Branch, apply_scale, dispatch, dispatch_masked
from methods.core.routing.eviction import run_evicting
from methods.core.routing.router import Kind, Router, Unit
from methods.kernels.choose import MOST_ROWS, available, one_token
from methods.kernels.decode import decode_fused, kernels_run
from methods.kernels.operands import branches

# The decision about a unit of the layer; FFN units also take the post-attention states.
Decide = Callable[[Kind, Tensor | None], Decision]


class Call(NamedTuple):
    """What the layers of one forward pass share.

    ``capturable`` as in :class:`methods.core.routing.inputs.Options`; ``valid`` (B, T)
    is False on pads; ``arguments`` go to every layer.
    """

    decider: Decider
    capturable: bool
    valid: Tensor
    arguments: dict[str, Any]


class RoutedLayer(NamedTuple):
    """A decoder layer with routed units.

    ``number`` is its 0-based place; ``units`` maps the kind of each routed unit to its place among
    the units of ``router``.
    """

    module: nn.Module
    number: int
    units: Mapping[Kind, int]
    router: Router

    def run(
        self, state: Any, hidden: Tensor, call: Call
    ) -> tuple[Tensor, dict[int, Decision], Any]:
        """Run the layer on hidden states (B, T, D).

        Returns:
            Hidden states after the layer, decisions by unit, and the router's next state. Decisions
            are returned, not stored in ``call``: where the layer is recomputed, the backward pass
            must see their gates as outputs of this call.
        """
        decisions: dict[int, Decision] = {}

        def decide(kind: Kind, post_attention: Tensor | None) -> Decision:
            nonlocal state
            index = self.units[kind]
            decisions[index], state = call.decider.decide(index, hidden, post_attention, state)
            return decisions[index]

        if one_token(hidden) and not call.capturable and "evicting" not in self.units:
            after = self._run_one_token(hidden, decide, call)
        elif "block" in self.units or "evicting" in self.units:
            after = self._run_whole(hidden, decide, call)
        else:
            after = self._run_sublayers(hidden, decide, call)
        return after, decisions, state

    def _run_sublayers(self, hidden: Tensor, decide: Decide, call: Call) -> Tensor:
        """Attention and FFN, of which either or both are units."""
        decision = decide("attention", None) if "attention" in self.units else None
        update = self._attend(hidden, decision, call)
        post_attention = hidden + (update if decision is None else _apply_gate(update, decision))
        branch, rows = self._ffn(), ffn_norm(self.module)(post_attention)
        if "ffn" not in self.units:
            return post_attention + branch(rows)
        decision = decide("ffn", post_attention)
        alternative = self.router.alternative(self.units["ffn"])
        return add_ffn(post_attention, rows, decision, branch, alternative, call.capturable)

    def _run_whole(self, hidden: Tensor, decide: Decide, call: Call) -> Tensor:
        """A layer that is one unit."""
        evicts = "evicting" in self.units
        decision = decide("evicting" if evicts else "block", None)
        if evicts and not call.capturable:
            return run_evicting(
                self.module, self.number, hidden, call.valid, decision, call.arguments
            )
        update = self._attend(hidden, decision, call)
        rows = ffn_norm(self.module)(hidden + update)
        # The scale multiplies the update of the whole layer, so the FFN runs without one.
        unscaled = Decision(decision.execute, run_all=decision.run_all)
        update = add_ffn(update, rows, unscaled, self._ffn(), None, call.capturable)
        return hidden + _apply_gate(update, decision)

    def _attend(self, hidden: Tensor, decision: Decision | None, call: Call) -> Tensor:
        """The update of attention (B, T, D), right for the tokens that execute it."""
        heads, normed = attention(self.module), attention_norm(self.module)(hidden)
        if decision is None or decision.run_all:
            output: Tensor = heads(hidden_states=normed, **call.arguments)[0]
        else:
            run = attend_static if call.capturable else attend
            output = run(heads, normed, decision.execute, call.arguments)
        return finish(self.module, "attention", output)

    def _ffn(self) -> Branch:
        """The FFN as a map from its normed input to its update; the module itself if it is that."""
        network = ffn(self.module)
        if is_finished(self.module):
            return network
        return lambda rows: finish(self.module, "ffn", network(rows))

    def _run_one_token(self, hidden: Tensor, decide: Decide, call: Call) -> Tensor:
        """The layer for one token: the host reads each decision and runs only what it says."""
        whole = decide("block", None) if "block" in self.units else None
        attending = decide("attention", None) if "attention" in self.units else whole
        network, norm = self._ffn(), ffn_norm(self.module)
        heads, normed = attention(self.module), attention_norm(self.module)(hidden)
        update: Tensor | None = None
        if attending is None or _executes(attending):
            output = heads(hidden_states=normed, **call.arguments)[0]
            update = finish(self.module, "attention", output)
        else:
            # Later tokens need the token's key and value; the update that comes back is zero.
            attend(heads, normed, attending.execute, call.arguments)
        if whole is not None:
            if update is None:
                return hidden
            return _add(hidden, update + network(norm(hidden + update)), whole)
        post_attention = hidden if update is None else _add(hidden, update, attending)
        decision = decide("ffn", post_attention) if "ffn" in self.units else None
        branch: Branch | None = network
        if decision is not None and not _executes(decision):
            branch = self.router.alternative(self.units["ffn"])
        if branch is None:
            return post_attention
        return _add(post_attention, branch(norm(post_attention)), decision)


def units_by_layer(units: Sequence[Unit], layer_count: int) -> dict[int, dict[Kind, int]]:
    """Layer -> kind -> place in ``units``.

    Raises:
        ValueError: A layer does not exist or carries units that overlap, units are not in the order
            in which they run, or the first layer evicts.
    """
    table: dict[int, dict[Kind, int]] = {}
    for index, unit in enumerate(units):
        if not 0 <= unit.layer < layer_count:
            raise ValueError(f"a unit is of layer {unit.layer}, layers are 0 to {layer_count - 1}")
        others = table.setdefault(unit.layer, {})
        if unit.kind in others or (others and {unit.kind, *others} != {"attention", "ffn"}):
            raise ValueError(f"layer {unit.layer} carries more than one routed unit")
        if unit.kind == "evicting" and unit.layer == 0:
            raise ValueError("the first layer cannot evict: its cache counts the tokens")
        others[unit.kind] = index
    order = [(unit.layer, unit.kind == "ffn") for unit in units]
    if order != sorted(order):
        raise ValueError("units must be in the order in which they run: by layer, attention first")
    return table


def _executes(decision: Decision) -> bool:
    """Whether the only token executes the unit."""
    return decision.run_all or bool(decision.execute)


def _add(base: Tensor, update: Tensor, decision: Decision | None) -> Tensor:
    """Hidden states after a unit that the only token executed."""
    return base + (update if decision is None else apply_scale(update, decision.scale))


def _apply_gate(update: Tensor, decision: Decision) -> Tensor:
    """An update (B, T, D) that was computed for all tokens: scaled, zero where it is skipped."""
    if not decision.run_all:
        update = torch.where(decision.execute[..., None], update, 0)
    return apply_scale(update, decision.scale)


def add_ffn(
    base: Tensor,
    rows: Tensor,
    decision: Decision,
    network: Branch,
    alternative: Branch | None,
    capturable: bool,
) -> Tensor:
    """``base`` (B, T, D) plus the update of a routed FFN; in decoding by kernels where they run.

    Args:
        base: What the update is added to.
        rows: Inputs of the FFN (B, T, D).
        decision: Which tokens execute it.
        network: The FFN. Kernels compute it only if it is a module, a plain SwiGLU.
        alternative: What runs where it is skipped; None: nothing.
        capturable: Whether the host must not look at the decision. Without kernels for the FFN both
            branches then run for all tokens.
    """
    flat, execute, scale = _flatten(rows, decision)
    # A few rows of a decoding step have kernels, which know no gradients.
    few = len(flat) <= MOST_ROWS and not torch.is_grad_enabled() and not decision.run_all
    weights = None
    if few and (capturable or available(rows)) and isinstance(network, nn.Module):
        weights = branches(network, alternative)
    if weights is not None and (capturable or kernels_run(rows, weights.ffn)):
        after = decode_fused(flat, execute, *weights, scale, base.reshape(flat.shape))
        return after.reshape(base.shape)
    if capturable:
        update = dispatch_masked(flat, execute, network, alternative, scale)
        return base + update.reshape(rows.shape)
    if decision.run_all:
        return base + apply_scale(network(rows), decision.scale)
    return base + dispatch(flat, execute, network, alternative, scale).reshape(rows.shape)


def _flatten(rows: Tensor, decision: Decision) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows (N, D), decisions (N,) and scales (N,) of all tokens, N = B T."""
    scale = None if decision.scale is None else decision.scale.reshape(-1)
    return rows.reshape(-1, rows.shape[-1]), decision.execute.reshape(-1), scale
