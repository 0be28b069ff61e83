"""What HeRo's gates read of the residual stream: in plain PyTorch, or by kernels in training."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from methods.api import Derived
from methods.hero.heads import cosine
from methods.hero.memory import Memory
from methods.hero.merged import MergedWeights
from methods.kernels.hero.streams import read_streams

# A root has no slope at zero, so a smaller squared length counts as this one. Any delta that moves
# a float32 number is far longer.
LEAST = 1e-30


class PathState(NamedTuple):
    """What a token carries from FFN to FFN in one forward pass.

    ``weights`` of the pass; None without a history. ``p`` and ``m`` (B, T): the recorded score and
    its running product. ``last`` and ``step``: hbar_{j-1} and delta_{j-1} (B, T, D) in float32;
    ``distance`` (B, T): the length of delta_{j-1}; each None where there is none yet. ``streams``:
    hbar_{j-2} and hbar_{j-1} in the dtype of the model, while gradients flow.
    """

    weights: MergedWeights | None
    p: Tensor
    m: Tensor
    memory: Memory = Memory()
    last: Derived | None = None
    step: Derived | None = None
    distance: Tensor | None = None
    streams: tuple[Tensor, ...] = ()


class Reading(NamedTuple):
    """What a gate takes of the residual stream, in float32.

    ``local`` and ``hidden`` (B, T, H): inputs of SiLU in the local head and in the encoder of s_j.
    ``distance`` ||delta_j|| and ``bend`` cos(delta_j, delta_{j-1}), (B, T).
    """

    local: Tensor
    hidden: Tensor
    distance: Tensor
    bend: Tensor


def read_plainly(
    stream: Tensor, state: PathState, weights: MergedWeights
) -> tuple[Reading, PathState]:
    """Read hbar (B, T, D); the new state holds hbar and delta of this FFN."""
    hbar = stream.float()
    last = Derived(Tensor.float, stream, value=hbar)
    wide = linear(hbar, weights.wide, weights.wide_bias)
    hidden, local = wide.chunk(2, dim=-1)
    hidden = hidden / torch.hypot(hbar.norm(dim=-1, keepdim=True), weights.floor)
    if state.last is None:
        zeros = torch.zeros_like(state.p)
        return Reading(local, hidden, zeros, zeros), state._replace(last=last)
    step = hbar - state.last.get()
    distance = step.norm(dim=-1)
    if state.step is None or state.distance is None:
        bend = torch.zeros_like(distance)
    else:
        product = (step * state.step.get()).sum(-1)
        bend = cosine(product, distance, state.distance, weights.eps)
    delta = Derived(_delta, stream, *state.streams[-1:], value=step)
    after = state._replace(last=last, step=delta, distance=distance)
    return Reading(local, hidden, distance, bend), after


def read_by_kernels(stream: Tensor, state: PathState, weights: MergedWeights) -> Reading:
    """The same from the streams of this FFN and of the two before; each is read once."""
    streams = [each.flatten(0, 1).contiguous() for each in (*state.streams, stream)]
    projected, sums = read_streams(streams, weights.wide, weights.parts)
    wide = projected.unflatten(0, stream.shape[:2]) + weights.wide_bias
    hidden, local = wide.chunk(2, dim=-1)
    sums = sums.unflatten(0, stream.shape[:2])
    size, distance, _, distance_before = sums.clamp(min=LEAST).sqrt().unbind(-1)
    hidden = hidden / torch.hypot(size, weights.floor)[..., None]
    bend = cosine(sums[..., 2], distance, distance_before, weights.eps)
    return Reading(local, hidden, distance, bend)


def _delta(now: Tensor, before: Tensor) -> Tensor:
    """What was added to a stream, in float32."""
    return now.float() - before.float()
