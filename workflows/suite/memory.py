"""Peak memory of a fit and of an evaluation: estimates in bytes from the sizes of the dense model.

Per token an FFN holds three vectors of F numbers, and all else in a layer about ten of D.
"""

from __future__ import annotations

from dataclasses import dataclass

from methods.api import Backbone, Cost, count, layers, widths
from workflows.suite.load import Load
from workflows.timing.bounds import DecoderSizes
from workflows.timing.modes import shape_of

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Per trained parameter: value, gradient and two moments of Adam, in float32.
OPTIMIZER_BYTES = 16
# Positions whose logits exist at a time (methods/core/training/losses.py).
CHUNK = 2048
# Positions whose distributions exist at a time where rows are compared with the dense model
# (workflows/evaluation/fidelity.py), and float32 copies of them.
COMPARED, COPIES = 512, 5
# Answer tokens of one sequence whose logits exist at a time.
SCORED = 32


@dataclass(frozen=True)
class Dense:
    """Sizes of a dense model.

    Args:
        shape: What multiplies, in parameters.
        parameters: Of the whole model; a tied matrix counts once.
        layer: Parameters of one layer.
        channels: F, of one feed-forward network.
        cached: Numbers that a token leaves in the cache of one layer.
        vocabulary: V.
        number: Bytes of one number.
    """

    shape: DecoderSizes
    parameters: int
    layer: int
    channels: int
    cached: int
    vocabulary: int
    number: int

    @classmethod
    def of(cls, backbone: Backbone, dtype: str) -> Dense:
        """The sizes of a backbone, which may be empty (meta)."""
        model, first = backbone.model, layers(backbone.model)[0]
        size, vocabulary = widths(first), int(backbone.config.vocab_size)
        cached = 2 * size.key_value_heads * size.head
        return cls(
            shape_of(model), backbone.parameters, count(first), size.channels, cached, vocabulary,
            BYTES[dtype],
        )  # fmt: skip

    @property
    def weights(self) -> float:
        """Bytes of the model."""
        return float(self.number * self.parameters)

    @property
    def inside(self) -> int:
        """Bytes per token of what one layer computes."""
        return self.number * (3 * self.channels + 10 * self.shape.width)

    def states(self, depth: int) -> int:
        """Bytes per token of what enters so many layers."""
        return self.number * self.shape.width * depth


def training_memory(
    dense: Dense, cost: Cost, positions: float, row: float, recomputed: bool
) -> float:
    """Of training: weights, what is trained, activations, logits.

    Args:
        dense: Of the backbone.
        cost: Of the fit.
        positions: Of one forward pass, pads among them.
        row: Tokens per packed row: documents in it are kept apart by a mask of so many numbers per
            position.
        recomputed: Whether layers are checkpointed: then one layer's activations exist at a time.
    """
    sixteen = dense.number < 4
    trained = cost.trained * (OPTIMIZER_BYTES + dense.number * sixteen)
    per_position = (
        dense.states(cost.layers) + dense.inside if recomputed else dense.inside * cost.layers
    )
    logits = min(positions, CHUNK) * dense.vocabulary * (12 + 2 * dense.number * sixteen)
    return dense.weights + trained + positions * (per_position + dense.number * row) + logits


def calibration_memory(dense: Dense, tokens: float) -> float:
    """Of a fit without training: weights, states, one layer in float32, logits.

    Args:
        dense: Of the backbone.
        tokens: Whose states are in memory at a time, at the inputs of all layers.
    """
    per_token = dense.states(dense.shape.layers) + dense.inside
    logits = min(tokens, CHUNK) * dense.vocabulary * 12
    return dense.weights + tokens * per_token + 4 * dense.layer + logits


def scoring_memory(dense: Dense, weights: float, load: Load, batch_size: int) -> float:
    """Of scoring: weights, the cache of a batch, one layer's states, logits that are scored.

    Args:
        dense: Of the backbone.
        weights: Bytes of the row's model.
        load: Of the tasks; the longest kind is taken half as long again.
        batch_size: Sequences.
    """
    positions = batch_size * 1.5 * load.longest
    cache = dense.number * dense.cached * dense.shape.layers
    logits = batch_size * SCORED * dense.vocabulary * 10
    return weights + positions * (cache + dense.inside) + logits


def fidelity_memory(dense: Dense, weights: float, positions: float) -> float:
    """Of the comparison with the dense model: both models, one layer's states, distributions.

    Args:
        dense: Of the backbone.
        weights: Bytes of the row's model.
        positions: Of one forward pass, pads among them.
    """
    distributions = COMPARED * COPIES * 4 * dense.vocabulary
    return dense.weights + weights + positions * dense.inside + distributions
