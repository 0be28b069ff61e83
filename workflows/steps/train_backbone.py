"""Train the demo backbone and write it as a Hugging Face directory.

Usage: python -m workflows.steps.train_backbone --out DIR [--seed N] [--tokens N] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from workflows.demo.corpus import corpus_hash, items_hash
from workflows.demo.pretrain import Recipe, train
from workflows.demo.tokenizer import build_tokenizer


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the demo backbone.")
    parser.add_argument(
        "--out", type=Path, required=True, help="directory to write; must not exist"
    )
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--tokens", type=int, default=Recipe.tokens, help="training tokens")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; part of the result")
    options = parser.parse_args(arguments)
    if options.out.exists():
        parser.error(f"--out {options.out} exists already")
    if options.tokens < 1 or options.threads < 1:
        parser.error("--tokens and --threads must be positive")
    return options


def build(recipe: Recipe, folder: Path) -> None:
    """Train by a recipe and write model, tokenizer, log and `training.json` into a folder."""
    with (folder / "training_log.jsonl").open("w") as log:
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
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; the output directory appears only when it is complete."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{options.out.name}.", dir=options.out.parent))
    try:
        build(Recipe(seed=options.seed, tokens=options.tokens), folder)
        folder.chmod(0o755)
        folder.rename(options.out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
