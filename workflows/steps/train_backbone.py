"""Train the backbone of a world: `python -m workflows.steps.train_backbone --out DIR`.

Writes a Hugging Face folder with tokenizer, log and training.json (recipe, hashes, last scores). On
a CPU the same seed, tokens and threads on the same machine give the same bits. An interrupted
training continues from its snapshot in `DIR.checkpoints`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import torch

from methods.core.jsonfile import write_json
from methods.core.model.tensors import share
from workflows.demo.corpus import corpus_hash, items_hash
from workflows.demo.presets import PRESETS, Recipe
from workflows.demo.pretrain import train
from workflows.demo.tokenizer import build_tokenizer
from workflows.demo.world import World, the_world
from workflows.runtime.devices import claim_device
from workflows.runtime.files import whole_folder
from workflows.runtime.program import add_machine_arguments, check_positive, run, step_parser


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--world", choices=PRESETS, default="demo", help="of texts and facts")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the backbone")
    parser.add_argument("--seed", type=int, default=Recipe.seed, help="of weights and data order")
    parser.add_argument("--tokens", type=int, help="of training; default: the world's recipe")
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Train; the folder appears when it is complete."""
    args = arguments()
    world = the_world(args.world)
    recipe = replace(world.preset.recipe, seed=args.seed)
    if args.tokens is not None:
        recipe = replace(recipe, tokens=args.tokens)
    check_positive(args, "tokens", "threads")
    torch.set_num_threads(args.threads)
    workdir = args.out.parent / f"{args.out.name}.checkpoints"
    with claim_device(args.device) as device, whole_folder(args.out) as folder:
        build(world, recipe, workdir, folder, device)
    shutil.rmtree(workdir)
    print(f"wrote {args.out}")


def build(world: World, recipe: Recipe, workdir: Path, folder: Path, device: str) -> None:
    """Train by a recipe and write model, tokenizer, log and training.json into a folder."""
    model, reports = train(world, recipe, workdir, device)
    log = "".join(json.dumps(report) + "\n" for report in reports)
    (folder / "training_log.jsonl").write_text(log, encoding="utf-8")
    model.save_pretrained(folder)
    share(folder)
    build_tokenizer(world).save_pretrained(folder)
    facts = {
        "world": world.preset.name,
        "recipe": asdict(recipe),
        "steps": recipe.steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "corpus_hash": corpus_hash(world, recipe.seed),
        "items_hash": items_hash(world),
        "torch": torch.__version__,
        "device": device,
        "threads": torch.get_num_threads(),
        "final": reports[-1],
    }
    write_json(folder / "training.json", facts)


if __name__ == "__main__":
    run(main)
