"""The matrices of HeRo's router, put together once per pass: what reads one input is one product.

With x_j the path vector and u the column of W_hist1 that reads the novelty, 1 - cos:

    [z ; l]  =  [sqrt(D) W_hd diag(w) ; W_local1] hbar + [0 ; b_local1]
    y        =  [z / hypot(||hbar||, sqrt(D eps)) ; W_path1 x + b_path1]
    s        =  [W_hu, 0 ; 0, W_path2] SiLU(y) + [0 ; b_path2]
    [q ; k ; v ; 1 ; n ; h]  =  [W_q ; W_k ; W_v ; 0 ; W_n ; W_hist1] s + [0 ; 0 ; 0 ; 1 ; 0 ; b]
    [n' ; h']  =  [W_c ; W_hist1] c + [0 ; u]
    [a ; b ; a / 0.9 ; a + b]  =  heads SiLU([h + h' - cos(n, n') u ; l]) + bias

where W_hist1 stands for those of its columns that read s, or c; before the first write h' and the
cosine are left out. RMSNorm(hbar) = sqrt(D) w hbar / hypot(||hbar||, sqrt(D eps)): its factor is
applied to what it scales. A block is then at most 45 operations of torch, views not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.kernels.hero.formulas import EPS, HIDDEN_OUT, PATH_OUT, STATE, TEMPERATURE, decays
from methods.kernels.hero.streams import parts


class Folded(NamedTuple):
    """Weights (out, in) with their biases (out,), in the order of the formulas above.

    H is the head width, M the memory's, R the number of routed blocks, D the model's width.
    ``wide`` (2H, D), ``encoder`` (64, H + 64), ``readers`` (3M + 1 + 64 + H, 64), ``answers``
    (64 + H, M), ``heads`` (4, 2H); ``path`` (64, 6), None without the path MLP, whose columns
    ``encoder`` then lacks. ``parts`` (4H, D) of ``wide``, where kernels read bfloat16 streams.
    ``novelty`` u (H,); ``place`` (R, 2) of [j/R, (R-j)/R]; ``decays`` (R, R) of the memory;
    ``floor`` sqrt(D eps) and ``eps`` of the cosines, scalars.
    """

    wide: Tensor
    parts: Tensor | None
    wide_bias: Tensor
    path: Tensor | None
    path_bias: Tensor | None
    encoder: Tensor
    encoder_bias: Tensor
    readers: Tensor
    readers_bias: Tensor
    answers: Tensor
    answers_bias: Tensor
    novelty: Tensor
    heads: Tensor
    heads_bias: Tensor
    place: Tensor
    decays: Tensor
    floor: Tensor
    eps: Tensor


def fold(weights: Mapping[str, Tensor], eps: float, parted: bool = False) -> Folded:
    """Put together the weights of a router with history; gradients flow back to them.

    Args:
        weights: By the names of the formulas.
        eps: Of the RMSNorm.
        parted: Whether kernels read bfloat16 streams, and so want ``parts``.
    """
    head, width = weights["W_hd"].shape
    memory, state = weights["W_q"].shape
    by_state, by_context, novelty = weights["hist_W1"].split([state, memory, 1], dim=1)
    readers = [weights["W_q"], weights["W_k"], pad(weights["W_v"], (0, 0, 0, 1)), weights["W_n"]]
    first_bias = pad(weights["hist_b1"], (state, 0))
    outs = torch.block_diag(weights["hist_W2"], weights["local_W2"])
    last = torch.cat([weights["hist_b2"], weights["local_b2"]])
    blocks = len(weights["eta"])
    place = torch.arange(1, blocks + 1, dtype=novelty.dtype, device=novelty.device) / blocks
    up, up_bias = pad(weights["W_hu"], (0, 0, 0, PATH_OUT)), novelty.new_zeros(STATE)
    if "path_W2" in weights:
        up = torch.block_diag(weights["W_hu"], weights["path_W2"])
        up_bias = pad(weights["path_b2"], (HIDDEN_OUT, 0))
    normed = math.sqrt(width) * weights["rms_w"] * weights["W_hd"]
    wide = torch.cat([normed, weights["local_W1"]])
    return Folded(
        wide=wide,
        parts=parts(wide) if parted else None,
        wide_bias=pad(weights["local_b1"], (head, 0)),
        path=weights.get("path_W1"),
        path_bias=weights.get("path_b1"),
        encoder=up,
        encoder_bias=up_bias,
        readers=torch.cat([*readers, by_state]),
        readers_bias=pad(torch.cat([novelty.new_ones(1), first_bias]), (3 * memory, 0)),
        answers=torch.cat([weights["W_c"], by_context]),
        answers_bias=pad(novelty[:, 0], (state, 0)),
        novelty=novelty[:, 0],
        heads=torch.cat([outs, outs[:1] / TEMPERATURE, outs.sum(0, keepdim=True)]),
        heads_bias=torch.cat([last, last[:1] / TEMPERATURE, last.sum(0, keepdim=True)]),
        place=torch.stack([place, 1 - place], dim=-1),
        decays=decays(torch.sigmoid(weights["eta"])),
        floor=novelty.new_full((), math.sqrt(width * eps)),
        eps=novelty.new_full((), EPS),
    )
