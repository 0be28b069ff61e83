"""The dense model: loading it with checks, and access to its parts.

The functions below are the only place that knows the names of a decoder's modules; the names of
projections are in ``shapes.py``, and ``families.py`` says how families differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from methods.core.facts import read_fetched
from methods.core.jsonfile import first_line
from methods.core.model.card import Card
from methods.core.model.families import (
    BY_LAYER,
    Sublayer,
    factor_of,
    norms_of,
    restore_scale,
    split_matrices,
)
from methods.core.model.finite import check_parameters
from methods.core.model.folder import (
    check_no_adapter,
    hash_folder,
    read_config,
    read_generation,
    read_tokenizer,
    weight_files,
    window_of,
)
from methods.core.model.pretrained import guard, untie_own_head
from methods.core.model.shapes import ATTENTION, FFN, SHAPES
from methods.core.model.tensors import DTYPES, read_shapes

LAYER = re.compile(r"model\.layers\.(\d+)\.")
# Computed from the config; old versions of transformers stored it all the same.
COMPUTED = "rotary_emb.inv_freq"


@dataclass
class Backbone:
    """A dense causal LM, where it is from, and what identifies it.

    Args:
        model: The causal LM; a fit may change it.
        tokenizer: None if the folder has none; then data must be ids.
        path: Local folder that it was read from.
        revision: Version label given by the user or the hub, if any.
        hash: sha256 over config and weight files, shortened to 16 digits.
        parameters: Parameters of the dense model; a tied matrix counts once.
        start: Card of a compressed model, if that takes the place of the dense one; else None.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    path: Path
    revision: str | None
    hash: str
    parameters: int
    start: Card | None = None

    @property
    def config(self) -> PreTrainedConfig:
        """The model's config."""
        return self.model.config

    @property
    def window(self) -> int:
        """The largest number of tokens of a text."""
        return window_of(self.config)

    @property
    def layer_count(self) -> int:
        """Number of decoder layers L."""
        return len(layers(self.model))


def decoder(model: nn.Module) -> nn.Module:
    """The inner decoder: embeddings, layers, final norm, without the head."""
    inner = model.model
    assert isinstance(inner, nn.Module)
    return inner


def layers(model: nn.Module) -> nn.ModuleList:
    """The decoder layers, 0-based."""
    stack = decoder(model).layers
    assert isinstance(stack, nn.ModuleList)
    return stack


def attention(layer: nn.Module) -> nn.Module:
    """The attention of a layer; its projections are q_proj, k_proj, v_proj, o_proj."""
    return layer.self_attn  # type: ignore[return-value]


def ffn(layer: nn.Module) -> nn.Module:
    """The feed-forward network of a layer; its projections are gate_proj, up_proj, down_proj."""
    return layer.mlp  # type: ignore[return-value]


def attention_norm(layer: nn.Module) -> nn.Module:
    """The norm in front of attention; the identity where there is none."""
    return _norm(layer, norms_of(layer, "attention").front)


def ffn_norm(layer: nn.Module) -> nn.Module:
    """The norm in front of the feed-forward network; the identity where there is none."""
    return _norm(layer, norms_of(layer, "ffn").front)


def ffn_entry(layer: nn.Module) -> nn.Module:
    """The module that the hidden states in front of the FFN enter: its norm, or the FFN itself."""
    norm = ffn_norm(layer)
    return ffn(layer) if isinstance(norm, nn.Identity) else norm


def last_module(layer: nn.Module, kind: Sublayer) -> nn.Module:
    """The module that returns what a sublayer adds, before a factor: its norm, or itself."""
    norm = norm_behind(layer, kind)
    own = attention(layer) if kind == "attention" else ffn(layer)
    return own if isinstance(norm, nn.Identity) else norm


def norm_behind(layer: nn.Module, kind: Sublayer) -> nn.Module:
    """The norm of what a sublayer adds; the identity where there is none."""
    return _norm(layer, norms_of(layer, kind).behind)


