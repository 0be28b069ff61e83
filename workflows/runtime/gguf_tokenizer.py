"""The tokenizer of a GGUF file, with what transformers leaves out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, TokenizersBackend
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_PRE_TOKENIZER_SPLITS,
    convert_gguf_tokenizer,
    get_gguf_tokenizer,
)

from workflows.runtime.gguf_header import Header

# tokenizer.ggml.model: byte-level BPE, and sentencepiece.
BYTES, PIECES = "gpt2", "llama"
# tokenizer.ggml.pre of a byte-level vocabulary: names of GPT-2's split, with digits apart or not.
GPT2, DIGITS = ("gpt-2", "olmo"), "smollm"
SPLITS = sorted({*GGUF_PRE_TOKENIZER_SPLITS, *GPT2, DIGITS})
# llama.cpp takes a word that is a token as it is, and begins a text with BOS unless told otherwise.
WHOLE_WORDS = (
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "tekken",
)  # fmt: skip
CONTROL, USER_DEFINED = 3, 4
TEXTS = (
    "A word", "  two  spaces ", "In 2023, 1 of 1234", "\n\n1. One\n\n\n22\t2\r\n",
    "UPPER CamelCase", "äöüß ÄÖÜ naïve", "it's, we'LL (x+y)/2 == <z>", "日本語 🙂",
)  # fmt: skip


def check_tokenizer(header: Header) -> None:
    """Refuse a tokenizer before it is built.

    Raises:
        ValueError: There is none, or it splits words in a way that is not known.
    """
    kind, split = header.token("model"), header.token("pre")
    if kind not in (BYTES, PIECES) or not header.token("tokens"):
        said = f"a tokenizer '{kind}'" if kind and header.token("tokens") else "no tokenizer"
        raise ValueError(f"{header.file} holds {said} (taken: {BYTES}, {PIECES})")
    if kind == BYTES and split not in SPLITS:
        said = "lacks tokenizer.ggml.pre" if split is None else f"has tokenizer.ggml.pre '{split}'"
        raise ValueError(f"{header.file} {said} (taken: {', '.join(SPLITS)})")


def write_tokenizer(header: Header, folder: Path) -> None:
    """Write the tokenizer of a file into a folder."""
    architecture, content, settings = get_gguf_tokenizer(str(header.file))
    core, _ = convert_gguf_tokenizer(architecture, content)
    described = json.loads(core.to_str())
    _mend(described, header)
    if header.token("model") == BYTES and header.token("pre") in WHOLE_WORDS:
        settings.setdefault("add_bos_token", True)
    core = Tokenizer.from_str(json.dumps(described))
    TokenizersBackend(tokenizer_object=core, **settings).save_pretrained(folder)


def _mend(described: dict[str, Any], header: Header) -> None:
    """Change the description of a tokenizer to what the file says."""
    added = _added(header)
    names = {token["id"]: token["content"] for token in added}
    # A byte-level vocabulary spells tokens as bytes, also those that are found whole in a text.
    model = described["model"]
    model["vocab"] = {names.get(n, token): n for token, n in model["vocab"].items()}
    described["added_tokens"] = added
    split = header.token("pre")
    if header.token("model") == PIECES:
        if header.token("add_space_prefix") is False:
            described["pre_tokenizer"]["prepend_scheme"] = "never"
            steps = described["decoder"]["decoders"]
            described["decoder"]["decoders"] = [step for step in steps if step["type"] != "Strip"]
        return
    model["ignore_merges"] = split in WHOLE_WORDS
    if split == "qwen2":
        described["normalizer"] = {"type": "NFC"}
    if split == DIGITS:
        described["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {
                    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                    "use_regex": True,
                },
            ],
        }  # fmt: skip


def _added(header: Header) -> list[dict[str, Any]]:
    """The tokens that are found whole in a text, as tokenizers describes them."""
    marked = enumerate(zip(header.token("tokens"), header.token("token_type") or (), strict=False))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": n, "content": token, **flags, "special": kind == CONTROL}
        for n, (token, kind) in marked
        if kind in (CONTROL, USER_DEFINED)
    ]


def check_same(header: Header, folder: Path, read: PreTrainedTokenizerBase) -> None:
    """Compare the tokenizer in a folder with what is read from it.

    Transformers gives some architectures a tokenizer of their own, whatever the folder says.

    Raises:
        ValueError: It is read as another one, or cuts a token that is found whole in a text.
    """
    written = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = [(token["content"], token["id"]) for token in _added(header)]
    for token, number in added:
        ids = read(token, add_special_tokens=False).input_ids
        if ids != [number]:
            raise ValueError(
                f"{header.file} marks '{token}' as one token ({number}), its tokenizer gives {ids}"
            )
    for text in (*TEXTS, " x".join(token for token, _ in added)):
        if read(text).input_ids != written.encode(text).ids:
            raise ValueError(
                f"{header.file} has a tokenizer '{header.token('pre')}', which transformers reads "
                f"as another one for {header.architecture}: {text!r} becomes other tokens"
            )
