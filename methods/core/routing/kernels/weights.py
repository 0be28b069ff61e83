"""The matrices of the two branches of a routed FFN, as kernels read them: contiguous, no biases."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class FfnWeights(NamedTuple):
    """A frozen SwiGLU network: ``gate`` and ``up`` (F, D), ``down`` (D, F), all in one dtype."""

    gate: Tensor
    up: Tensor
    down: Tensor


class AdapterWeights(NamedTuple):
    """What runs instead, W_2 SiLU(W_1 u): ``down`` is W_1 (A, D), ``up`` W_2 (D, A)."""

    down: Tensor
    up: Tensor
