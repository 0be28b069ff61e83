"""Small models and data sets in the form of those that the paper's suites fetch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.hub import Hub, Repository, Rows, data_set

WORDS = (
    "river stone morning window garden letter teacher market winter bread paper music water "
    "bridge forest candle engine silver doctor island pocket summer ladder mirror village"
).split()
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
HEADERS = ["<|start_header_id|>", "<|end_header_id|>"]
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
EVERY = ("train", "validation", "test")
# Data set -> config -> split -> rows.
Sets = dict[str, dict[str, dict[str, Rows]]]


def make_hub(folder: Path, data: int = 12) -> Hub:
    """A hub with the backbones and data sets of the paper's suites, ``data`` rows per split."""
    chat = _tokenizer([*LLAMA3, *HEADERS], chat=True)
    base = _tokenizer(["<s>", "</s>", "<unk>"], chat=False)
    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    llama3 = {
        "num_hidden_layers": 32, "num_key_value_heads": 2, "rope_parameters": rope,
        "max_position_embeddings": 131072, "bos_token_id": 0, "eos_token_id": [1, 2, 3],
    }  # fmt: skip
    llama2 = {
        "num_hidden_layers": 32, "num_key_value_heads": 4, "max_position_embeddings": 4096,
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    models_ = {
        "meta-llama/Llama-3.1-8B-Instruct": _model(folder / "llama31", llama3, chat),
        "meta-llama/Llama-2-7b-hf": _model(folder / "llama2_7b", llama2, base),
        "meta-llama/Llama-2-13b-hf": _model(
            folder / "llama2_13b", llama2 | {"num_hidden_layers": 40}, base
        ),
    }
    sets = {name: data_set(folder / name, parts) for name, parts in _sets(data).items()}
    return Hub(models=models_, datasets=sets)


def _tokenizer(special: Sequence[str], chat: bool) -> PreTrainedTokenizerFast:
    """Byte-level BPE. The special tokens have the first ids; no test depends on that."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    core.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    core.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", pair=f"{special[0]} $A $B", special_tokens=[(special[0], 0)]
    )
    end = "<|eot_id|>" if chat else special[1]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=special[0], eos_token=end)
    if chat:
        tokenizer.chat_template = CHAT
    return tokenizer


def _model(
    folder: Path, shape: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast
) -> Repository:
    """Random weights in bfloat16, in the files of a true repository."""
    config = AutoConfig.for_model("llama", vocab_size=len(tokenizer), **TINY, **shape)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config.update(temperature=0.6, top_p=0.9, do_sample=True)
    model.save_pretrained(folder, max_shard_size="200KB")
    tokenizer.save_pretrained(folder)
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.00.pth").write_bytes(b"never to be fetched")
    return Repository(folder)


class _Rows:
    """Makes rows with one generator.

    Args:
        number: Rows per split.
    """

    def __init__(self, number: int) -> None:
        self.number, self.rng = number, random.Random(0)

    def text(self, low: int, high: int) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(low, high)))

    def choices(self, labels: str) -> dict[str, list[str]]:
        return {"text": [self.text(1, 4) for _ in labels], "label": list(labels)}

    def splits(
        self, make: Callable[[int], dict[str, Any]], *names: str, times: int = 1
    ) -> dict[str, Rows]:
        return {name: [make(n) for n in range(self.number * times)] for name in names}


def _sets(number: int) -> Sets:
    """All data sets, with ``number`` rows per split."""
    rows = _Rows(number)
    return _question_sets(rows) | _sense_sets(rows) | _written_sets(rows) | _text_sets(rows)


def _question_sets(rows: _Rows) -> Sets:
    """Questions of four lettered answers."""

    def openbookqa(n: int) -> dict[str, Any]:
        return {
            "id": f"q{n}", "question_stem": rows.text(5, 9), "choices": rows.choices("ABCD"),
            "answerKey": rows.rng.choice("ABCD"),
        }  # fmt: skip

    def arc(n: int) -> dict[str, Any]:
        return {
            "id": f"q{n}", "question": f"{rows.text(5, 12)}?", "choices": rows.choices("ABCD"),
            "answerKey": rows.rng.choice("ABCD"),
        }  # fmt: skip

    # Few-shot examples are drawn from the training split: 25 at most.
    shots = max(1, -(-30 // rows.number))
    return {
        "allenai/openbookqa": {
            "main": rows.splits(openbookqa, *EVERY), "additional": rows.splits(openbookqa, "train"),
        },
        "allenai/ai2_arc": {
            "ARC-Easy": rows.splits(arc, *EVERY, times=shots),
            "ARC-Challenge": rows.splits(arc, *EVERY, times=shots),
        },
    }  # fmt: skip


def _sense_sets(rows: _Rows) -> Sets:
    """Numbered answers and endings."""

    def piqa(n: int) -> dict[str, Any]:
        goal, first, second = rows.text(3, 8), rows.text(4, 9), rows.text(4, 9)
        return {"goal": goal, "sol1": first, "sol2": second, "label": n % 2}

    def boolq(n: int) -> dict[str, Any]:
        question, passage = rows.text(4, 8), rows.text(20, 40)
        return {"question": question, "passage": passage, "idx": n, "label": n % 2}

    def winogrande(n: int) -> dict[str, Any]:
        return {
            "sentence": f"{rows.text(4, 6)} _ {rows.text(2, 5)}.", "option1": "river",
            "option2": "stone", "answer": str(1 + n % 2),
        }  # fmt: skip

    def hellaswag(n: int) -> dict[str, Any]:
        context = rows.text(5, 9)
        return {
            "ind": n, "activity_label": rows.text(1, 2), "ctx_a": context, "ctx_b": "",
            "ctx": context, "endings": [rows.text(3, 7) for _ in range(4)], "source_id": f"s{n}",
            "split": "train", "split_type": "indomain", "label": str(n % 4),
        }  # fmt: skip

    return {
        "baber/piqa": {"default": rows.splits(piqa, *EVERY)},
        "aps/super_glue": {
            "boolq": rows.splits(boolq, *EVERY), "cb": rows.splits(boolq, "train"),
        },
        "allenai/winogrande": {"winogrande_xl": rows.splits(winogrande, "train", "validation")},
        "Rowan/hellaswag": {"default": rows.splits(hellaswag, *EVERY)},
    }  # fmt: skip


def _written_sets(rows: _Rows) -> Sets:
    """Answers that a model writes."""

    def gsm8k(n: int) -> dict[str, Any]:
        question, steps = rows.text(8, 15), rows.text(5, 9)
        return {"question": f"{question} {n} and 2?", "answer": f"{steps}\n#### {n + 2}"}

    def humaneval(n: int) -> dict[str, Any]:
        return {
            "task_id": f"Made/{n}", "entry_point": "add",
            "canonical_solution": f"    return x + {n}\n",
            "prompt": f'def add(x: int) -> int:\n    """ Add {n} to {rows.text(1, 3)}. """\n',
            "test": f"def check(candidate):\n    assert candidate(2) == {n + 2}\n",
        }  # fmt: skip

    return {
        "openai/gsm8k": {"main": rows.splits(gsm8k, "train", "test")},
        "openai/openai_humaneval": {"openai_humaneval": rows.splits(humaneval, "test")},
    }


def _text_sets(rows: _Rows) -> Sets:
    """Texts for training and calibration: chats and books."""

    def tulu(n: int) -> dict[str, Any]:
        turns = [{"role": "user", "content": rows.text(5, 20)}]
        turns.append({"role": "assistant", "content": rows.text(10, 40)})
        return {"id": f"t{n}", "messages": turns, "source": "made"}

    def book(n: int) -> dict[str, Any]:
        title, text = rows.text(1, 3), rows.text(700, 900)
        return {"short_book_title": title, "publication_date": 1900, "text": text}

    return {
        "allenai/tulu-3-sft-mixture": {"default": rows.splits(tulu, "train", times=50)},
        "emozilla/pg19": {"default": rows.splits(book, *EVERY, times=5)},
    }
