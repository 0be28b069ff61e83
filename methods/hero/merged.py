"""The weights of HeRo's router, merged once per pass: all that reads one input is one product.

With x_j the path vector and u the column of W_hist1 that reads the novelty, 1 - cos:

    [z ; l]  =  [sqrt(D) W_hd diag(w) ; W_local1] hbar + [0 ; b_local1]
    y        =  [z / hypot(||hbar||, sqrt(D eps)) ; W_path1 x + b_path1]
    s        =  [W_hu, 0 ; 0, W_path2] SiLU(y) + [0 ; b_path2]
    [q ; k ; v ; 1 ; n ; h]  =  [W_q ; W_k ; W_v ; 0 ; W_n ; W_hist1] s + [0 ; 0 ; 0 ; 1 ; 0 ; b]
    [n' ; h']  =  [W_c ; W_hist1] c + [0 ; u]
    [a ; b ; a / 0.9 ; a + b]  =  heads SiLU([h + h' - cos(n, n') u ; l]) + bias

Here W_hist1 stands for its columns that read s, or c. The first FFN has no h' and no cosine.
RMSNorm(hbar) = sqrt(D) w hbar / hypot(||hbar||, sqrt(D eps)); the division comes after the product.
An FFN then takes at most 45 operations of torch, not counting views.

:func:`merge` is the only place that reads the router's parameters. Two other layouts are made from
what it returns: :func:`kernel_weights` for a GPU and :func:`host_weights` for one token on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from methods.kernels.hero.formulas import (
    EPS,
    HIDDEN_OUT,
    PATH_OUT,
    STATE,
    TEMPERATURE,
    Variant,
    decays,
)
from methods.kernels.hero.operands import KernelWeights
from methods.kernels.hero.streams import parts

Array = NDArray[np.float32]


class MergedWeights(NamedTuple):
    """Weights (out, in) with their biases (out,), in the order of the formulas above.

    H is the head width, M the memory's, R the number of routed FFNs, D the model's width.
    ``wide`` (2H, D), ``encoder`` (64, H + 64), ``readers`` (3M + 1 + 64 + H, 64), ``answers``
    (64 + H, M), ``heads`` (4, 2H), ``path`` (64, 6). Without the path MLP ``path`` is None and
    ``encoder`` is (64, H). ``parts`` (4H, D) is ``wide`` for kernels that read bfloat16 streams,
    else None. ``novelty`` is u (H,); ``place`` (R, 2) holds [j/R, (R-j)/R]; ``decays`` (R, R)
    belong to the memory; ``floor`` sqrt(D eps) and ``eps`` of the cosines are scalars.
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


def merge(parameters: Mapping[str, Tensor], eps: float, parted: bool = False) -> MergedWeights:
    """Merge the weights of a router with history; gradients flow back to the parameters.

    Args:
        parameters: By the names of the formulas.
        eps: Of the RMSNorm.
        parted: Whether to make ``parts``, for kernels that read bfloat16 streams.
    """
    head, width = parameters["W_hd"].shape
    memory, state = parameters["W_q"].shape
    by_state, by_context, novelty = parameters["hist_W1"].split([state, memory, 1], dim=1)
    value = pad(parameters["W_v"], (0, 0, 0, 1))
    readers = [parameters["W_q"], parameters["W_k"], value, parameters["W_n"]]
    first_bias = pad(parameters["hist_b1"], (state, 0))
    outs = torch.block_diag(parameters["hist_W2"], parameters["local_W2"])
    last = torch.cat([parameters["hist_b2"], parameters["local_b2"]])
    ffns = len(parameters["eta"])
    place = torch.arange(1, ffns + 1, dtype=novelty.dtype, device=novelty.device) / ffns
    up, up_bias = pad(parameters["W_hu"], (0, 0, 0, PATH_OUT)), novelty.new_zeros(STATE)
    if "path_W2" in parameters:
        up = torch.block_diag(parameters["W_hu"], parameters["path_W2"])
        up_bias = pad(parameters["path_b2"], (HIDDEN_OUT, 0))
    normed = math.sqrt(width) * parameters["rms_w"] * parameters["W_hd"]
    wide = torch.cat([normed, parameters["local_W1"]])
    return MergedWeights(
        wide=wide,
        parts=parts(wide) if parted else None,
        wide_bias=pad(parameters["local_b1"], (head, 0)),
        path=parameters.get("path_W1"),
        path_bias=parameters.get("path_b1"),
        encoder=up,
        encoder_bias=up_bias,
        readers=torch.cat([*readers, by_state]),
        readers_bias=pad(torch.cat([novelty.new_ones(1), first_bias]), (3 * memory, 0)),
        answers=torch.cat([parameters["W_c"], by_context]),
        answers_bias=pad(novelty[:, 0], (state, 0)),
        novelty=novelty[:, 0],
        heads=torch.cat([outs, outs[:1] / TEMPERATURE, outs.sum(0, keepdim=True)]),
        heads_bias=torch.cat([last, last[:1] / TEMPERATURE, last.sum(0, keepdim=True)]),
        place=torch.stack([place, 1 - place], dim=-1),
        decays=decays(torch.sigmoid(parameters["eta"])),
        floor=novelty.new_full((), math.sqrt(width * eps)),
        eps=novelty.new_full((), EPS),
    )


