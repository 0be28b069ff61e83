"""Sizes of a decoder from its config alone; no weights, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods.core.model.shapes import ATTENTION, FFN, SHAPES
from workflows.stats.bounds import Shape
from workflows.suite.jobs import Suite


@dataclass(frozen=True)
class Model:
    """Sizes of a Llama, Mistral, Qwen2 or Qwen3.

    Args:
        width: D.
        layers: L.
        heads: Query heads.
        key_heads: Heads of keys and values.
        head: Channels per head.
        channels: F, of one feed-forward network.
        vocabulary: V.
        tied: Whether the head is the embedding.
        extra: Parameters of a layer beside its matrices and two norms: biases, norms of heads.
    """

    width: int
    layers: int
    heads: int
    key_heads: int
    head: int
    channels: int
    vocabulary: int
    tied: bool = False
    extra: int = 0

    def sides(self, projection: str) -> tuple[int, int]:
        """Inputs and outputs of a projection of a layer."""
        queries, keys = self.heads * self.head, self.key_heads * self.head
        return {
            "q_proj": (self.width, queries), "k_proj": (self.width, keys),
            "v_proj": (self.width, keys), "o_proj": (queries, self.width),
            "gate_proj": (self.width, self.channels), "up_proj": (self.width, self.channels),
            "down_proj": (self.channels, self.width),
        }[projection]  # fmt: skip

    def matrices(self, projections: Sequence[str]) -> int:
        """Parameters of projections of one layer."""
        return sum(inputs * outputs for inputs, outputs in map(self.sides, projections))

    def lora(self, projections: Sequence[str], rank: int, layers: int) -> int:
        """Parameters of LoRA on projections of so many layers."""
        return layers * rank * sum(sum(self.sides(name)) for name in projections)

    @property
    def embedding(self) -> int:
        """The embedding, and the head where they are tied."""
        return self.vocabulary * self.width

    @property
    def layer(self) -> int:
        """All parameters of one layer."""
        return self.matrices((*ATTENTION, *FFN)) + 2 * self.width + self.extra

    @property
    def parameters(self) -> int:
        """All parameters; a tied matrix counts once."""
        embeddings = self.embedding * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer + self.width

    def shape(self, always: Sequence[str] = ATTENTION, **routed: int) -> Shape:
        """The sizes behind the bounds, in multiplied parameters.

        Args:
            always: Projections of a layer that every token runs; the others can be skipped.
            routed: Fields of a shape with routed layers.
        """
        runs, whole = self.matrices(always), self.matrices((*ATTENTION, *FFN))
        return Shape(self.width, self.layers, runs, whole - runs, self.embedding, **routed)


def model_from(config: Mapping[str, Any]) -> Model:
    """Sizes from a config as in ``config.json``.

    Raises:
        ValueError: A size is missing.
    """
    try:
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        layers, channels = int(config["num_hidden_layers"]), int(config["intermediate_size"])
        vocabulary = int(config["vocab_size"])
    except KeyError as error:
        raise ValueError(f"the backbone's config has no {error.args[0]}") from error
    keys = int(config.get("num_key_value_heads") or heads)
    head = int(config.get("head_dim") or width // heads)
    family, biased = config.get("model_type"), bool(config.get("attention_bias"))
    extra = 0
    if biased or family == "qwen2":
        extra += (heads + 2 * keys) * head
    if biased:
        extra += width
    if family == "qwen3":
        extra += 2 * head
    if config.get("mlp_bias"):
        extra += 2 * channels + width
    tied = bool(config.get("tie_word_embeddings", False))
    return Model(width, layers, heads, keys, head, channels, vocabulary, tied, extra)


def model_of(suite: Suite, name: str, root: Path) -> Model:
    """Sizes of a suite's backbone: from its folder, else from the published shape of its name.

    Raises:
        ValueError: Neither is there.
    """
    file = root / suite.backbone_folder(name) / "config.json"
    if file.is_file():
        return model_from(json.loads(file.read_text(encoding="utf-8")))
    if name in SHAPES:
        return model_from(SHAPES[name])
    raise ValueError(
        f"backbone '{name}': {suite.backbone_folder(name)} has no config.json yet, and no "
        f"published shape has this name (known: {', '.join(SHAPES)})"
    )
