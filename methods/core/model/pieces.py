"""The small operations of a decoder, compiled by torch: norms, rotary positions, activations.

Run one by one they are some twenty-five launches per layer of Llama. A decoding step on a GPU waits
for them, and no row that skips FFNs can save those of attention and norms. Compiled they are four.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from methods.core.model.backbone import (
    attention,
    attention_norm,
    decoder,
    ffn,
    ffn_norm,
    layers,
    norm_behind,
)

ROTARY = "apply_rotary_pos_emb"
# Between fused operations numbers are rounded as they are where each runs alone.
OPTIONS: dict[str, Any] = {"emulate_precision_casts": True}


def compile_pieces(model: PreTrainedModel) -> None:
    """Compile norms, rotary positions and FFNs of a dense or routed causal LM, in place.

    For inference; a CUDA graph may capture them after a first run. Layers share their code, so a
    piece is compiled once per shape. The function for rotary positions is the one of the family's
    module in transformers, so it is compiled for every model of the family in this process.

    Args:
        model: In eval mode. It computes the same up to rounding.
    """
    for layer in layers(model):
        heads = attention(layer)
        of_heads = [getattr(heads, name, nn.Identity()) for name in ("q_norm", "k_norm")]
        before = [attention_norm(layer), ffn_norm(layer)]
        behind = [norm_behind(layer, "attention"), norm_behind(layer, "ffn")]
        for piece in (*before, *of_heads, *behind, ffn(layer)):
            if not isinstance(piece, nn.Identity):
                piece.compile(options=OPTIONS)
        _compile_rotary(heads)
    norm: Any = decoder(model).norm
    norm.compile(options=OPTIONS)


def _compile_rotary(heads: nn.Module) -> None:
    home = sys.modules[type(heads).__module__]
    rotary = getattr(home, ROTARY, None)
    if rotary is not None and not hasattr(rotary, "_torchdynamo_orig_callable"):
        setattr(home, ROTARY, torch.compile(rotary, options=OPTIONS))
