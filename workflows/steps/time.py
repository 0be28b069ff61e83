"""Time a row over the dense model: `python -m workflows.steps.time --method hero --shape ...`.

Builds the dense and the routed model from random weights of a true shape (or loads --model), forces
a bypass rate, times them in turn and writes each ratio beside its bounds: of work alone, and with
the time that dense takes without what may be skipped.

    block          one routed FFN on 2,048 tokens, forward, and forward with backward
    prefill        a prompt, logits of its last token
    decode         one new token per sequence after a cached prompt
    static         the same in a static cache, on a GPU as one CUDA graph
    training       one step of the method, over LoRA on every linear layer
    training-ffn   the same, over LoRA on the FFNs of the routed layers alone

With --compile norms, rotary positions and FFNs of both models are compiled for inference, which
spares most launches that no row can skip. The file has every line as soon as it is measured.

With --model the model decides with its own gates, LoRA is folded into its matrices, and prompts
come from --texts; block and training-ffn are left out. Any row can be timed in this way, static
ones too. `snakemake` does so for every row of a suite with the key `timing`.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from transformers import PreTrainedConfig

from methods import find_row
from methods.core.budget import check_budget
from methods.core.data import Data, check_file
from methods.core.model.backbone import load_backbone, shape_config
from methods.core.model.card import read_card
from methods.core.model.checkpoint import cast_alternatives, dense_folder, load
from methods.core.model.folder import window_of
from methods.core.model.pieces import compile_pieces
from methods.core.model.shapes import SHAPES
from methods.core.model.tensors import DTYPES
from methods.core.routing.routed import router_of
from methods.core.routing.router import Router
from methods.core.training.lora import fold_lora
from workflows.records.card import rows_of
from workflows.runtime.devices import claim_device
from workflows.runtime.files import check_place, write_json
from workflows.runtime.program import (
    add_machine_arguments,
    check_positive,
    command_of,
    peak_memory_mb,
    run,
    set_up_torch,
    step_parser,
)
from workflows.runtime.provenance import fit_parts, provenance
from workflows.timing.cases import case_name, cases, check_length, rates
from workflows.timing.inference import Texts, time_decode, time_prefill, time_static
from workflows.timing.modes import Bench, Timing, time_ffn, time_training, time_update
from workflows.timing.pair import Models, build_pair
from workflows.timing.piece import Piece

INFERENCE = {"prefill": time_prefill, "decode": time_decode, "static": time_static}
# Mode -> whether the LoRA that a step is compared with is on the FFNs of the routed layers alone.
TRAINING = {"training": False, "training-ffn": True}
MODES = ("block", *INFERENCE, *TRAINING)
# The option that holds the cases of a mode.
CASES = {"prefill": "prefill", "decode": "decode", "static": "decode"} | dict.fromkeys(
    TRAINING, "training"
)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--model", type=Path, metavar="DIR", help="a compressed model; default: random weights"
    )
    what.add_argument(
        "--method", metavar="ROW", help="a routed row, with --shape; default: --model is timed"
    )
    parser.add_argument(
        "--texts", type=Path, metavar="FILE.jsonl", help="prompts, with --model; default: none"
    )
    parser.add_argument(
        "--shape", choices=sorted(SHAPES), help="of random weights, with --method; default: none"
    )
    parser.add_argument("--budget", type=float, default=0.25, help="decides the candidate layers")
    parser.add_argument("--bypass", default="0.25,0.5,0.75,1.0", help="forced rates, a,b,c")
    parser.add_argument("--modes", default="block,prefill,decode,training", help=",".join(MODES))
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES), help="with --shape")
    parser.add_argument("--prefill", default="1x512", help="SEQUENCESxTOKENS, a,b,c")
    parser.add_argument("--decode", default="1x128", help="SEQUENCESxCONTEXT, static too, a,b,c")
    parser.add_argument("--training", default="2x512", help="SEQUENCESxTOKENS, a,b,c")
    parser.add_argument(
        "--compile", action="store_true", help="compile norms, positions and FFNs of both models"
    )
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of each model")
    parser.add_argument("--warmup", type=int, default=5, help="calls before them")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin nothing after so many"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.json", help="the times")
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Measure and write."""
    args = arguments()
    check(args)
    set_up_torch(args.threads)
    torch.manual_seed(0)
    deadline = monotonic() + 60 * args.minutes
    lines: list[Timing] = []
    with claim_device(args.device) as device:
        bench = Bench(device, args.rounds, args.warmup)
        pieces = list(of_model(args, bench) if args.model else of_shape(args, bench))
        card = read_card(args.model) if args.model else None
        rows = rows_of(card) if card else [find_row(args.method)]
        made_by = provenance([*fit_parts(*rows), "workflows/timing"])
        made_by["weights_hash"] = card.weights_hash if card else None
        rest = sum(not piece.setup for piece in pieces)
        write(args, made_by, device, lines, rest)
        for piece in pieces:
            if monotonic() > deadline:
                break
            if device != "cpu":
                torch.use_deterministic_algorithms(piece.trains, warn_only=True)
            new_lines = piece.lines()
            if new_lines is None:
                continue
            for line in new_lines:
                lines.append(line)
                show(line)
            rest -= not piece.setup
            write(args, made_by, device, lines, rest)


