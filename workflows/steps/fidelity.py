"""Compare a model with its dense one token by token: `python -m workflows.steps.fidelity`.

The texts are .jsonl as for a fit (text, prompt with completion, messages, or fed). The result says
how far the next-token distributions of the model lie from those of the dense one: KL in nats, top-1
agreement and the skip on these very tokens, over all tokens and over answer tokens (of a
completion, of an assistant's turn), and both perplexities. Called again with the same model, texts
and code, it reads what it wrote.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from workflows.evaluation.fidelity import (
    SUMS,
    check_texts,
    compare_with_dense,
    identity,
    reference_of,
)
from workflows.evaluation.models import describe_model, load_any, model_identity
from workflows.evaluation.store import stored_value
from workflows.records.card import rows_of
from workflows.runtime.contents import Contents
from workflows.runtime.devices import claim_device
from workflows.runtime.files import check_place
from workflows.runtime.program import (
    add_machine_arguments,
    check_positive,
    run,
    set_up_torch,
    step_parser,
)
from workflows.runtime.provenance import SCORING, fit_parts, provenance

NAMES = {"all": "tokens", "answer": "answer tokens"}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--model", required=True, type=Path, metavar="DIR", help="compressed or plain Hugging Face"
    )
    parser.add_argument("--texts", required=True, type=Path, metavar="FILE.jsonl", help="documents")
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="DIR",
        help="dense model; default: what the model was made from",
    )
    parser.add_argument("--batch-size", type=int, default=16, help="documents per pass")
    parser.add_argument(
        "--max-length", type=int, default=2048, help="documents are cut to so many tokens"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.json", help="the result")
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Check the arguments, compare, write the result."""
    args = arguments()
    check_place(args.out, ".json")
    check_positive(args, "batch_size", "max_length")
    check_texts(args.texts, "--texts")
    reference = reference_of(args.model, args.reference)
    set_up_torch(args.threads)
    card = describe_model(args.model)
    if card.not_applicable is not None:
        raise ValueError(f"{args.model} holds no model: {card.not_applicable}")
    contents, made_by = Contents(), provenance([*fit_parts(*rows_of(card)), *SCORING])
    # The device's name counts in what is stored.
    with claim_device(args.device) as device:
        row = {
            "model": model_identity(args.model, None, card, contents),
            "batch_size": args.batch_size,
            "threads": args.threads,
            "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(device),
            "code": made_by["code"],
            "versions": made_by["versions"],
        }

        def measure() -> dict[str, Any]:
            return compare_with_dense(
                load_any(args.model, None, device),
                reference,
                args.texts,
                args.max_length,
                args.batch_size,
            ).means()

        made_from = identity(row, reference, args.texts, args.max_length, contents)
        result = stored_value(args.out, made_from, measure)
    for kind in (name for name in SUMS if name in result):
        means = result[kind]
        print(
            f"KL {means['kl']:.4f} nats, top-1 agreement {100 * means['agreement']:.2f} %, skip "
            f"{100 * means['skip']:.2f} % over {means['tokens']:,} {NAMES[kind]} of "
            f"{result['documents']:,} documents"
        )
    print(f"wrote {args.out}")


if __name__ == "__main__":
    run(main)
