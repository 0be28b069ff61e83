"""HeRo's router for one new token of one sequence, on a CPU.

At one token the formulas are some forty operations of torch per block, and what they cost is
bookkeeping. Here two products are left, and some thirty operations of NumPy on the memory of the
tensors:

    [z ; l]                          =  wide hbar
    [q ; k ; answers v ; 1 ; n ; h]  =  (readers encoder) SiLU(y) + bias

Names as in ``methods/hero/folded.py``. The memory keeps ``answers v`` in place of v: c is a mean of
the v, and [n' ; h'] the same mean of these. The products stay torch's, whose threads a step fixes.
Vectors are float32, single numbers Python's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.api import Gate
from methods.hero.folded import Folded
from methods.kernels.hero.formulas import EPS, TEMPERATURE

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
        self.wide = folded.wide.detach()
        parts = [2 * self.memory, self.memory, len(folded.readers) - 3 * self.memory]
        asked, value, rest = folded.readers.split(parts)
        readers = torch.cat([asked, folded.answers @ value, rest])
        # W_v has no bias.
        asked, _, rest = folded.readers_bias.split(parts)
        bias = torch.cat([asked, torch.zeros_like(folded.answers_bias), rest])
        self.readers = (readers @ folded.encoder).detach()
        self.bias = _array(readers @ folded.encoder_bias + bias)
        self.answers_bias, self.novelty = _array(folded.answers_bias), _array(folded.novelty)
        self.path = None
        if folded.path is not None and folded.path_bias is not None:
            # The bias as a seventh feature that is one.
            self.path = _array(torch.cat([folded.path, folded.path_bias[:, None]], dim=1).T)
        self.local_bias = _array(folded.wide_bias[self.head :])
        self.heads, self.heads_bias = _array(folded.heads[:2]), folded.heads_bias[:2].tolist()
        self.decays, self.floor = _array(folded.decays), folded.floor.item() ** 2


class HostSteps:
    """The gates of one pass, block by block from the first, and what the token carries along."""

    def __init__(self, weights: HostWeights) -> None:
        self.weights, blocks = weights, len(weights.decays)
        # The memory's entries, oldest first: phi(k); answers v with a one behind it.
        self.keys = np.empty((blocks, weights.memory), np.float32)
        self.values = np.empty((blocks, len(weights.answers_bias) + 1), np.float32)
        # x_j and the one that carries its bias.
        self.path = np.array([0, 0, 0, 0, 1, 1, 1], np.float32)
        self.last: Array | None = None
        self.step: Array | None = None
        # Hidden layers: of the encoders of s_j, of both heads.
        self.inner = torch.empty(1, weights.readers.shape[1])
        self.hidden = torch.empty(1, 2 * weights.head)
        self.inner_row, self.hidden_row = self.inner.numpy()[0], self.hidden.numpy()[0]
        # Of every block: who executes, scale, gate.
        self.runs = np.empty((blocks, 1, 1), bool)
        self.scales, self.gates = np.empty((2, blocks, 1, 1), np.float32)
        runs, scales, gates = (
            torch.from_numpy(made).unbind() for made in (self.runs, self.scales, self.gates)
        )
        self.decisions = [Gate(*made) for made in zip(gates, scales, runs, strict=True)]

    def decide(self, index: int, hbar: Tensor, threshold: float) -> Gate:
        """Decide block j = ``index`` + 1 from hbar (1, 1, D)."""
        weights, path, hidden = self.weights, self.path, self.hidden_row
        rows = hbar[0].float()
        wide = linear(rows, weights.wide).numpy()[0]
        read = self._read(index, rows.numpy()[0], wide[: weights.head])
        hidden[: weights.head] = self._history(index, read)
        np.add(wide[weights.head :], weights.local_bias, out=hidden[weights.head :])
        silu(self.hidden, inplace=True)
        a, b = weights.heads.dot(hidden).tolist()
        a, b = a + weights.heads_bias[0], b + weights.heads_bias[1]
        path[4] = p = _sigmoid(a / TEMPERATURE)
        path[5] *= p
        gate = np.float32(_sigmoid(a + b))
        self.runs[index] = execute = gate >= threshold
        self.scales[index], self.gates[index] = gate if execute else 1 - gate, gate
        return self.decisions[index]

    def _read(self, index: int, hbar: Array, wide: Array) -> Array:
        """What reads s_j: query, key (M,), its answer, 1, W_n s_j (64,), the head's part (H,)."""
        weights, inner = self.weights, self.inner_row
        np.multiply(wide, 1 / math.sqrt(hbar.dot(hbar) + weights.floor), out=inner[: len(wide)])
        if weights.path is not None:
            if weights.variant != "no-position":
                self._follow(index, hbar)
            self.path.dot(weights.path, out=inner[len(wide) :])
        read: Array = linear(silu(self.inner, inplace=True), weights.readers).numpy()[0]
        read += weights.bias
        return read

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
        weights, memory, width = self.weights, self.weights.memory, len(self.weights.answers_bias)
        asked, value, own = read[: 2 * memory], read[2 * memory : -width], read[-width:]
        first: Array = own[-weights.head :]
        # ELU + 1.
        below = np.minimum(asked, 0)
        phi = np.exp(below) + (asked - below)
        if index > 0 and weights.variant != "no-memread":
            alike = self.keys[:index].dot(phi[:memory]) * weights.decays[index, :index]
            sums = alike.dot(self.values[:index])
            answer = sums[:-1] * (1 / (sums[-1] + EPS)) + weights.answers_bias
            known = _cosine(own[: -weights.head], answer[: -weights.head])
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
