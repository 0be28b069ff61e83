"""The families of decoders that are read, and how each differs from Llama.

A decoder layer adds to the stream of hidden states twice, by its attention and by its FFN:

    hidden + factor * behind(sublayer(front(hidden)))

Llama has a norm in front and no factor. Gemma has norms on both sides, OLMo 2 behind alone, Granite
a factor. A layer shows this by the names of its norms (``NORMS``); what lies outside the layers is
in the config, under the names in ``FAMILIES``. ``backbone.py`` asks this module; nothing else names
a family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.phi3.modeling_phi3 import (
    Phi3Attention,
    Phi3MLP,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

Sublayer = Literal["attention", "ffn"]


class Family(NamedTuple):
    """What a family has that Llama has not; each string is the name of a key of its config.

    ``embedding_factor`` multiplies the embeddings, ``logit_divisor`` divides the logits,
    ``logit_cap`` bounds them softly: cap * tanh(logit / cap). Norms multiply by their weight plus
    ``norm_offset``.
    """

    embedding_factor: str = ""
    logit_divisor: str = ""
    logit_cap: str = ""
    norm_offset: float = 0.0


# model_type of a config -> what is special. Layers are told apart by their modules.
FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "smollm3": Family(),
    "olmo2": Family(),
    "olmo3": Family(),
    "exaone4": Family(),
    "seed_oss": Family(),
    "phi3": Family(),
    "granite": Family(embedding_factor="embedding_multiplier", logit_divisor="logits_scaling"),
    "gemma2": Family(logit_cap="final_logit_softcapping", norm_offset=1.0),
    "gemma3_text": Family(logit_cap="final_logit_softcapping", norm_offset=1.0),
}


class Norms(NamedTuple):
    """Names of the norms in front of a sublayer and behind it; "" where there is none."""

    front: str
    behind: str


# The norms of a layer by sublayer. A layer has those of the first entry whose names it has all.
NORMS: tuple[dict[Sublayer, Norms], ...] = (
    {
        "attention": Norms("input_layernorm", "post_attention_layernorm"),
        "ffn": Norms("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    },
    {
        "attention": Norms("", "post_attention_layernorm"),
        "ffn": Norms("", "post_feedforward_layernorm"),
    },
    {
        "attention": Norms("input_layernorm", ""),
        "ffn": Norms("post_attention_layernorm", ""),
    },
)
# What a config says of each layer in turn.
BY_LAYER = ("layer_types", "no_rope_layers")


def norms_of(layer: nn.Module, kind: Sublayer) -> Norms:
    """The names of the norms of a sublayer."""
    names = next(
        entry
        for entry in NORMS
        if all(not name or name in layer._modules for norms in entry.values() for name in norms)
    )
    return names[kind]


def factor_of(layer: nn.Module) -> float:
    """What multiplies all that the sublayers of a layer add."""
    return float(getattr(layer, "residual_multiplier", 1.0))


def has_rotary(attention: nn.Module) -> bool:
    """Whether an attention turns its queries and keys by their positions."""
    module: Any = attention
    if hasattr(module, "is_sliding") and hasattr(module, "sliding_window_pattern"):
        # EXAONE 4: where some layers have a window, the others have no positions.
        return bool(module.sliding_window is None or module.is_sliding)
    return bool(getattr(module, "use_rope", True))


def embedding_factor(config: PreTrainedConfig) -> float:
    """What multiplies the embeddings outside their module."""
    name = _family(config).embedding_factor
    return float(getattr(config, name)) if name else 1.0


def norm_offset(config: PreTrainedConfig) -> float:
    """What norms add to their weight before they multiply by it."""
    return _family(config).norm_offset


def restore_scale(embeddings: Any) -> None:
    """Give embeddings that scale their rows (Gemma) their factor, which is not stored."""
    if hasattr(embeddings, "scalar_embed_scale"):
        embeddings.embed_scale = torch.tensor(embeddings.scalar_embed_scale)


def logits_of(model: Any) -> Callable[[Tensor], Tensor]:
    """The function from normed states (..., D) to logits (..., V), as the causal LM has it."""
    config, family = model.config, _family(model.config)
    head: nn.Module = model.lm_head
    divisor = getattr(config, family.logit_divisor) if family.logit_divisor else None
    cap = getattr(config, family.logit_cap) if family.logit_cap else None
    if divisor is None and cap is None:
        return head

    def logits(states: Tensor) -> Tensor:
        values: Tensor = head(states)
        if divisor is not None:
            values = values / divisor
        return values if cap is None else torch.tanh(values / cap) * cap

    return logits


def _family(config: PreTrainedConfig) -> Family:
    return FAMILIES.get(config.model_type, Family())


def split_matrices(model: PreTrainedModel) -> PreTrainedModel:
    """Give every layer the seven projections of a Llama in place of fused ones (Phi-3), in place.

    The numbers stay the same, and so does what the model computes, up to rounding.
    """
    modules: list[Any] = list(model.modules())
    for module in modules:
        if isinstance(module, Phi3Attention) and hasattr(module, "qkv_proj"):
            own = module.o_proj.in_features
            shared = (module.qkv_proj.out_features - own) // 2
            _split(module, "qkv_proj", {"q_proj": own, "k_proj": shared, "v_proj": shared})
            module.__class__ = SplitAttention
        elif isinstance(module, Phi3MLP) and hasattr(module, "gate_up_proj"):
            width = module.down_proj.in_features
            _split(module, "gate_up_proj", {"gate_proj": width, "up_proj": width})
            module.act_fn = module.activation_fn
            module.__class__ = SplitMLP
    return model


def _split(module: nn.Module, name: str, sizes: dict[str, int]) -> None:
    """Replace a linear map by several that hold its rows in turn."""
    whole = getattr(module, name)
    delattr(module, name)
    for part, rows in zip(sizes, whole.weight.detach().split(list(sizes.values())), strict=True):
        with torch.device("meta"):
            linear = nn.Linear(whole.in_features, len(rows), bias=False)
        linear.weight = nn.Parameter(rows.clone(), requires_grad=whole.weight.requires_grad)
        setattr(module, part, linear)


class SplitAttention(Phi3Attention):
    """The attention of Phi-3 with q_proj, k_proj and v_proj in place of one matrix."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the parent's; the widths follow from the matrices, so heads may be removed."""
        query, key, value = (
            linear(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        read, weights = attend(
            self, query, key, value, attention_mask,
            dropout=self.attention_dropout if self.training else 0.0, scaling=self.scaling,
            sliding_window=getattr(self.config, "sliding_window", None), **kwargs,
        )  # fmt: skip
        update: Tensor = self.o_proj(read.flatten(2))
        return update, weights


class SplitMLP(Phi3MLP):
    """The FFN of Phi-3 with gate_proj and up_proj in place of one matrix."""

    gate_proj: nn.Linear
    up_proj: nn.Linear
    act_fn: nn.Module

    def forward(self, hidden_states: Tensor) -> Tensor:
        """As the parent's."""
        gated = self.act_fn(self.gate_proj(hidden_states)) * self.up_proj(hidden_states)
        update: Tensor = self.down_proj(gated)
        return update
