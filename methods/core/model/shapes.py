"""Facts about backbones that need no torch: projections, published configs, layers to route."""

from __future__ import annotations

from typing import Any

# Projections of a layer.
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FFN = ("gate_proj", "up_proj", "down_proj")

_LLAMA31 = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
_LLAMA2 = {"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 4096}
# Published models, and small ones; for counts and timings without weights.
SHAPES: dict[str, dict[str, Any]] = {
    "llama31_8b": _LLAMA31,
    "llama2_7b": _LLAMA2
    | {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 32},
    "llama2_13b": _LLAMA2
    | {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40}
    | {"num_attention_heads": 40, "num_key_value_heads": 40},
    "llama32_1b": _LLAMA31
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"head_dim": 64, "tie_word_embeddings": True},
    "qwen25_05b": {"model_type": "qwen2", "vocab_size": 151936, "max_position_embeddings": 32768}
    | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "smollm2_135m": {"model_type": "llama", "vocab_size": 49152, "max_position_embeddings": 8192}
    | {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    | {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
    # Small enough to try runs on a CPU that are meant for a GPU.
    "cpu_16": _LLAMA31
    | {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 48}
    | {"num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1}
    | {"max_position_embeddings": 16384},
    # Small enough to time on a CPU, large enough that most time goes to matrix products.
    "cpu_512": _LLAMA31
    | {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1792}
    | {"num_hidden_layers": 16, "num_attention_heads": 8, "num_key_value_heads": 2}
    | {"max_position_embeddings": 8192},
    # For decoding: 0.9 GB of weights, more than the caches of a processor hold.
    "cpu_1024": _LLAMA31
    | {"vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 3584}
    | {"num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4}
    | {"max_position_embeddings": 8192},
}


def candidate_layers(layer_count: int, budget: float) -> list[int]:
    """The layers whose FFNs may be skipped at a budget.

    At 25 % these are the layers of the latter half, at 40 % those of the last three quarters (HeRo,
    section 4.1); their FFNs hold about 35 % and 53 % of a Llama. Above 45 % it is every layer.

    Returns:
        0-based layers, ascending.
    """
    if budget <= 0.30:
        first = layer_count // 2
    else:
        first = layer_count // 4 if budget <= 0.45 else 0
    return list(range(first, layer_count))
