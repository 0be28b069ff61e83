"""Compare a model with its dense one token by token: `python -m workflows.steps.fidelity`.

The texts are .jsonl as for a fit (text, prompt with completion, messages, or fed). The result says
how far the next-token distributions of the model lie from those of the dense one: KL in nats, top-1
agreement, both perplexities, and the skip on these very tokens. Called again with the same model,
texts and code, it reads what it wrote.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from methods.core.data import Data, check_file
from methods.core.jsonfile import read_json, write_json
from methods.core.model.backbone import load_backbone
from methods.core.model.card import CARD
from methods.core.model.checkpoint import dense_folder
from methods.core.model.folder import hash_folder, window_of
from workflows.evaluation.fidelity import measure
from workflows.evaluation.models import describe_model, load_any, model_identity
from workflows.records.card import rows_of
from workflows.runtime.contents import Contents
from workflows.runtime.devices import claim_device
from workflows.runtime.files import check_place, whole_file
from workflows.runtime.program import (
    add_machine_arguments,
    check_positive,
    run,
    set_up_torch,
    step_parser,
)
from workflows.runtime.provenance import SCORING, fit_parts, provenance


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--model", required=True, type=Path, metavar="DIR", help="compressed or plain Hugging Face"
    )
    parser.add_argument("--texts", required=True, type=Path, metavar="FILE.jsonl", help="documents")
    parser.add_argument(
        "--answers-only", action="store_true",
        help="compare at answer tokens alone (of a completion, of an assistant's turn)",
    )  # fmt: skip
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
    check_file(args.texts, "--texts")
    if args.reference is None and not (args.model / CARD).is_file():
        raise ValueError(f"{args.model} is a plain model: say with --reference which one is dense")
    reference = dense_folder(args.model) if args.reference is None else args.reference
    set_up_torch(args.threads)
    card = describe_model(args.model)
    if card.not_applicable is not None:
        raise ValueError(f"{args.model} holds no model: {card.not_applicable}")
    contents = Contents()
    identity = {
        "model": model_identity(args.model, None, card, contents),
        "reference": hash_folder(reference),
        "texts": contents.of([args.texts]),
        "answers_only": args.answers_only,
        "max_length": args.max_length,
        "batch_size": args.batch_size,
        "threads": args.threads,
        "device": args.device,
        "code": provenance([*fit_parts(*rows_of(card)), *SCORING])["code"],
    }
    # Through JSON, as it is read back: tuples become lists.
    identity = json.loads(json.dumps(identity))
    result = read_json(args.out) if args.out.is_file() else {}
    if result.get("identity") != identity:
        with claim_device(args.device) as device:
            result = {"identity": identity, **compare(args, reference, device)}
        with whole_file(args.out) as file:
            write_json(file, result)
    print(
        f"KL {result['kl']:.4f} nats, top-1 agreement {100 * result['agreement']:.2f} %, "
        f"skip {100 * result['skip']:.2f} % over {result['positions']:,} tokens of "
        f"{result['documents']:,} documents"
    )
    print(f"wrote {args.out}")


def compare(args: argparse.Namespace, reference: Path, device: str) -> dict[str, Any]:
    """Load both models, read the texts, measure."""
    loaded = load_any(args.model, None, device)
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    dense = load_backbone(reference, dtype, device)
    config = loaded.model.config
    data = Data(loaded.tokenizer, config.vocab_size, args.max_length, window_of(config))
    return measure(
        dense.model,
        loaded.model,
        loaded.ledger,
        list(data.documents(args.texts)),
        args.answers_only,
        args.batch_size if loaded.method.batchable() else 1,
    ).as_json()


if __name__ == "__main__":
    run(main)
