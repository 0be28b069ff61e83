"""The matrices of the two branches of a routed FFN, as kernels read them: contiguous, no biases."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn
from transformers.activations import ACT2FN


class FfnWeights(NamedTuple):
    """A frozen SwiGLU network: ``gate`` and ``up`` (F, D), ``down`` (D, F), all in one dtype."""

    gate: Tensor
    up: Tensor
    down: Tensor


class AdapterWeights(NamedTuple):
    """What runs instead, W_2 SiLU(W_1 u): ``down`` is W_1 (A, D), ``up`` W_2 (D, A)."""

    down: Tensor
    up: Tensor


@runtime_checkable
class Bottleneck(Protocol):
    """A branch that is W_2 SiLU(W_1 u) and says so."""

    def matrices(self) -> AdapterWeights:
        """W_1 and W_2."""


class Branches(NamedTuple):
    """Both branches of a routed FFN; without an adapter a bypassed row gets no update."""

    ffn: FfnWeights
    adapter: AdapterWeights | None


def branches(network: nn.Module, otherwise: object | None) -> Branches | None:
    """The matrices behind two branches, None where kernels do not know one of them.

    Args:
        network: Of a layer. Biases, LoRA and activations other than SiLU are not known.
        otherwise: What runs instead; known are None and a :class:`Bottleneck`.
    """
    part: Any = network
    linears = [part.gate_proj, part.up_proj, part.down_proj]
    plain = all(type(linear) is nn.Linear and linear.bias is None for linear in linears)
    if not plain or not isinstance(part.act_fn, (nn.SiLU, type(ACT2FN["silu"]))):
        return None
    if otherwise is not None and not isinstance(otherwise, Bottleneck):
        return None
    adapter = None if otherwise is None else otherwise.matrices()
    return Branches(FfnWeights(*(linear.weight for linear in linears)), adapter)