def finish(layer: nn.Module, kind: Sublayer, output: Tensor) -> Tensor:
    """What a sublayer adds to the hidden states, from what its module returns (..., D)."""
    update: Tensor = norm_behind(layer, kind)(output)
    factor = factor_of(layer)
    return update if factor == 1.0 else update * factor


def is_finished(layer: nn.Module) -> bool:
    """Whether what the modules of attention and FFN return is what the layer adds."""
    kinds: tuple[Sublayer, ...] = ("attention", "ffn")
    plain = all(isinstance(norm_behind(layer, kind), nn.Identity) for kind in kinds)
    return plain and factor_of(layer) == 1.0


def put_sublayer(layer: nn.Module, kind: Sublayer, module: nn.Module) -> None:
    """Put a module in place of the attention or the feed-forward network and drop its norms."""
    setattr(layer, {"attention": "self_attn", "ffn": "mlp"}[kind], module)
    for norm in filter(None, norms_of(layer, kind)):
        setattr(layer, norm, nn.Identity())


def _norm(layer: nn.Module, name: str) -> nn.Module:
    return getattr(layer, name) if name else nn.Identity()


def attention_kinds(config: PreTrainedConfig) -> list[str]:
    """What each layer attends to: ``"full_attention"`` or ``"sliding_attention"``."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return list(kinds)
    sliding = getattr(config, "sliding_window", None) is not None
    return ["sliding_attention" if sliding else "full_attention"] * config.num_hidden_layers


def layers_alike(config: PreTrainedConfig) -> bool:
    """Whether all layers attend in one way: to the same tokens, with rotary positions or without.

    Layers that differ cannot be merged.
    """
    return all(len(set(getattr(config, name, None) or [None])) == 1 for name in BY_LAYER)


def projections(layer: nn.Module) -> dict[str, nn.Linear]:
    """The seven linear maps of a layer by name."""
    pairs = [(name, attention(layer)) for name in ATTENTION] + [(name, ffn(layer)) for name in FFN]
    return {name: getattr(sublayer, name) for name, sublayer in pairs}


def projection_weights(layer: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of a layer's seven projections, by name."""
    return {name: linear.get_parameter("weight") for name, linear in projections(layer).items()}


class Widths(NamedTuple):
    """Sizes of a layer; ``head`` is the number of channels per head."""

    query_heads: int
    key_value_heads: int
    head: int
    channels: int