def check(args: argparse.Namespace) -> None:
    """Refuse arguments that cannot be measured.

    Raises:
        ValueError: The message names the first of them.
    """
    unknown = sorted(set(args.modes.split(",")) - set(MODES))
    if unknown:
        raise ValueError(f"--modes: '{unknown[0]}' is unknown (allowed: {', '.join(MODES)})")
    if args.method and not args.shape:
        raise ValueError("--method needs --shape")
    if args.method and find_row(args.method).kind != "dynamic":
        raise ValueError(f"row '{args.method}' is not routed; measure it with --model")
    if args.model and not args.texts:
        raise ValueError("--model needs --texts: what a router skips depends on them")
    if args.model and set(args.modes.split(",")) <= {"block", "training-ffn"}:
        raise ValueError(
            f"--modes {args.modes}: with --model they are prefill, decode, static, training"
        )
    if args.method and args.texts:
        raise ValueError("--texts is for --model; with --method prompts are random")
    if args.texts:
        check_file(args.texts, "texts")
    if args.compile and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise ValueError("--compile needs a C++ compiler: g++, or the one that CXX names")
    check_budget(args.budget)
    check_positive(args, "rounds")
    for option in ("warmup", "minutes"):
        if getattr(args, option) < 0:
            raise ValueError(f"--{option} is {getattr(args, option)}, must be at least 0")
    if args.warmup == 0 and "static" in args.modes.split(","):
        raise ValueError(
            "--warmup is 0, must be at least 1 for mode static: the first step captures the graph"
        )
    rates(args.bypass)
    for option in ("prefill", "decode", "training"):
        cases(getattr(args, option))
    check_place(args.out)


def check_window(args: argparse.Namespace, config: PreTrainedConfig) -> None:
    """Refuse cases that are longer than the model's window.

    Raises:
        ValueError: A case of a mode in ``--modes`` is.
    """
    options = {CASES[mode] for mode in args.modes.split(",") if mode in CASES}
    for option in sorted(options):
        check_length(f"--{option}", getattr(args, option), window_of(config))


def check_modes(row: str, modes: Sequence[str], router: Router | None) -> None:
    """Refuse modes whose bounds count one routed FFN per layer, of a row that routes otherwise.

    Raises:
        ValueError: A mode is one of them.
    """
    units = [] if router is None else router.units
    plain = {unit.layer for unit in units if unit.kind == "ffn"}
    of_ffns = [mode for mode in modes if mode == "block" or mode in TRAINING]
    if of_ffns and len(plain) != len(units):
        raise ValueError(
            f"--modes {of_ffns[0]}: '{row}' routes more than one FFN per layer, whose bound is not "
            f"known (allowed: {', '.join(INFERENCE)})"
        )


def write(
    args: argparse.Namespace, made_by: dict[str, Any], device: str, lines: list[Timing], rest: int
) -> None:
    """Write what is measured so far; ``rest`` counts the cases that are not."""
    report = {
        "command": command_of(args),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "lines": lines,
        "left": rest,
        "peak_memory_mb": peak_memory_mb(),
        **made_by,
    }
    write_json(args.out, report)


