"""HeRo's router for one new token of one sequence, on a CPU.

At one token the formulas are about a hundred small operations per block, and what they cost is
bookkeeping. Here the matrices are packed, so that three products and some thirty operations of
NumPy, on the memory of the tensors, are left:

    [z ; l] = [W_hd diag(w) ; W_local1] hbar
    r       = [E W_hu , E W_path2] SiLU([z / rms(hbar) ; W_path1 x_j + b_path1]) + bias
    answer  = [W_c ; W_hist1 on c] c_j

E holds all that read s_j: W_q, W_k, W_v, W_n and W_hist1 on s. The products stay torch's, whose
threads a step fixes. Vectors are float32, single numbers Python's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.core.routing.router import Decision
from methods.hero.memory import EPS

Array = NDArray[np.float32]


class HostWeights:
    """The weights of a router with history, packed.

    Args:
        weights: By the names of the formulas, float32 on the CPU; copied.
        eps: Of the RMSNorm.
        temperature: Of the recorded score.
        variant: Of the router.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], eps: float, temperature: float, variant: str
    ) -> None:
        named = {name: weight.detach() for name, weight in weights.items()}
        self.eps, self.temperature, self.variant = eps, temperature, variant
        self.head, self.width = named["W_hd"].shape
        self.memory, self.state = named["W_q"].shape
        self.merged = torch.cat([named["W_hd"] * named["rms_w"], named["local_W1"]])
        history = named["hist_W1"].split([self.state, self.memory, 1], dim=1)
        self.of_context = torch.cat([named["W_c"], history[1]])
        self.of_novelty = _array(history[2][:, 0])
        readers = torch.cat([*(named[f"W_{kind}"] for kind in "qkvn"), history[0]])
        unbiased = readers.new_zeros(len(readers) - self.head)
        bias = torch.cat([unbiased, named["hist_b1"]])
        up = len(named["W_hu"])
        self.readers, self.path = readers[:, :up] @ named["W_hu"], None
        if variant != "no-aux":
            # The bias as a seventh feature that is one.
            self.path = _array(torch.cat([named["path_W1"], named["path_b1"][:, None]], dim=1).T)
            of_path = readers[:, up:]
            self.readers = torch.cat([self.readers, of_path @ named["path_W2"]], dim=1)
            bias = bias + of_path @ named["path_b2"]
        self.bias = _array(bias)
        self.local_bias = _array(named["local_b1"])
        self.history_out, self.local_out = (_array(named[f"{n}_W2"][0]) for n in ("hist", "local"))
        self.history_last, self.local_last = (named[f"{n}_b2"].item() for n in ("hist", "local"))
        self.rho = _array(torch.sigmoid(named["eta"]))


class HostSteps:
    """The gates of one pass, block by block from the first, and what the token carries along."""

    def __init__(self, weights: HostWeights) -> None:
        self.weights, blocks = weights, len(weights.rho)
        # The memory's entries, oldest first: phi(k), v with a one behind it, the decay since.
        self.keys = np.empty((blocks, weights.memory), np.float32)
        self.values = np.ones((blocks, weights.memory + 1), np.float32)
        self.decays = np.ones(blocks, np.float32)
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
        path[4] = p = _sigmoid(a / weights.temperature)
        path[5] *= p
        gate = np.float32(_sigmoid(a + b))
        runs, scales, gates = self.decided
        runs[index] = execute = gate >= threshold
        scales[index], gates[index] = gate if execute else 1 - gate, gate
        made = [torch.from_numpy(each[index]) for each in self.decided]
        return Decision(made[0], made[1], made[2])

    def _read(self, index: int, hbar: Array, wide: Array) -> Array:
        """What reads s_j: query, key, value (M,), W_n s_j (64,), the history head's part (H,)."""
        weights, inner = self.weights, self.inner.numpy()[0]
        size = math.sqrt(hbar.dot(hbar) / weights.width + weights.eps)
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
        path[0] = position = (index + 1) / len(self.decays)
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
        query_key, asked = read[: 2 * memory], read[3 * memory : -weights.head]
        # ELU + 1.
        phi = np.exp(np.minimum(query_key, 0)) + np.maximum(query_key, 0)
        first = read[-weights.head :]
        if index > 0 and weights.variant != "no-memread":
            alike = self.keys[:index].dot(phi[:memory]) * self.decays[:index]
            sums = alike.dot(self.values[:index])
            context = torch.from_numpy(sums[:memory] / (sums[memory] + EPS))
            answer = linear(context[None], weights.of_context).numpy()[0]
            novelty = 1 - _cosine(asked, answer[: len(asked)])
            first = first + answer[len(asked) :] + weights.of_novelty * novelty
        self.keys[index] = phi[memory:]
        self.values[index, :memory] = read[2 * memory : 3 * memory]
        self.decays[:index] *= weights.rho[index]
        return first


def _array(weight: Tensor) -> Array:
    """A copy, contiguous."""
    return np.array(weight.numpy(), order="C")


def _cosine(a: Array, b: Array) -> float:
    """Cosine of two vectors, eps in the denominator."""
    return float(a.dot(b)) / (math.sqrt(a.dot(a)) * math.sqrt(b.dot(b)) + EPS)


def _sigmoid(x: float) -> float:
    small = math.exp(-abs(x))
    return (1.0 if x >= 0 else small) / (1.0 + small)
