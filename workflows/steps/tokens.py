"""Tokenise a file once for all fits: `python -m workflows.steps.tokens --data rows.jsonl ...`.

Writes a folder NAME.tokens that fits map into memory in place of the .jsonl it was made from.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from transformers import AutoConfig

from methods.core.backbone import read_tokenizer
from methods.core.data import Data, Document
from methods.core.tokens import SUFFIX, write_tokens
from workflows.runtime.files import whole_folder
from workflows.runtime.program import run


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backbone", required=True, type=Path, metavar="DIR")
    parser.add_argument("--data", required=True, type=Path, metavar="FILE", help=".jsonl")
    parser.add_argument("--max-length", type=int, default=2048, help="tokens per document")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="ends in .tokens")
    return parser.parse_args()


def main() -> None:
    """Read, tokenise, write."""
    args = arguments()
    if args.out.suffix != SUFFIX:
        raise ValueError(f"--out {args.out} must end in {SUFFIX}")
    config = AutoConfig.from_pretrained(args.backbone, local_files_only=True)
    tokenizer = read_tokenizer(args.backbone, config)
    data = Data(tokenizer, config.vocab_size, args.max_length)
    with whole_folder(args.out) as folder:
        number = write_tokens(shown(data.documents(args.data)), folder, data.encoding)
        if not number:
            raise ValueError(f"--data {args.data} holds no document")
    print(f"wrote {args.out}: {number:,} documents")


def shown(documents: Iterator[Document]) -> Iterator[Document]:
    """The same documents under a progress bar."""
    from tqdm import tqdm

    yield from tqdm(documents, desc="tokenising", unit=" documents", mininterval=2)


if __name__ == "__main__":
    run(main)
