"""Toy backbones: a few layers with random weights."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from methods.core.model.backbone import Backbone, count
from tests.toys.texts import BOS, EOS, PAD, VOCABULARY, make_tokenizer

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "tied": BASE | {"num_hidden_layers": 4, "tie_word_embeddings": True},
    "qwen3": BASE | {"model_type": "qwen3", "num_hidden_layers": 4, "head_dim": 8},
    "mistral": BASE | {"model_type": "mistral", "num_hidden_layers": 4, "sliding_window": 6},
    # Full attention in the first two layers, a window of six tokens in the others.
    "qwen2": BASE
    | {"model_type": "qwen2", "num_hidden_layers": 4, "use_sliding_window": True}
    | {"sliding_window": 6, "max_window_layers": 2},
}
# Families whose layers differ more: norms behind sublayers, factors, fused matrices, layers without
# rotary positions, soft caps.
SMALL = BASE | {"num_hidden_layers": 4, "head_dim": 8}
WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2}
OTHERS: dict[str, dict[str, Any]] = {
    "smollm3": SMALL | {"model_type": "smollm3", "no_rope_layers": [1, 1, 0, 1]},
    "granite": SMALL
    | {"model_type": "granite", "embedding_multiplier": 3.0, "logits_scaling": 2.0}
    | {"residual_multiplier": 0.5, "attention_multiplier": 0.3},
    "olmo2": SMALL | {"model_type": "olmo2"},
    "olmo3": SMALL | {"model_type": "olmo3"} | WINDOWS,
    "phi3": SMALL | {"model_type": "phi3", "partial_rotary_factor": 0.5, "sliding_window": None},
    "exaone4": SMALL | {"model_type": "exaone4"} | WINDOWS,
    "seed_oss": SMALL | {"model_type": "seed_oss"},
    "gemma2": SMALL
    | {"model_type": "gemma2", "query_pre_attn_scalar": 10, "attn_logit_softcapping": 5.0}
    | {"final_logit_softcapping": 3.0, "tie_word_embeddings": True}
    | WINDOWS,
    "gemma3": SMALL
    | {"model_type": "gemma3_text", "query_pre_attn_scalar": 10, "tie_word_embeddings": True}
    | WINDOWS,
}


KINDS = sorted(CONFIGS)
# A key/value head for every query head.
MHA = BASE | {"num_key_value_heads": 4}


def make_model(kind: str = "llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A causal LM with random weights, in eval mode: of ``CONFIGS``, ``OTHERS`` or "mha"."""
    config = AutoConfig.for_model(**((CONFIGS | OTHERS | {"mha": MHA})[kind] | changes))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    return model.eval()


def make_four(kind: str = "llama", **changes: Any) -> PreTrainedModel:
    """A toy of four layers, unless ``changes`` say another number."""
    return make_model(kind, **({"num_hidden_layers": 4} | changes))


def make_scaled(
    kind: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any
) -> PreTrainedModel:
    """A toy whose norms scale, and whose matrices have biases where the family allows them."""
    model = make_model(kind, **changes)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5, torch.Generator().manual_seed(len(name)))
    return cast(model, dtype)


def draw_biases(model: Any) -> Any:
    """The model, with random numbers in every bias."""
    draw = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, generator=draw)
    return model


def cast(model: Any, dtype: torch.dtype) -> Any:
    """The model in ``dtype``; in float64 its norms too, which a family computes in float32."""
    if dtype is torch.float64:
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = MethodType(_norm, module)
    return model.to(dtype)


def _norm(self: Any, hidden: Tensor) -> Tensor:
    mean_square = hidden.square().mean(-1, keepdim=True)
    return self.weight * hidden * (mean_square + self.variance_epsilon).rsqrt()


def keep_layers(dense: PreTrainedModel, numbers: list[int]) -> PreTrainedModel:
    """A new model of the layers ``numbers``, filled tensor by tensor."""
    raw = dense.config.to_dict() | {"num_hidden_layers": len(numbers)}
    if raw.get("layer_types"):
        raw["layer_types"] = [raw["layer_types"][n] for n in numbers]
    fresh = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw)).eval()
    weights = {}
    for name, tensor in dense.state_dict().items():
        if name.startswith("model.layers."):
            _, _, number, rest = name.split(".", 3)
            for place in (place for place, layer in enumerate(numbers) if layer == int(number)):
                weights[f"model.layers.{place}.{rest}"] = tensor
        else:
            weights[name] = tensor
    fresh.load_state_dict(weights)
    return fresh


def wrap(model: Any) -> Backbone:
    """The model as a backbone without a folder."""
    return Backbone(model, None, Path(), None, "", count(model))


def make_backbone(folder: Path, kind: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """Write a Hugging Face folder with model and tokenizer."""
    make_model(kind, seed, **changes).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def untie(folder: Path, seed: int = 1) -> Path:
    """Write a head into a folder whose config ties the head to the embedding."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    shape = weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).shape
    head = 0.2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    save_file(weights | {"lm_head.weight": head}, file, metadata={"format": "pt"})
    return folder
