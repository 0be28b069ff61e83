"""What the kernels of HeRo's router read and write."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class KernelWeights(NamedTuple):
    """The weights of a router as the kernels read them, float32 and contiguous.

    ``kernel_weights`` in ``methods/hero/merged.py`` makes them. H is the head width, M the
    memory's, R the number of routed FFNs; states are 64 wide.

    ``wide`` (2H, D) is [sqrt(D) W_hd diag(w) ; W_local1]; ``parts`` (4H, D), bfloat16, is ``wide``
    rounded, followed by the rounded rest. ``hidden_up`` (48, H). ``path_in`` (64, 6),
    ``path_in_bias`` (64,), ``path_out`` (16, 64) and ``path_out_bias`` (16,) are None without the
    path MLP. ``query`` (M, 64) is None where nothing is read from the memory. ``key``, ``value``
    (M, 64); ``novelty_state`` (64, 64), ``novelty_context`` (64, M). The history head's first
    matrix, by input: ``history_state`` (H, 64), ``history_context`` (H, M), ``history_novelty``
    (H,). ``history_bias``, ``history_out``, ``local_bias``, ``local_out`` (H,); ``last_biases``
    (2,) of history and local head. ``decays`` (R, R): for i < j, [j, i] is the product of rho over
    the FFNs between i and j. ``eps`` is the RMSNorm's.
    """

    wide: Tensor
    parts: Tensor
    hidden_up: Tensor
    path_in: Tensor | None
    path_in_bias: Tensor | None
    path_out: Tensor | None
    path_out_bias: Tensor | None
    query: Tensor | None
    key: Tensor
    value: Tensor
    novelty_state: Tensor
    novelty_context: Tensor
    history_state: Tensor
    history_context: Tensor
    history_novelty: Tensor
    history_bias: Tensor
    history_out: Tensor
    local_bias: Tensor
    local_out: Tensor
    last_biases: Tensor
    decays: Tensor
    eps: float

    def renew(self, other: KernelWeights) -> None:
        """Take the numbers of ``other``; addresses stay, as a CUDA graph needs it."""
        for old, new in zip(self, other, strict=True):
            if isinstance(old, Tensor) and isinstance(new, Tensor):
                old.copy_(new)


class RouterWorkspace(NamedTuple):
    """Fixed buffers of N tokens, all float32 but ``execute``; no start value matters.

    Carried from FFN to FFN: ``key`` (phi(k)), ``value`` (N, R, M); ``p``, ``m`` (N,).
    Results: ``gate``, ``scale`` (N,) and ``execute`` (N,) bool, what ``routed_ffn_decode`` takes.
    """

    key: Tensor
    value: Tensor
    p: Tensor
    m: Tensor
    gate: Tensor
    scale: Tensor
    execute: Tensor
