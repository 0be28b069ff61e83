"""HeRo's router for one new token of one sequence, on a CPU.

At one token the formulas are some forty operations of torch per block, and what they cost is
bookkeeping. Here three products are left, and some thirty operations of NumPy on the memory of the
tensors:

    [z ; l]                  =  wide hbar
    [q ; k ; v ; 1 ; n ; h]  =  (readers encoder) SiLU(y) + bias
    [n' ; h']                =  answers c + bias

Names as in ``methods/hero/folded.py``. The products stay torch's, whose threads a step fixes.
Vectors are float32, single numbers Python's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.core.routing.router import Decision
from methods.hero.folded import Folded
from methods.hero.heads import TEMPERATURE
from methods.hero.memory import EPS

Array = NDArray[np.float32]


class HostWeights:
    """The weights of a router with history, packed.

    Args:
        folded: As a pass puts them together, float32 on the CPU; copied.
        variant: Of the router.
    """

    def __init__(self, folded: Folded, variant: str) -> None:
        self.variant = variant
        self.head, self.memory = len(folded.novelty), folded.answers.shape[1]
        self.merged = folded.wide.detach()
        self.answers, self.answers_bias = folded.answers.detach(), _array(folded.answers_bias)
        self.readers = (folded.readers @ folded.encoder).detach()
        bias = folded.readers @ folded.encoder_bias + folded.readers_bias
        self.bias, self.novelty = _array(bias), _array(folded.novelty)
        self.path = None
        if folded.path is not None and folded.path_bias is not None:
            # The bias as a seventh feature that is one.
            self.path = _array(torch.cat([folded.path, folded.path_bias[:, None]], dim=1).T)
        self.local_bias = _array(folded.wide_bias[self.head :])
        self.history_out = _array(folded.heads[0, : self.head])
        self.local_out = _array(folded.heads[1, self.head :])
        self.history_last, self.local_last = folded.heads_bias[:2].tolist()
        self.decays, self.floor = _array(folded.decays), folded.floor.item()


class HostSteps:
    """The gates of one pass, block by block from the first, and what the token carries along."""

    def __init__(self, weights: HostWeights) -> None:
        self.weights, blocks = weights, len(weights.decays)
        # The memory's entries, oldest first: phi(k), v with a one behind it.
        self.keys = np.empty((blocks, weights.memory), np.float32)
        self.values = np.empty((blocks, weights.memory + 1), np.float32)
        # x_j and the one that carries its bias.
        self.path = np.array([0, 0, 0, 0, 1, 1, 1], np.float32)
        self.last: Array | None = None
        self.step: Array | None = None
        # Hidden layers: of the encoders of s_j, of both heads.
        self.inner = torch.empty(1, weights.readers.shape[1])
        self.hidden = torch.empty(1, 2 * weights.head)
        # Who executes, scale, gate.
        shape = (blocks, 1, 1)
        self.decided = (
            np.empty(shape, bool),
            np.empty(shape, np.float32),
            np.empty(shape, np.float32),
        )

    def decide(self, index: int, hbar: Tensor, threshold: float) -> Decision:
        """Decide block j = ``index`` + 1 from hbar (1, 1, D)."""
        weights, path, head = self.weights, self.path, self.weights.head
        rows, hidden = hbar[0].float(), self.hidden.numpy()[0]
        wide = linear(rows, weights.merged).numpy()[0]
        hidden[:head] = self._history(index, self._read(index, rows.numpy()[0], wide[:head]))
        np.add(wide[head:], weights.local_bias, out=hidden[head:])
        silu(self.hidden, inplace=True)
        a = float(hidden[:head].dot(weights.history_out)) + weights.history_last
        b = float(hidden[head:].dot(weights.local_out)) + weights.local_last
        path[4] = p = _sigmoid(a / TEMPERATURE)
        path[5] *= p
        gate = np.float32(_sigmoid(a + b))
        runs, scales, gates = self.decided
        runs[index] = execute = gate >= threshold
        scales[index], gates[index] = gate if execute else 1 - gate, gate
        made = [torch.from_numpy(each[index]) for each in self.decided]
        return Decision(made[0], made[1], made[2])

    def _read(self, index: int, hbar: Array, wide: Array) -> Array:
        """What reads s_j: query, key (M,), value (M + 1,), W_n s_j (64,), the head's part (H,)."""
        weights, inner = self.weights, self.inner.numpy()[0]
        size = math.hypot(math.sqrt(hbar.dot(hbar)), weights.floor)
        np.divide(wide, size, out=inner[: weights.head])
        if weights.path is not None:
            if weights.variant != "no-position":
                self._follow(index, hbar)
            self.path.dot(weights.path, out=inner[weights.head :])
        read = linear(silu(self.inner, inplace=True), weights.readers).numpy()[0]
        return read + weights.bias

    def _follow(self, index: int, hbar: Array) -> None:
        """Position, its rest, ||delta_j|| and cos(delta_j, delta_{j-1}) into x_j."""
        path = self.path
        path[0] = position = (index + 1) / len(self.weights.decays)
        path[1] = 1 - position
        if self.last is not None:
            delta = hbar - self.last
            size = math.sqrt(delta.dot(delta))
            if self.step is not None:
                path[3] = delta.dot(self.step) / (size * float(path[2]) + EPS)
            path[2], self.step = size, delta
        self.last = hbar

    def _history(self, index: int, read: Array) -> Array:
        """The history head's hidden layer (H,); reads the memory and appends to it."""
        weights, memory = self.weights, self.weights.memory
        query_key, value = read[: 2 * memory], read[2 * memory : 3 * memory + 1]
        expected, first = read[len(query_key) + len(value) : -weights.head], read[-weights.head :]
        # ELU + 1.
        phi = np.exp(np.minimum(query_key, 0)) + np.maximum(query_key, 0)
        if index > 0 and weights.variant != "no-memread":
            alike = self.keys[:index].dot(phi[:memory]) * weights.decays[index, :index]
            sums = alike.dot(self.values[:index])
            context = torch.from_numpy(sums[:-1] / (sums[-1] + EPS))
            answer = linear(context[None], weights.answers).numpy()[0] + weights.answers_bias
            known = _cosine(expected, answer[: -weights.head])
            first = first + answer[-weights.head :] - known * weights.novelty
        self.keys[index], self.values[index] = phi[memory:], value
        return first


def _array(weight: Tensor) -> Array:
    """A copy, contiguous."""
    return np.array(weight.detach().numpy(), order="C")


def _cosine(a: Array, b: Array) -> float:
    """Cosine of two vectors, eps in the denominator."""
    return float(a.dot(b)) / (math.sqrt(a.dot(a)) * math.sqrt(b.dot(b)) + EPS)


def _sigmoid(x: float) -> float:
    small = math.exp(-abs(x))
    return (1.0 if x >= 0 else small) / (1.0 + small)
