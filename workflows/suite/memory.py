"""Peak memory of a fit and of an evaluation, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from workflows.suite.model import Model
from workflows.suite.recipes import Recipe
from workflows.suite.tasks import Load

# Per trained parameter: float32 value, gradient and two moments of Adam.
OPTIMIZER_BYTES = 16
# Positions whose logits exist at a time (methods/core/training/losses.py).
CHUNK = 2048
# Sixteen calibration documents of 2,048 tokens run at a time.
BATCH_TOKENS = 16 * 2048
# Answer tokens of one sequence whose logits exist at a time.
SCORED = 32


@dataclass(frozen=True)
class FitMemory:
    """Bytes of a training fit, by what holds them.

    Args:
        weights: Of the backbone.
        trained: Values, gradients and moments of what is trained, with 16-bit copies.
        activations: What the backward pass needs of one forward pass.
        logits: Of the positions of one chunk: themselves, in float32, their gradient.
        workspace: Of the layer that runs.
    """

    weights: float
    trained: float
    activations: float
    logits: float
    workspace: float

    @property
    def peak(self) -> float:
        """All at once."""
        return self.weights + self.trained + self.activations + self.logits + self.workspace


def fit_memory(
    model: Model, made: Recipe, number: int, positions: float, row: float, recomputed: bool
) -> FitMemory:
    """Peak memory of a fit that trains.

    Args:
        model: Backbone.
        made: What is trained.
        number: Bytes of the model's numbers.
        positions: Of one forward pass, pads among them.
        row: Tokens per row: attention keeps a mask of so many numbers per position.
        recomputed: Whether layers are checkpointed.
    """
    per_position = kept_bytes(model, made, number)
    if recomputed:
        entries = number * (made.reached * model.width + made.streams) + 4 * made.carried
        per_position = entries + per_position / max(1, made.reached)
    # The mask of packed documents, one for all layers.
    per_position += number * row
    return FitMemory(
        weights=number * model.parameters,
        trained=made.trained * (OPTIMIZER_BYTES + (number if number < 4 else 0)),
        activations=positions * per_position,
        logits=min(positions, CHUNK) * model.vocabulary * (12 + (2 * number if number < 4 else 0)),
        workspace=positions * number * 3 * model.channels,
    )


def kept_bytes(model: Model, made: Recipe, number: int) -> float:
    """Bytes per position that a backward pass needs, without checkpointing.

    Of attention: queries, keys, values and results by query head (keys and values are repeated
    where packed documents need a mask), one sum per head. Of an FFN: three times F. Norms read
    float32.
    """
    heads = model.heads * model.head
    attention = number * 4 * heads + 4 * model.heads
    kept = number * made.kept + 4 * made.single
    kept += 4 * made.copies if number < 4 else -4 * made.shared
    ffn = number * 3 * model.channels
    return made.read * attention + made.run * ffn + kept + 4 * model.width


def untrained_memory(model: Model, number: int, held: float, layers: int) -> float:
    """Of a fit that reads calibration documents: weights, states, one layer in float32, logits.

    Args:
        model: Backbone.
        number: Bytes of the model's numbers.
        held: Tokens whose states are held at a time.
        layers: Layers at whose inputs they are held.
    """
    states = number * held * model.width * layers
    layer = 4 * model.layer + number * 3 * min(held, BATCH_TOKENS) * model.channels
    logits = min(held, CHUNK) * model.vocabulary * 12
    return number * model.parameters + states + layer + logits


def evaluation_memory(
    model: Model, skip: float, number: int, load: Load, batch_size: int, trained: int
) -> float:
    """Of scoring: weights left, the cache of a batch, one layer's states, logits that are scored.

    Args:
        model: Backbone.
        skip: Share of the parameters that a static row removes.
        number: Bytes of the model's numbers.
        load: Of the tasks; the longest kind is taken half as long again.
        batch_size: Sequences.
        trained: Parameters a row adds, in float32.
    """
    positions = batch_size * 1.5 * load.longest
    cache = 2 * model.key_heads * model.head * model.layers * number
    layer = number * (3 * model.channels + 8 * model.width)
    logits = batch_size * SCORED * model.vocabulary * 10
    weights = number * model.parameters * (1 - skip) + 4 * trained
    return weights + positions * (cache + layer) + logits
