"""Bounds of work: the time of a routed model over the dense one's, if only work took time.

Multiplications bound prefill and training. A ratio is below its bound by noise, or where the other
side uses small operations badly. The distance to the bound is what a better implementation could
save.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder, in parameters unless stated.

    Args:
        width: D.
        layers: L.
        attention: Projections of one layer.
        ffn: One feed-forward network.
        head: The output matrix.
        routed: R, layers whose FFN is routed; the last ones.
        adapter: What runs instead of one FFN.
        router: Matrices of the router that run per routed layer.
    """

    width: int
    layers: int
    attention: int
    ffn: int
    head: int
    routed: int = 0
    adapter: int = 0
    router: int = 0

    def matrices(self, bypass: float) -> float:
        """Parameters that multiply one token's hidden state in the layers, mean over tokens."""
        routed = (1 - bypass) * self.ffn + bypass * self.adapter + self.router
        dense = self.layers - self.routed
        return self.layers * self.attention + dense * self.ffn + self.routed * routed


def prefill_flops(shape: DecoderSizes, sequences: int, length: int, bypass: float) -> float:
    """Operations of a prompt pass with logits of the last token only."""
    tokens = sequences * length
    scores = 2 * shape.width * length * tokens * shape.layers
    return 2 * tokens * shape.matrices(bypass) + scores + 2 * sequences * shape.head


def training_flops(
    shape: DecoderSizes,
    length: float,
    bypass: float,
    lora: int = 0,
    checkpointing: bool = False,
    reached: int | None = None,
) -> float:
    """Operations per token of one training step on a frozen backbone.

    Args:
        shape: Sizes; adapters and routers of routed layers are trained.
        length: Tokens per sequence.
        bypass: Mean bypass rate.
        lora: Other trained parameters, such as LoRA's, each used forward (twice with
            ``checkpointing``), backward and for its own gradient.
        checkpointing: Whether layers with gradients run forward twice.
        reached: Layers that gradients flow through, the last ones. None: the routed ones, without
            any all, as for LoRA on every linear layer.
    """
    upper = reached or shape.routed or shape.layers
    share = upper / shape.layers
    scores = 2 * shape.width * length * shape.layers
    routed = (1 - bypass) * shape.ffn + bypass * shape.adapter + shape.router
    top = upper * shape.attention + (upper - shape.routed) * shape.ffn + shape.routed * routed
    added = shape.routed * (bypass * shape.adapter + shape.router)
    forward = 2 * (shape.matrices(bypass) + shape.head) + scores
    backward = 2 * (top + added + shape.head) + 2 * share * scores
    again = (2 * top + share * scores) if checkpointing else 0.0
    return forward + backward + again + (8 if checkpointing else 6) * lora
