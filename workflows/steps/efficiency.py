"""Time over dense: `python -m workflows.steps.efficiency --method hero --shape ...`.

Builds the dense and the routed model from random weights of a true shape (or loads --model), forces
a bypass rate, times them in turn and writes each ratio beside its physical bound:

    block      one routed FFN on 2,048 tokens, forward, and forward with backward
    prefill    a prompt, logits of its last token
    decode     one new token per sequence behind a cached prompt
    training   one step of the method, over LoRA on every linear layer

With --model the gates are the model's own and no rate is forced, prompts come from --texts, and a
block and training are left out; any row can be timed so, static ones too. `snakemake` does it for
every row of a suite with the key `timing`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from methods import find_row, load_method
from methods.core.backbone import DTYPES, Backbone, count, load_backbone, shape_config
from methods.core.budget import candidate_layers, check_budget
from methods.core.checkpoint import cast_branches, load, read_card, write_json
from methods.core.data import Data, check_file
from methods.core.routing.routed import router_of
from methods.core.shapes import SHAPES
from workflows.records import rows_of
from workflows.runtime.devices import claim_device
from workflows.runtime.files import check_place, whole_file
from workflows.runtime.program import (
    add_machine_arguments,
    check_positive,
    peak_memory_mb,
    run,
    set_up_torch,
    step_parser,
)
from workflows.runtime.provenance import fit_parts, provenance
from workflows.timing.inference import Texts, time_decode, time_prefill
from workflows.timing.modes import Bench, Case, Line, time_block, time_training

MODES = ("block", "prefill", "decode", "training")


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
    parser.add_argument("--modes", default=",".join(MODES), help="what is timed, a,b,c")
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES), help="with --shape")
    parser.add_argument("--prefill", default="1x512", help="SEQUENCESxTOKENS, a,b,c")
    parser.add_argument("--decode", default="1x128", help="SEQUENCESxCONTEXT, a,b,c")
    parser.add_argument("--training", default="2x512", help="SEQUENCESxTOKENS, a,b,c")
    parser.add_argument("--rounds", type=int, default=20, help="counted calls of each")
    parser.add_argument("--warmup", type=int, default=5, help="calls before them")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.json", help="the times")
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Measure and write."""
    args = arguments()
    unknown = sorted(set(args.modes.split(",")) - set(MODES))
    if unknown:
        raise ValueError(f"--modes: '{unknown[0]}' is unknown (allowed: {', '.join(MODES)})")
    if args.method and not args.shape:
        raise ValueError("--method needs --shape")
    if args.method and find_row(args.method).kind != "dynamic":
        raise ValueError(f"row '{args.method}' is not routed; measure it with --model")
    if args.model and not args.texts:
        raise ValueError("--model needs --texts: what a router skips depends on them")
    if args.texts:
        check_file(args.texts, "texts")
    check_budget(args.budget)
    check_positive(args, "rounds")
    for mode in ("prefill", "decode", "training"):
        cases(getattr(args, mode))
    rates(args.bypass)
    check_place(args.out)
    set_up_torch(args.threads)
    torch.manual_seed(0)
    with claim_device(args.device) as device:
        bench = Bench(device, args.rounds, args.warmup)
        lines = measure_model(args, bench) if args.model else measure_shape(args, bench)
    rows = [find_row(args.method)] if args.method else rows_of(read_card(args.model))
    report = {
        "command": {k: str(v) for k, v in vars(args).items() if v is not None and k != "out"},
        "device": device,
        "lines": lines,
        "peak_memory_mb": peak_memory_mb(),
        **provenance([*fit_parts(*rows), "workflows/timing"]),
    }
    with whole_file(args.out) as file:
        write_json(file, report)
    for line in lines:
        share = line["realised_share"]
        print(
            f"{line['mode']:9} {line['case']:18} "
            + ("" if line["bypass"] is None else f"bypass {line['bypass']:.3f}  ")
            + f"over dense {line['over_dense']:.3f}  bound {line['bound']:.3f}  "
            + ("" if share is None else f"{100 * share:.0f} % of the possible saving")
        )


