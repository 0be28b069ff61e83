"""Where a model ends a text, and greedy decoding with nothing else of its settings."""

from __future__ import annotations

from transformers import GenerationConfig, PreTrainedModel


def end_tokens(model: PreTrainedModel) -> list[int]:
    """The ids at which the model ends a text: from its generation config, else from its config."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        ids = getattr(model.config, "eos_token_id", None)
    return [] if ids is None else list(ids) if isinstance(ids, list) else [ids]


def greedy(model: PreTrainedModel) -> GenerationConfig:
    """Greedy decoding with the model's special tokens and without its other settings."""
    own = model.generation_config
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        bos_token_id=own.bos_token_id,
        pad_token_id=own.pad_token_id,
        eos_token_id=end_tokens(model) or None,
    )
