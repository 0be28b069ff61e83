"""HeRo's router for one new token of one sequence, on a CPU.

At one token the formulas take some forty operations of torch per FFN, and nearly all of their
time goes to calls. Here two products are left, and some thirty operations of NumPy on the memory of
the tensors:

    [z ; l]                          =  wide hbar
    [q ; k ; answers v ; 1 ; n ; h]  =  (readers encoder) SiLU(y) + bias

Names are as in ``methods/hero/merged.py``. The memory holds ``answers v`` in place of v: c is a
mean of the v, and [n' ; h'] is the same mean of ``answers v``. Torch makes the two products, so
that its number of threads applies to them. Vectors are float32, single numbers are Python floats.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.api import Gate
from methods.hero.merged import Array, HostWeights
from methods.kernels.hero.formulas import EPS, TEMPERATURE


class HostSteps:
    """The gates of one pass, FFN by FFN from the first, and the state of its token."""

    def __init__(self, weights: HostWeights) -> None:
        self.weights, ffns = weights, len(weights.decays)
        # Entries of the memory, oldest first: phi(k); [answers v ; 1].
        self.keys = np.empty((ffns, weights.memory), np.float32)
        self.values = np.empty((ffns, len(weights.answers_bias) + 1), np.float32)
        # [x_j ; 1]: the one multiplies the bias.
        self.path = np.array([0, 0, 0, 0, 1, 1, 1], np.float32)
        self.last: Array | None = None
        self.step: Array | None = None
        # Hidden layers: of the encoders of s_j; of both heads.
        self.inner = torch.empty(1, weights.readers.shape[1])
        self.hidden = torch.empty(1, 2 * weights.head)
        self.inner_row, self.hidden_row = self.inner.numpy()[0], self.hidden.numpy()[0]
        # By FFN. The tensors of a Gate share the memory of these arrays.
        self.runs = np.empty((ffns, 1, 1), bool)
        self.scales, self.gates = np.empty((2, ffns, 1, 1), np.float32)
        runs, scales, gates = (
            torch.from_numpy(array).unbind() for array in (self.runs, self.scales, self.gates)
        )
        self.decisions = [Gate(*fields) for fields in zip(gates, scales, runs, strict=True)]

    def decide(self, index: int, hbar: Tensor, threshold: float) -> Gate:
        """Decide FFN j = ``index`` + 1 from hbar (1, 1, D)."""
        weights, path, hidden = self.weights, self.path, self.hidden_row
        rows = hbar[0].float()
        wide = linear(rows, weights.wide).numpy()[0]
        reading = self._read(index, rows.numpy()[0], wide[: weights.head])
        hidden[: weights.head] = self._history(index, reading)
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
        """What reads s_j: query, key (M,), answers v, 1, W_n s_j (64,), the head's part (H,)."""
        weights, inner = self.weights, self.inner_row
        np.multiply(wide, 1 / math.sqrt(hbar.dot(hbar) + weights.floor), out=inner[: len(wide)])
        if weights.path is not None:
            if weights.variant != "no-position":
                self._follow(index, hbar)
            self.path.dot(weights.path, out=inner[len(wide) :])
        reading: Array = linear(silu(self.inner, inplace=True), weights.readers).numpy()[0]
        reading += weights.bias
        return reading

    def _follow(self, index: int, hbar: Array) -> None:
        """Write j/R, 1 - j/R, ||delta_j|| and cos(delta_j, delta_{j-1}) into x_j."""
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

    def _history(self, index: int, reading: Array) -> Array:
        """The history head's hidden layer (H,); reads the memory and appends to it."""
        weights, memory, width = self.weights, self.weights.memory, len(self.weights.answers_bias)
        query_key, value = reading[: 2 * memory], reading[2 * memory : -width]
        own = reading[-width:]
        first: Array = own[-weights.head :]
        # ELU + 1.
        below = np.minimum(query_key, 0)
        phi = np.exp(below) + (query_key - below)
        if index > 0 and weights.variant != "no-memread":
            alike = self.keys[:index].dot(phi[:memory]) * weights.decays[index, :index]
            sums = alike.dot(self.values[:index])
            answer = sums[:-1] * (1 / (sums[-1] + EPS)) + weights.answers_bias
            similarity = _cosine(own[: -weights.head], answer[: -weights.head])
            first = first + answer[-weights.head :] - similarity * weights.novelty
        self.keys[index], self.values[index] = phi[memory:], value
        return first


def _cosine(a: Array, b: Array) -> float:
    """Cosine of two vectors, eps in the denominator."""
    return float(a.dot(b)) / (math.sqrt(a.dot(a)) * math.sqrt(b.dot(b)) + EPS)


def _sigmoid(x: float) -> float:
    small = math.exp(-abs(x))
    return (1.0 if x >= 0 else small) / (1.0 + small)