def show(line: Timing) -> None:
    """A line in words."""
    share = line["realised_share"]
    print(
        f"{line['mode']:12} {line['case']:18} "
        + ("" if line["bypass"] is None else f"bypass {line['bypass']:.3f}  ")
        + f"over {'LoRA' if line['mode'] in TRAINING else 'dense'} {line['over_dense']:.3f}  "
        + ("" if line["bound"] is None else f"bound {line['bound']:.3f}  ")
        + ("" if share is None else f"{100 * share:.0f} % of the possible saving")
        + "".join(f"  {word}" for word in ("masked", "eager") if line.get(word)),
        flush=True,
    )


def of_shape(args: argparse.Namespace, bench: Bench) -> Iterator[Piece]:
    """Pieces for random weights of a true shape under forced bypass rates."""
    check_window(args, shape_config(args.shape))
    dense, routed = build_pair(args.method, args.shape, args.budget, args.dtype, bench.device)
    texts = Texts.random(dense.config.vocab_size)
    modes = args.modes.split(",")
    check_modes(args.method, modes, router_of(routed))
    training = [mode for mode in TRAINING if mode in modes]
    for mode, rate, case in product(training, rates(args.bypass), cases(args.training)):
        for recompute in (False, True):
            name = f"{mode} {case_name(case)} bypass {rate}" + " recomputed" * recompute
            what = (routed, case, rate, recompute, bench, TRAINING[mode])
            yield Piece(name, partial(_one_line, time_training, *what), trains=True)
    if training:
        yield Piece("cast", partial(cast_alternatives, routed), setup=True)
    else:
        cast_alternatives(routed)
    models = Models.of(dense, routed)
    yield from _compilation(args, models)
    for rate in rates(args.bypass):
        if "block" in modes:
            yield Piece(f"block bypass {rate}", partial(time_ffn, routed, rate, bench))
        yield from inference(models, texts, rate, args, bench)


def of_model(args: argparse.Namespace, bench: Bench) -> Iterator[Piece]:
    """Pieces for a compressed model with its own gates; none for a row that does not apply."""
    card = read_card(args.model)
    if card.not_applicable is not None:
        return
    checkpoint = load(args.model, device=bench.device)
    router = router_of(checkpoint.model)
    if router is not None and router.reads_kinds:
        print(f"'{card.row}' must be told which tokens are answer tokens: no line", flush=True)
        return
    dtype = card.first.backbone.dtype
    dense = load_backbone(dense_folder(args.model), dtype, bench.device).model
    check_window(args, dense.config)
    window, vocabulary = window_of(dense.config), int(dense.config.vocab_size)
    data = Data(checkpoint.tokenizer, vocabulary, window=window, probe_file=args.texts)
    ids = [token for document in data.probe() for token in document.ids]
    texts, row = Texts(torch.tensor(ids)), checkpoint.model
    if not checkpoint.method.trained and "training" in args.modes.split(","):
        print(f"'{card.row}' trains nothing: no line of training", flush=True)
    elif "training" in args.modes.split(","):
        for case in cases(args.training):
            rows = texts.rows(*case).to(bench.device)
            measure = partial(_one_line, time_update, row, dense, rows, bench)
            yield Piece(f"training {case_name(case)}", measure, trains=True)
    yield Piece("folded", partial(fold_lora, row), setup=True)
    models = Models.of(dense, row)
    yield from _compilation(args, models)
    yield from inference(models, texts, None, args, bench)


def inference(
    models: Models,
    texts: Texts,
    rate: float | None,
    args: argparse.Namespace,
    bench: Bench,
) -> Iterator[Piece]:
    """Pieces for the modes of inference in ``--modes``."""
    modes = args.modes.split(",")
    for mode in (mode for mode in INFERENCE if mode in modes):
        for case in cases(args.prefill if mode == "prefill" else args.decode):
            name = f"{mode} {case_name(case)}" + ("" if rate is None else f" bypass {rate}")
            measure = partial(_one_line, INFERENCE[mode], models, case, texts, rate, bench)
            yield Piece(name, measure)


def _one_line(function: Callable[..., Timing], *arguments: object) -> list[Timing]:
    return [function(*arguments)]


def _compilation(args: argparse.Namespace, models: Models) -> Iterator[Piece]:
    """A piece without lines that compiles the models, if asked for."""
    if args.compile:
        yield Piece("compilation", partial(_compile, models), setup=True)


def _compile(models: Models) -> None:
    for model in filter(None, models):
        compile_pieces(model)


if __name__ == "__main__":
    run(main)