def widths(layer: nn.Module) -> Widths:
    """The present sizes of a layer; a config cannot say them if layers differ."""
    maps, head = projections(layer), int(attention(layer).head_dim)  # type: ignore[arg-type]
    queries, keys = maps["q_proj"].out_features, maps["k_proj"].out_features
    return Widths(queries // head, keys // head, head, maps["gate_proj"].out_features)


def count(*modules: nn.Module) -> int:
    """Parameters of the modules together; a shared tensor counts once."""
    distinct = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(distinct.values())


def load_backbone(
    path: Path, dtype: str = "float32", device: str = "cpu", revision: str | None = None
) -> Backbone:
    """Read a Hugging Face folder after checking that its weights fit its config.

    Raises:
        ValueError: Folder, config, weights or tokenizer are missing or damaged or do not fit each
            other, or a weight is NaN or infinite; the message names the file.
    """
    config = read_config(path)
    check_weights(path, config)
    if dtype not in DTYPES:
        raise ValueError(f"dtype '{dtype}' is unknown (allowed: {', '.join(DTYPES)})")
    read_generation(path)
    model = AutoModelForCausalLM.from_pretrained(
        path, config=config, dtype=DTYPES[dtype], local_files_only=True, use_safetensors=True
    )
    guard(model)
    untie_own_head(model)
    check_parameters(model, path)
    split_matrices(model)
    nn.Module.to(model, device).eval()
    if model.device.type == "cpu":
        # The weights are views of one mapped file, whose memory stays until the last one is gone.
        # Copies are freed one by one when a fit replaces them.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    tokenizer = read_tokenizer(path, config)
    revision = read_fetched(path).get("commit") or revision
    return Backbone(model, tokenizer, path, revision, hash_folder(path), count(model))


def convert(model: PreTrainedModel, dtype: Any) -> None:
    """Give a loaded model another dtype, in place.

    Args:
        model: Causal LM on the CPU.
        dtype: One of torch's or its name; None and ``"auto"``: no change.

    Raises:
        ValueError: The dtype is not among ``DTYPES``.
    """
    if dtype is None or dtype == "auto":
        return
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype '{name}' is unknown (allowed: auto, {', '.join(DTYPES)})")
    inner = decoder(model)
    nn.Module.to(model, DTYPES[name])
    # In 16 bits the angles of late tokens would be wrong: a new module computes them again.
    inner.rotary_emb = type(inner.rotary_emb)(model.config)
    restore_scale(inner.embed_tokens)


def check_weights(path: Path, config: PreTrainedConfig) -> None:
    """Compare names and shapes in the safetensors files with those that the config asks for.

    transformers would fill a missing tensor with random numbers and ignore the scales of quantized
    ones, and the run would go on.

    Raises:
        ValueError: A file is missing or damaged, a tensor is missing, unknown, quantized or of
            another shape, the folder has an adapter, or the config contradicts itself.
    """
    check_no_adapter(path)
    shapes: dict[str, list[int]] = {}
    for file in weight_files(path):
        shapes |= read_shapes(file)
    found = {number for number in map(_layer_number, shapes) if number is not None}
    if found != {str(number) for number in range(config.num_hidden_layers)}:
        raise ValueError(
            f"{path} has weights of {len(found)} layers, but config.json asks for layers 0 to "
            f"{config.num_hidden_layers - 1} (num_hidden_layers)"
        )
    expected = _empty_model(config, path).state_dict()
    for name, tensor in expected.items():
        tied = name == "lm_head.weight" and config.tie_word_embeddings
        if name not in shapes and not tied:
            raise ValueError(f"{path} has no tensor '{name}' (its config.json asks for it)")
        if name in shapes and shapes[name] != list(tensor.shape):
            raise ValueError(
                f"{path}: tensor '{name}' has shape {shapes[name]}, "
                f"but config.json asks for {list(tensor.shape)}"
            )
    odd = sorted(name for name in shapes.keys() - expected.keys() if not name.endswith(COMPUTED))
    if odd:
        raise ValueError(
            f"{path} holds tensor '{odd[0]}', which its config.json does not ask for: remove it, "
            "or dequantize the model first if it belongs to quantized weights"
        )


def _layer_number(tensor: str) -> str | None:
    """The number of the layer that a tensor belongs to, None if it belongs to none."""
    match = LAYER.match(tensor)
    return match and match[1]


def shape_config(name: str) -> PreTrainedConfig:
    """The config of a published shape, such as ``llama31_8b``; weights are not needed.

    Raises:
        ValueError: The name is unknown.
    """
    if name not in SHAPES:
        raise ValueError(f"unknown shape '{name}' (allowed: {', '.join(SHAPES)})")
    return AutoConfig.for_model(**SHAPES[name])


def empty_backbone(config: PreTrainedConfig, path: Path = Path()) -> Backbone:
    """A backbone on the meta device: it has shapes and counts, but no numbers and no memory.

    Raises:
        ValueError: The config contradicts itself.
    """
    model = split_matrices(_empty_model(config, path))
    return Backbone(model.eval(), None, path, None, "", count(model))


def _empty_model(config: PreTrainedConfig, path: Path) -> PreTrainedModel:
    """The model that transformers makes of a config, on the meta device.

    Raises:
        ValueError: The config contradicts itself.
    """
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise ValueError(f"the config in {path} fits no model: {first_line(error)}") from error
    return model