def kernel_weights(merged: MergedWeights, eps: float, variant: Variant) -> KernelWeights:
    """The merged weights, cut into the matrices that kernels read.

    A kernel reads each matrix where its result is needed, and a matrix's rows must follow each
    other in memory. So the block-diagonal ``encoder`` is cut into its two blocks, and the stacked
    ``readers`` and ``answers`` into their parts.

    Args:
        merged: Of :func:`merge`, in float32.
        eps: Of the RMSNorm.
        variant: Of the router, one with history.
    """
    head, memory = len(merged.novelty), merged.answers.shape[1]
    sizes = [memory, memory, memory, 1, STATE, head]
    query, key, value, _, novelty_state, history_state = merged.readers.detach().split(sizes)
    novelty_context, history_context = merged.answers.detach().split([STATE, head])
    wide, encoder, heads = (each.detach() for each in (merged.wide, merged.encoder, merged.heads))
    path_out = encoder[HIDDEN_OUT:, head:].contiguous()
    has_path = merged.path is not None
    path_in = None if merged.path is None else merged.path.detach().clone()
    if path_in is not None and variant == "no-position":
        path_in[:, :4] = 0.0
    return KernelWeights(
        wide=wide,
        parts=parts(wide),
        hidden_up=encoder[:HIDDEN_OUT, :head].contiguous(),
        path_in=path_in,
        path_in_bias=None if merged.path_bias is None else merged.path_bias.detach(),
        path_out=path_out if has_path else None,
        path_out_bias=merged.encoder_bias.detach()[HIDDEN_OUT:] if has_path else None,
        query=None if variant == "no-memread" else query,
        key=key,
        value=value,
        novelty_state=novelty_state,
        novelty_context=novelty_context,
        history_state=history_state,
        history_context=history_context,
        history_novelty=merged.novelty.detach().contiguous(),
        # A copy: kernels read 16 bytes at once, and this view begins between two such places.
        history_bias=merged.readers_bias.detach()[-head:].clone(),
        history_out=heads[0, :head],
        local_bias=merged.wide_bias.detach()[head:],
        local_out=heads[1, head:],
        last_biases=merged.heads_bias.detach()[:2],
        decays=merged.decays.detach(),
        eps=eps,
    )


class HostWeights(NamedTuple):
    """The merged weights for one token on a CPU; see ``methods/hero/host.py``.

    ``head`` is H, ``memory`` M. Torch multiplies by ``wide`` (2H, D) and by ``readers``
    (2M + 1 + 2 (64 + H), columns of the encoder); all else is for NumPy. ``bias`` belongs to
    ``readers``. ``answers_bias`` (64 + H,), ``novelty`` and ``local_bias`` (H,), ``heads`` (2, 2H)
    with ``heads_bias``, ``decays`` (R, R). ``path`` (7, 64) has the bias as its last row; None
    without the path MLP. ``floor`` is D eps.
    """

    variant: Variant
    head: int
    memory: int
    wide: Tensor
    readers: Tensor
    bias: Array
    answers_bias: Array
    novelty: Array
    path: Array | None
    local_bias: Array
    heads: Array
    heads_bias: list[float]
    decays: Array
    floor: float


def host_weights(merged: MergedWeights, variant: Variant) -> HostWeights:
    """The merged weights with products of matrices made before, for one token on a CPU.

    At one token an operation takes the time of its call, not of its numbers. So encoder, readers
    and answers are multiplied into one matrix.

    Args:
        merged: Of :func:`merge`, float32 on the CPU; copied.
        variant: Of the router, one with history.
    """
    head, memory = len(merged.novelty), merged.answers.shape[1]
    sizes = [2 * memory, memory, len(merged.readers) - 3 * memory]
    query_key, value, rest = merged.readers.split(sizes)
    readers = torch.cat([query_key, merged.answers @ value, rest])
    # W_v has no bias.
    query_key, _, rest = merged.readers_bias.split(sizes)
    bias = torch.cat([query_key, torch.zeros_like(merged.answers_bias), rest])
    path = None
    if merged.path is not None and merged.path_bias is not None:
        # The bias as a seventh feature, which is always one.
        path = _array(torch.cat([merged.path, merged.path_bias[:, None]], dim=1).T)
    return HostWeights(
        variant=variant,
        head=head,
        memory=memory,
        wide=merged.wide.detach(),
        readers=(readers @ merged.encoder).detach(),
        bias=_array(readers @ merged.encoder_bias + bias),
        answers_bias=_array(merged.answers_bias),
        novelty=_array(merged.novelty),
        path=path,
        local_bias=_array(merged.wide_bias[head:]),
        heads=_array(merged.heads[:2]),
        heads_bias=merged.heads_bias[:2].tolist(),
        decays=_array(merged.decays),
        floor=merged.floor.item() ** 2,
    )


def _array(weight: Tensor) -> Array:
    """A copy, contiguous."""
    return np.array(weight.detach().numpy(), order="C")
