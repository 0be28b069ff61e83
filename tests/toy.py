"""Toy backbones, data and tasks: tiny, random, made where a test asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from methods.core.data import Data, Document
from methods.core.model.backbone import Backbone, count

# Ids 0 to 59 are words: id 0, which the harness pads with, is a real token.
WORDS = [f"w{n}" for n in range(60)]
SPECIAL = ["<unk>", "<bos>", "<eos>", "<pad>"]
UNK, BOS, EOS, PAD = range(60, 64)
VOCABULARY = 64

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
SHAPES: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "tied": BASE | {"num_hidden_layers": 4, "tie_word_embeddings": True},
    "qwen3": BASE | {"model_type": "qwen3", "num_hidden_layers": 4, "head_dim": 8},
    "mistral": BASE | {"model_type": "mistral", "num_hidden_layers": 4, "sliding_window": 6},
    # Full attention in the first two layers, a window of six tokens in the others.
    "qwen2": BASE
    | {"model_type": "qwen2", "num_hidden_layers": 4, "use_sliding_window": True}
    | {"sliding_window": 6, "max_window_layers": 2},
}


def make_tokenizer(extra: int = 0, form: str = "$A") -> PreTrainedTokenizerFast:
    """Words parted by spaces; ``extra`` more tokens than the toys have embeddings.

    ``form`` says what stands around a text, such as ``<bos> $A``.
    """
    words = [*WORDS, *SPECIAL, *(f"x{n}" for n in range(extra))]
    core = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("<bos>", BOS), ("<eos>", EOS)]
    core.post_processor = processors.TemplateProcessing(single=form, special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )


def make_model(kind: str = "llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A causal LM with random weights, in eval mode."""
    config = AutoConfig.for_model(**(SHAPES[kind] | changes))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    return model.eval()


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


def keep_layers(dense: PreTrainedModel, kept: list[int]) -> PreTrainedModel:
    """A fresh model of the layers ``kept``, filled tensor by tensor."""
    raw = dense.config.to_dict() | {"num_hidden_layers": len(kept)}
    if raw.get("layer_types"):
        raw["layer_types"] = [raw["layer_types"][n] for n in kept]
    fresh = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw)).eval()
    weights = {}
    for name, tensor in dense.state_dict().items():
        if name.startswith("model.layers."):
            _, _, number, rest = name.split(".", 3)
            for place in (place for place, layer in enumerate(kept) if layer == int(number)):
                weights[f"model.layers.{place}.{rest}"] = tensor
        else:
            weights[name] = tensor
    fresh.load_state_dict(weights)
    return fresh


def wrap(model: PreTrainedModel) -> Backbone:
    """A backbone without a folder."""
    return Backbone(model, None, Path(), None, "", count(model))


def ids_of(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Documents of random words."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60, length).tolist() for length in lengths]


def calibration(documents: list[list[int]]) -> Data:
    """Data whose calibration documents are these."""
    data = Data(None, VOCABULARY)
    data.__dict__["_calibration"] = [Document(ids, 0) for ids in documents]
    return data


def make_backbone(folder: Path, kind: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """A Hugging Face folder with model and tokenizer."""
    make_model(kind, seed, **changes).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def give_head(folder: Path, seed: int = 1) -> Path:
    """Write a head of its own into a folder whose config ties it to the embedding."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    shape = weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).shape
    head = 0.2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    save_file(weights | {"lm_head.weight": head}, file, metadata={"format": "pt"})
    return folder


def sentence(rng: np.random.Generator, length: int) -> str:
    return " ".join(f"w{n}" for n in rng.integers(0, 60, length))


def write_jsonl(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def make_data(folder: Path) -> dict[str, Path]:
    """Calibration ids, text files of three splits with prompts and completions, a probe file."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    files = {"ids": folder / "ids.npy"}
    np.save(files["ids"], rng.integers(0, 60, (12, 16)))
    for split, size in (("calibration", 24), ("training", 64), ("validation", 24)):
        rows = [
            {"prompt": sentence(rng, int(rng.integers(3, 9))), "completion": sentence(rng, 3)}
            for _ in range(size)
        ]
        files[split] = write_jsonl(folder / f"{split}.jsonl", rows)
    probes = [{"fed": sentence(rng, int(rng.integers(6, 13)))} for _ in range(24)]
    files["probe"] = write_jsonl(folder / "probe.jsonl", probes)
    return files


def make_tasks(folder: Path, items: int = 12) -> Path:
    """A folder of lm-eval tasks: ``toy_choice`` by log-likelihood, ``toy_write`` by generation."""
    rng = np.random.default_rng(2)
    choices = [
        {
            "question": sentence(rng, int(rng.integers(2, 9))),
            "options": [sentence(rng, 1 + int(rng.integers(0, 3))) for _ in range(3)],
            "answer": int(rng.integers(0, 3)),
        }
        for _ in range(items)
    ]
    prompts = [
        {"question": sentence(rng, int(rng.integers(2, 9))), "answer": f"w{rng.integers(0, 60)}"}
        for _ in range(items)
    ]
    common = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}"}
    choice = common | {
        "task": "toy_choice",
        "dataset_kwargs": {
            "data_files": {"test": str(write_jsonl(folder / "choice.jsonl", choices))}
        },
        "output_type": "multiple_choice",
        "doc_to_choice": "{{options}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True}
            for name in ("acc", "acc_norm")
        ],
        "metadata": {"version": 1.0},
    }
    write = common | {
        "task": "toy_write",
        "dataset_kwargs": {
            "data_files": {"test": str(write_jsonl(folder / "write.jsonl", prompts))}
        },
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {
            "until": ["w7", "w23 w", "w5"],
            "max_gen_toks": 12,
            "do_sample": False,
        },
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    for task in (choice, write):
        (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    return folder