def measure_shape(args: argparse.Namespace, bench: Bench) -> list[Line]:
    """Random weights of a true shape under forced bypass rates."""
    dense, routed = build_pair(args.method, args.shape, args.budget, args.dtype, bench.device)
    texts = Texts.random(dense.config.vocab_size)
    chosen = args.modes.split(",")
    forced = rates(args.bypass)
    lines: list[Line] = []
    if "training" in chosen:
        for rate in forced:
            for case in cases(args.training):
                lines += time_training(routed, case, rate, bench)
    cast_branches(routed)
    for rate in forced:
        if "block" in chosen:
            lines += time_block(routed, rate, bench)
        lines += inference(dense, routed, texts, rate, args, bench)
    return lines


def measure_model(args: argparse.Namespace, bench: Bench) -> list[Line]:
    """A compressed model with its own gates, over its backbone; nothing where it has no model."""
    card = read_card(args.model)
    if "not_applicable" in card:
        return []
    loaded = load(args.model, device=bench.device)
    backbone = (card["start"] or card)["backbone"]
    dense = load_backbone(Path(backbone["path"]), backbone["dtype"], bench.device).model
    data = Data(loaded.tokenizer, int(dense.config.vocab_size), probe_file=args.texts)
    ids = [token for document in data.probe() for token in document.ids]
    return inference(dense, loaded.model, Texts(torch.tensor(ids)), None, args, bench)


def inference(
    dense: PreTrainedModel,
    row: PreTrainedModel,
    texts: Texts,
    rate: float | None,
    args: argparse.Namespace,
    bench: Bench,
) -> list[Line]:
    """Prefill and decode lines, as far as they were chosen."""
    chosen = args.modes.split(",")
    timed = {"prefill": time_prefill, "decode": time_decode}
    return [
        function(dense, row, case, texts, rate, bench)
        for mode, function in timed.items()
        if mode in chosen
        for case in cases(getattr(args, mode))
    ]


def rates(text: str) -> list[float]:
    """``0.25,0.5`` as numbers from 0 to 1.

    Raises:
        ValueError: Not of that form.
    """
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= rate <= 1 for rate in found):
        raise ValueError(f"--bypass '{text}' must be rates from 0 to 1, such as 0.25,0.5")
    return found


def cases(text: str) -> list[Case]:
    """``1x512,8x2048`` as pairs.

    Raises:
        ValueError: Not of that form.
    """
    try:
        pairs = [tuple(int(part) for part in word.split("x")) for word in text.split(",")]
        found = [(sequences, length) for sequences, length in pairs]
    except ValueError:
        found = [(0, 0)]
    if min(min(pair) for pair in found) < 1:
        raise ValueError(f"'{text}' must look like 1x512,8x2048")
    return found


def build_pair(
    row: str, shape: str, budget: float, dtype: str, device: str
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Dense and routed model of a shape; they share every weight of the backbone."""
    config = shape_config(shape)
    with torch.device(device):
        dense = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    dense.eval().requires_grad_(False)
    # A shell whose parts are the dense model's own: routing replaces the shell's decoder only.
    with torch.device("meta"):
        twin = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()
    for name, module in dense.named_children():
        setattr(twin, name, module)
    backbone = Backbone(twin, None, Path(), None, "", count(dense))
    chosen = candidate_layers(config.num_hidden_layers, budget)
    structure = {"layers": chosen, "seed": 0, "threshold": 0.5}
    routed = load_method(row).build(backbone, structure)
    if router_of(routed) is None:
        raise ValueError(f"row '{row}' is not routed; measure it with --model")
    return dense, routed  # type: ignore[return-value]


if __name__ == "__main__":
    run(main)
