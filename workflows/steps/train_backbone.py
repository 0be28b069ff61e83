"""Train the demo backbone anew: `python -m workflows.steps.train_backbone --out DIR`.

Writes a Hugging Face folder with its tokenizer, the log, and training.json (recipe, hashes, last
scores). Same seed, tokens and threads on the same machine give the same bits.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import torch

from methods.core.checkpoint import write_json
from workflows.demo.corpus import corpus_hash, items_hash
from workflows.demo.pretrain import Recipe, train
from workflows.demo.tokenizer import build_tokenizer
from workflows.steps.common import run, whole_folder


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--tokens", type=int, default=Recipe.tokens, help="training tokens")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; part of the result")
    return parser.parse_args()


def main() -> None:
    """Train, then let the folder appear."""
    args = arguments()
    if args.tokens < 1 or args.threads < 1:
        raise ValueError("--tokens and --threads must be at least 1")
    torch.set_num_threads(args.threads)
    with whole_folder(args.out) as folder:
        build(Recipe(seed=args.seed, tokens=args.tokens), folder)
    print(f"wrote {args.out}")


def build(recipe: Recipe, folder: Path) -> None:
    """Train by a recipe and write model, tokenizer, log and training.json into a folder."""
    with (folder / "training_log.jsonl").open("w", encoding="utf-8") as log:
        model, report = train(recipe, log)
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    facts = {
        "recipe": asdict(recipe),
        "steps": recipe.steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "corpus_hash": corpus_hash(recipe.seed),
        "items_hash": items_hash(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "final": report,
    }
    write_json(folder / "training.json", facts)


if __name__ == "__main__":
    run(main)
