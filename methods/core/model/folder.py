"""Folders of Hugging Face models: config, weight files, tokenizer, read as data and checked."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from methods.core.facts import file_facts, read_fetched
from methods.core.jsonfile import first_line, read_json
from methods.core.model.families import FAMILIES

# Sizes of a config, each at least 1.
SIZES = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "max_position_embeddings",
)  # fmt: skip
# Keys of a config whose value may name kernels of a hub, as owner/name.
KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation")
MOST_LAYERS = 1000  # as in the schema of records
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
GENERATION, ADAPTER = "generation_config.json", "adapter_config.json"
SHARD = re.compile(r"[\w-][\w.-]*\.safetensors")


def read_config(path: Path) -> PreTrainedConfig:
    """The config in a folder, of a supported family.

    Raises:
        ValueError: No folder, no readable config.json, another family, or a size below 1.
    """
    if not path.is_dir():
        raise ValueError(f"backbone folder {path} does not exist or is no folder{_fetching(path)}")
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"backbone folder {path} has no config.json")
    return make_config(read_json(file), file)


def make_config(raw: dict[str, Any], where: object) -> PreTrainedConfig:
    """A config of a supported family.

    Args:
        raw: Content of a config.json.
        where: Its name, for messages.

    Raises:
        ValueError: Another family, quantized weights, kernels of a hub, weights of another file, a
            value of the wrong type, a size below 1, or more than :data:`MOST_LAYERS` layers.
    """
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(
            f"{where}: model_type {family!r} is not supported (allowed: {', '.join(FAMILIES)})"
        )
    if raw.get("quantization_config"):
        raise ValueError(
            f"{where} tells of quantized weights (quantization_config), which are not read: "
            "dequantize the model first"
        )
    for key in KERNELS:
        if "/" in str(raw.get(key)):
            raise ValueError(f"{where}: {key} {raw[key]!r} is code of a hub, which is never run")
    if raw.get("transformers_weights") is not None:
        raise ValueError(
            f"{where}: transformers_weights names a file of its own; "
            f"weights are read from {WEIGHTS} or {INDEX} alone"
        )
    layers = raw.get("num_hidden_layers", 1)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        # A config lists the kind of each layer, so that a large number alone would take all memory.
        raise ValueError(f"{where}: num_hidden_layers is {layers}, must be at most {MOST_LAYERS}")
    try:
        config: PreTrainedConfig = AutoConfig.for_model(**raw)
    except Exception as error:
        raise ValueError(f"{where} is not a valid {family} config: {first_line(error)}") from error
    for name in SIZES:
        size = getattr(config, name)
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{where}: {name} is {size!r}, must be a positive whole number")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        # No other implementation caps scores; older versions of transformers would leave it out.
        config._attn_implementation = "eager"
    if getattr(config, "use_bidirectional_attention", False):
        raise ValueError(f"{where}: use_bidirectional_attention is set, so this is no causal model")
    for name, value in _scales(config).items():
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{where}: {name} is {value!r}, must be a positive number")
    return config


def window_of(config: PreTrainedConfig) -> int:
    """The largest number of tokens of a text."""
    return int(config.max_position_embeddings)


def _scales(config: PreTrainedConfig) -> dict[str, Any]:
    """Numbers of a config that must be positive, or every hidden state is NaN."""
    rope = getattr(config, "rope_parameters", None) or {}
    return {"rms_norm_eps": config.rms_norm_eps, "rope_theta": rope.get("rope_theta", 1.0)}


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder, single or sharded.

    Raises:
        ValueError: There is none, the index cannot be read, or a shard is missing.
    """
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if (path / INDEX).is_file():
        index = read_json(path / INDEX)
        for key in ("metadata", "weight_map"):
            if not isinstance(index.get(key), dict):
                raise ValueError(f"{path / INDEX} is not a valid index of weights: no '{key}'")
        shards = list(index["weight_map"].values())
        for name in shards:
            # A shard in another folder would be read, but not be part of this folder's hash.
            if not isinstance(name, str) or not SHARD.fullmatch(name):
                raise ValueError(f"{path / INDEX} names {name!r}, no safetensors file beside it")
            if not (path / name).is_file():
                raise ValueError(f"{path / INDEX} names {name}, which is missing")
        return [path / name for name in sorted(set(shards))]
    raise ValueError(f"backbone folder {path} has no {WEIGHTS} and no {INDEX}")


def check_no_adapter(path: Path) -> None:
    """Refuse a folder with a peft adapter, which transformers would add to the weights.

    Raises:
        ValueError: There is an adapter.
    """
    if (path / ADAPTER).is_file():
        raise ValueError(
            f"{path} holds an adapter ({ADAPTER}): merge it into the weights, or move it away"
        )


def hash_folder(path: Path) -> str:
    """The identity of the weights: 16 hex digits of sha256 over config.json and weight files."""
    facts_by_name = read_fetched(path).get("files", {})
    digest = hashlib.sha256()
    for file in [path / "config.json", *weight_files(path)]:
        facts = file_facts(file, facts_by_name.get(file.name))
        digest.update(bytes.fromhex(facts["sha256"]))
    return digest.hexdigest()[:16]


def read_tokenizer(path: Path, config: PreTrainedConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a folder, None if it holds none.

    Raises:
        ValueError: It cannot be read, or has more tokens than the model has embeddings.
    """
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
    if not any((path / name).is_file() for name in names):
        return None
    try:
        # Unless it is told not to, transformers asks on a terminal whether to run a folder's code.
        tokenizer = AutoTokenizer.from_pretrained(
            path, config=config, local_files_only=True, trust_remote_code=False
        )
        tokenizer(["a word"], return_attention_mask=False)
        number = max(len(tokenizer), *(n + 1 for n in tokenizer.get_vocab().values()))
    except Exception as error:
        raise ValueError(f"the tokenizer in {path} cannot be read: {first_line(error)}") from error
    if number > config.vocab_size:
        raise ValueError(
            f"the tokenizer in {path} has {number} tokens, "
            f"the model only {config.vocab_size} embeddings (vocab_size)"
        )
    return tokenizer


def read_generation(path: Path) -> GenerationConfig | None:
    """The generation settings in a folder, None if there are none.

    Raises:
        ValueError: It cannot be read.
    """
    if not (path / GENERATION).is_file():
        return None
    try:
        return GenerationConfig.from_pretrained(path, local_files_only=True)
    except Exception as error:
        raise ValueError(f"{path / GENERATION} cannot be read: {first_line(error)}") from error


def _fetching(path: Path) -> str:
    """A hint for a path like ``owner/name``, which may be a model of the hub; else empty."""
    if not HUB_NAME.fullmatch(str(path)):
        return ""
    source = json.dumps({"path": f"hub:{path}"})
    return (
        "; a model of the hub is fetched first: "
        f"python -m workflows.steps.fetch --source '{source}' --out {path.name}"
    )
