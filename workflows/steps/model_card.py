r"""Measure the backbone of a world on the validation split and write its model card.

Scores come from the harness. Two controls say how far they fall without late FFNs: these are left
out, or trained adapters of HeRo's width replace them for every token. Test items are never used.

    python -m workflows.steps.model_card --model workflows/demo/backbone \
        --data results/demo/data --out workflows/demo/backbone/README.md
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers import PreTrainedModel

from methods import load_method
from methods.base import Request
from methods.core.data import Data, check_file
from methods.core.jsonfile import parse_json, read_json
from methods.core.model.backbone import count, ffn, layers, load_backbone
from methods.core.model.ledger import Ledger
from methods.core.routing.routed import route
from methods.core.routing.router import ffn_units
from methods.random_skip import RandomRouter
from workflows import ROOT
from workflows.demo.corpus import task_names
from workflows.demo.world import the_world
from workflows.evaluation.harness import CountingLM
from workflows.evaluation.score import score
from workflows.evaluation.tasklist import TaskEntry
from workflows.runtime.files import check_place, write_text
from workflows.runtime.program import run, set_up_torch, step_parser

TEMPLATE = ROOT / "workflows" / "demo"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="the backbone")
    parser.add_argument("--data", required=True, type=Path, metavar="DIR", help="prepared data")
    parser.add_argument("--params", default="{}", metavar="JSON", help="training of the adapters")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.md", help="the card")
    return parser.parse_args()


def main() -> None:
    """Measure, then write the card."""
    args = arguments()
    check_place(args.out)
    params = parse_json(args.params, "--params")
    for part in ("training", "validation"):
        check_file(args.data / f"{part}.jsonl", part)
    set_up_torch(args.threads)
    training = read_json(args.model / "training.json")
    backbone = load_backbone(args.model)
    world = the_world(training.get("world", "demo"))
    tasks = task_names(world)
    dense, total = scores(backbone.model, args.model, tasks), backbone.layer_count
    controls = {}
    for first in (total // 2, total // 4):
        skipped = list(range(first, total))
        controls[len(skipped)] = {
            "share": ffn_share(args.model, skipped),
            "left_out": scores(without_ffns(args.model, skipped), args.model, tasks),
            "adapters": scores(with_adapters(args, params, skipped), args.model, tasks),
        }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    text = environment.get_template("model_card.md.jinja").render(
        training=training,
        world=world,
        dense=dense,
        controls=controls,
        mean_ratio=mean_ratio,
        backbone=backbone,
        config=backbone.config,
    )
    write_text(args.out, text)
    print(f"wrote {args.out}")


def scores(model: PreTrainedModel, folder: Path, tasks: Sequence[str]) -> dict[str, float]:
    """Task -> score in percent on its validation split."""
    backbone = load_backbone(folder)
    assert backbone.tokenizer is not None
    ledger = Ledger.of(model, backbone.parameters, backbone.layer_count)
    lm = CountingLM(model.eval(), backbone.tokenizer, ledger, batch_size=32, max_length=None)
    entries = [TaskEntry(task, split="validation") for task in tasks]
    results = score(lm, entries, [])
    return {s["task"]: 100 * s["value"] for s in results.scores if s["primary"]}


def ffn_share(folder: Path, skipped: list[int]) -> float:
    """Share of all parameters in the FFNs of some layers."""
    backbone = load_backbone(folder)
    stack = layers(backbone.model)
    return sum(count(ffn(stack[n])) for n in skipped) / backbone.parameters


def without_ffns(folder: Path, skipped: list[int]) -> PreTrainedModel:
    """The backbone without the FFNs of some layers."""
    model = load_backbone(folder).model
    return route(model, RandomRouter(ffn_units(model, skipped), seed=0, skips=len(skipped)))


def with_adapters(
    args: argparse.Namespace, training: Mapping[str, Any], skipped: list[int]
) -> PreTrainedModel:
    """The backbone whose FFNs of some layers are replaced by trained adapters for every token."""
    backbone = load_backbone(args.model)
    params = {**training, "variant": "random", "candidates": skipped, "alpha": 0.0}
    data = Data(
        tokenizer=backbone.tokenizer,
        vocab_size=backbone.config.vocab_size,
        max_length=256,
        training_file=args.data / "training.jsonl",
        validation_file=args.data / "validation.jsonl",
    )
    with tempfile.TemporaryDirectory() as folder:
        # At this budget the control skips its candidates for every token.
        everything = ffn_share(args.model, skipped)
        request = Request(budget=everything, seed=0, workdir=Path(folder))
        model = load_method("hero", params).fit(backbone, data, request).model
    assert isinstance(model, PreTrainedModel)
    return model


def mean_ratio(values: Mapping[str, float], dense: Mapping[str, float]) -> float:
    """Mean over tasks of score over dense score, in percent."""
    return 100 * sum(values[task] / dense[task] for task in dense) / len(dense)


if __name__ == "__main__":
    run(main)
