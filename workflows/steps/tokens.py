"""Tokenise a file once for all fits: `python -m workflows.steps.tokens --data rows.jsonl ...`.

Writes a folder NAME.tokens, which fits map into memory instead of reading the .jsonl file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from methods.core.data import Data
from methods.core.model.folder import read_config, read_tokenizer, window_of
from methods.core.tokens import SUFFIX, write_tokens
from workflows.runtime.files import whole_folder
from workflows.runtime.program import check_positive, run, step_parser


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--backbone", required=True, type=Path, metavar="DIR", help="whose tokenizer"
    )
    parser.add_argument("--data", required=True, type=Path, metavar="FILE.jsonl", help="documents")
    parser.add_argument(
        "--max-length", type=int, default=2048,
        help="tokens per document, at most the backbone's window",
    )  # fmt: skip
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="ends in .tokens")
    return parser.parse_args()


def main() -> None:
    """Read, tokenise, write."""
    args = arguments()
    if args.out.suffix != SUFFIX:
        raise ValueError(f"--out {args.out} must end in {SUFFIX}")
    check_positive(args, "max_length")
    config = read_config(args.backbone)
    tokenizer = read_tokenizer(args.backbone, config)
    data = Data(tokenizer, config.vocab_size, args.max_length, window_of(config))
    documents = tqdm(data.documents(args.data), desc="tokenising", unit=" documents")
    with whole_folder(args.out) as folder:
        lengths = write_tokens(documents, folder, data.encoding)
        if not len(lengths):
            raise ValueError(f"--data {args.data} holds no document")
        if lengths.max() < 2:
            raise ValueError(f"--data {args.data} holds no document of two tokens or more")
    print(f"wrote {args.out}: {len(lengths):,} documents")


if __name__ == "__main__":
    run(main)
