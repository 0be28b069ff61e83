"""The bottleneck router and the slim SwiGLU of FlexiDepth, which DiffSkip shares."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from methods.core.routing.router import Router, Unit
from methods.core.seeds import draw_linear, generator
from methods.kernels.operands import AdapterWeights

NormPlace = Literal["before", "after"]


class BottleneckHead(nn.Module):
    """r(z) = W_head W_dec tanh(RMSNorm(W_enc z)), without biases, (..., inputs) to (...).

    W_head W_dec is one vector in effect. There are two matrices as in the authors' checkpoint.

    Args:
        inputs: Width of z.
        hidden: Of the bottleneck.
        width: D, rows of W_dec.
        eps: Of the RMSNorm.
        norm_place: ``"before"`` tanh, as in the checkpoint, or ``"after"`` it, as in the paper.
    """

    def __init__(
        self, inputs: int, hidden: int, width: int, eps: float, norm_place: NormPlace
    ) -> None:
        super().__init__()
        self.norm_place = norm_place
        self.enc = nn.Linear(inputs, hidden, bias=False)
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.dec = nn.Linear(hidden, width, bias=False)
        self.head = nn.Linear(width, 1, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """The logit of executing the layer, without the initial bias."""
        inner = self.enc(z)
        before = self.norm_place == "before"
        inner = torch.tanh(self.norm(inner)) if before else self.norm(torch.tanh(inner))
        logit: Tensor = self.head(self.dec(inner)).squeeze(-1)
        return logit


class SlimFFN(nn.Module):
    """P(u) = W_up (SiLU(W_gate u) * (W_down u)): a SwiGLU of smaller width.

    W_up (D, width) starts as zero, so that at first a skipped unit has no update. W_gate and W_down
    (width, D) start Kaiming-uniform.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, width, bias=False)
        self.down = nn.Linear(hidden_size, width, bias=False)
        self.up = nn.Linear(width, hidden_size, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Normed states (n, D) to updates (n, D), in the dtype of the states."""
        # The weights are float32 in training, also on a 16-bit backbone.
        return self.matrices().update(rows)

    def matrices(self) -> AdapterWeights:
        """W_gate, W_up and W_down, for kernels."""
        return AdapterWeights(self.gate.weight, self.up.weight, self.down.weight)


class SlimParams(Protocol):
    """The params of a row for its router."""

    @property
    def router_width(self) -> int | None:
        """Width of the heads' bottleneck; None: D / 16, at least 32."""

    @property
    def adapter_width(self) -> int | None:
        """Width of the slim FFNs; None: F / 16."""

    @property
    def initial_bias(self) -> float:
        """Added to every logit."""


class SlimRouter(Router):
    """Each routed layer has its own bottleneck head and slim FFN; a tie skips.

    Args:
        units: U units, one or two per routed layer.
        config: The backbone's: D, F, eps.
        params: Widths, and the bias that is added to every logit and not trained.
        seed: Of the initial values.
        beside: How many numbers the heads read in addition to D.
        norm_place: Of the heads.
    """

    heavy, ties_execute = True, False

    def __init__(
        self,
        units: list[Unit],
        config: PreTrainedConfig,
        params: SlimParams,
        seed: int,
        beside: int = 0,
        norm_place: NormPlace = "before",
    ) -> None:
        super().__init__()
        self.units, self.initial_bias, self.threshold = units, params.initial_bias, 0.5
        width, self.eps = int(config.hidden_size), float(config.rms_norm_eps)
        hidden = params.router_width or max(32, width // 16)
        adapter = params.adapter_width or max(1, int(config.intermediate_size) // 16)
        layers, inputs = len({unit.layer for unit in units}), width + beside
        self.beside = beside
        self.heads = nn.ModuleList(
            BottleneckHead(inputs, hidden, width, self.eps, norm_place) for _ in range(layers)
        )
        slim = [SlimFFN(width, adapter) for _ in range(layers)]
        self.adapters = nn.ModuleList(slim)
        rng = generator(seed, "initial values")
        for part in (m for m in self.modules() if isinstance(m, nn.Linear)):
            draw_linear(part, rng)
        for each in slim:
            nn.init.zeros_(each.up.weight)

    def weight(self, layer: int, z: Tensor) -> Tensor:
        """The gate of routed layer ``layer``: sigmoid(r(z) + initial bias); z (B, T, inputs)."""
        return torch.sigmoid(self.heads[layer](z) + self.initial_bias)
