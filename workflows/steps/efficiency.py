"""Time and memory over dense: `python -m workflows.steps.efficiency --method hero --shape ...`.

Builds the dense and the routed model from random weights of a true shape (or loads --model), forces
a bypass rate, times them in turn and writes each ratio beside its physical bound:

    block      one routed FFN on 2,048 tokens, forward, and forward with backward
    prefill    a prompt, logits of its last token
    decode     one new token per sequence behind a cached prompt
    training   one step of the method, over LoRA on every linear layer

With --model the gates are the model's own and no rate is forced; training is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from methods import load_method
from methods.core.backbone import (
    DTYPES,
    Backbone,
    attention,
    count,
    decoder,
    ffn,
    layers,
    load_backbone,
    shape_config,
)
from methods.core.budget import candidate_layers
from methods.core.checkpoint import load, read_card, write_json
from methods.core.dispatch import dispatch
from methods.core.lora import ATTENTION, FFN, add_lora
from methods.core.routed import Router, router_of
from methods.core.seeds import generator
from workflows.stats.bounds import Shape, decode_bytes, prefill_flops, training_flops
from workflows.steps.common import (
    add_machine_arguments,
    peak_memory_mb,
    provenance,
    run,
    set_up_torch,
    whole_file,
)
from workflows.steps.devices import claim_device
from workflows.steps.timing import compared, interleaved

MODES = ("block", "prefill", "decode", "training")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", type=Path, metavar="DIR", help="a compressed model")
    what.add_argument("--method", metavar="ROW", help="a routed row, with --shape")
    parser.add_argument("--shape", help="llama31_8b, llama2_7b, llama2_13b, cpu_512")
    parser.add_argument("--budget", type=float, default=0.25, help="decides the candidate layers")
    parser.add_argument("--bypass", default="0.25,0.5,0.75,1.0", help="forced rates, a,b,c")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES))
    parser.add_argument("--prefill", default="1x512", help="SEQUENCESxTOKENS, a,b,c")
    parser.add_argument("--decode", default="1x128", help="SEQUENCESxCONTEXT, a,b,c")
    parser.add_argument("--training", default="2x512", help="SEQUENCESxTOKENS, a,b,c")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.json")
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
    set_up_torch(args.threads)
    torch.manual_seed(0)
    with claim_device(args.device) as device:
        lines = measure_model(args, device) if args.model else measure_shape(args, device)
    report = {
        "command": {k: str(v) for k, v in vars(args).items() if v is not None and k != "out"},
        "device": device,
        "lines": lines,
        "peak_memory_mb": peak_memory_mb(),
        **provenance(),
    }
    with whole_file(args.out) as file:
        write_json(file, report)
    for line in lines:
        share = line["realised_share"]
        print(
            f"{line['mode']:9} {line['case']:18} bypass {line['bypass']:.3f}  "
            f"over dense {line['over_dense']:.3f}  bound {line['bound']:.3f}  "
            + ("" if share is None else f"{100 * share:.0f} % of the possible saving")
        )


def measure_shape(args: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """Random weights of a true shape under forced bypass rates."""
    dense, routed = build_pair(args.method, args.shape, args.budget, args.dtype, device)
    rates = [float(word) for word in args.bypass.split(",")]
    modes: dict[str, Callable[[float], list[dict[str, Any]]]] = {
        "block": lambda rate: time_block(routed, rate, args, device),
        "prefill": lambda rate: time_prefill(dense, routed, rate, args, device),
        "decode": lambda rate: time_decode(dense, routed, rate, args, device),
        "training": lambda rate: time_training(routed, rate, args, device),
    }
    chosen = args.modes.split(",")
    return [line for mode in MODES if mode in chosen for r in rates for line in modes[mode](r)]


def measure_model(args: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """A compressed model with its own gates, over its backbone."""
    card = read_card(args.model)
    loaded = load(args.model, device=device)
    dense = load_backbone(Path(card["backbone"]["path"]), card["backbone"]["dtype"], device).model
    chosen = args.modes.split(",")
    lines: list[dict[str, Any]] = []
    if "prefill" in chosen:
        lines += time_prefill(dense, loaded.model, None, args, device)
    if "decode" in chosen:
        lines += time_decode(dense, loaded.model, None, args, device)
    return lines


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


def shape_of(model: PreTrainedModel) -> Shape:
    """The sizes behind the bounds."""
    router = router_of(model)
    first = layers(model)[0]
    heads = attention(first)
    keys = heads.k_proj.weight.shape[0]  # type: ignore[union-attr, index]
    branch = None if router is None else router.otherwise(0)
    adapter = count(branch) if isinstance(branch, nn.Module) else 0
    routed = 0 if router is None else len(router.units)
    own = 0 if router is None else count(router) - routed * adapter
    head = model.lm_head
    assert isinstance(head, nn.Module)
    return Shape(
        width=int(model.config.hidden_size),
        layers=len(layers(model)),
        attention=count(heads),
        ffn=count(ffn(first)),
        head=count(head),
        key_value=2 * int(keys),
        routed=routed,
        adapter=adapter,
        router=own,
    )


def forced_gates(router: Router, rows: int, length: int, bypass: float, device: str) -> Tensor:
    """Independent decisions (B, U, T): True executes, False with probability ``bypass``."""
    shape = (rows, len(router.units), length)
    return (torch.rand(shape, generator=generator(0, f"gates {bypass}")) >= bypass).to(device)


def cases(text: str) -> list[tuple[int, int]]:
    """``1x512,8x2048`` as pairs.

    Raises:
        ValueError: Not of that form.
    """
    try:
        pairs = [tuple(int(part) for part in word.split("x")) for word in text.split(",")]
        return [(sequences, length) for sequences, length in pairs]
    except ValueError as error:
        raise ValueError(f"'{text}' must look like 1x512,8x2048") from error


def time_block(
    routed: PreTrainedModel, bypass: float, args: argparse.Namespace, device: str
) -> list[dict[str, Any]]:
    """One FFN with its adapter over the FFN alone, without the router."""
    router = router_of(routed)
    assert router is not None
    unit, branch = router.units[0], router.otherwise(0)
    dense = ffn(layers(routed)[unit.layer])
    rows = torch.randn(2048, routed.config.hidden_size, device=device).to(routed.dtype)
    gates = forced_gates(router, 1, 2048, bypass, device)[0, 0]
    sizes = shape_of(routed)
    real = 1 - float(gates.float().mean())
    bound = ((1 - real) * sizes.ffn + real * sizes.adapter) / sizes.ffn
    lines = []
    for case, backward in (("forward", False), ("forward, backward", True)):
        leaf = rows.clone().requires_grad_(backward)

        def run_one(function: Callable[[Tensor], Tensor], leaf: Tensor = leaf) -> None:
            output = function(leaf)
            if leaf.requires_grad:
                output.sum().backward()

        seconds = interleaved(
            {
                "dense": lambda: run_one(dense),
                "routed": lambda: run_one(lambda x: dispatch(x, gates, dense, branch)),
            },
            args.rounds, args.warmup, device,
        )  # fmt: skip
        found = compared(seconds["routed"], seconds["dense"], bound)
        lines.append({"mode": "block", "case": case, "bypass": real, **found})
    return lines


def time_prefill(
    dense: PreTrainedModel,
    routed: PreTrainedModel,
    bypass: float | None,
    args: argparse.Namespace,
    device: str,
) -> list[dict[str, Any]]:
    """A prompt pass, logits of the last token."""
    lines = []
    for sequences, length in cases(args.prefill):
        ids = _ids(dense, sequences, length, device)
        extra, real = _gates(routed, ids, bypass, device)

        def call(model: PreTrainedModel, ids: Tensor = ids, **more: Any) -> None:
            with torch.no_grad():
                model(ids, use_cache=False, logits_to_keep=1, **more)

        seconds = interleaved(
            {"dense": lambda: call(dense), "routed": lambda: call(routed, **extra)},  # noqa: B023
            args.rounds, args.warmup, device,
        )  # fmt: skip
        work = [
            prefill_flops(shape_of(model), sequences, length, rate)
            for model, rate in ((routed, real), (dense, 0.0))
        ]
        found = compared(seconds["routed"], seconds["dense"], work[0] / work[1])
        lines.append({"mode": "prefill", "case": f"{sequences}x{length}", "bypass": real, **found})
    return lines


def time_decode(
    dense: PreTrainedModel,
    routed: PreTrainedModel,
    bypass: float | None,
    args: argparse.Namespace,
    device: str,
) -> list[dict[str, Any]]:
    """One token per sequence behind a cache of ``context`` tokens, eager mode."""
    lines = []
    for sequences, context in cases(args.decode):
        prompt = _ids(dense, sequences, context, device)
        token = _ids(dense, sequences, 1, device)
        extra, real = _gates(routed, token, bypass, device)
        caches = {}
        for name, model in (("dense", dense), ("routed", routed)):
            caches[name] = DynamicCache(config=model.config)
            with torch.no_grad():
                model(prompt, past_key_values=caches[name], use_cache=True, logits_to_keep=1)

        def step(name: str, model: PreTrainedModel, cache: Any, token: Tensor, more: Any) -> None:
            with torch.no_grad():
                model(token, past_key_values=cache, use_cache=True, **more)
            # Every call sees the same context.
            cache.crop(-1)

        seconds = interleaved(
            {
                "dense": lambda: step("dense", dense, caches["dense"], token, {}),  # noqa: B023
                "routed": lambda: step("routed", routed, caches["routed"], token, extra),  # noqa: B023
            },
            args.rounds, args.warmup, device,
        )  # fmt: skip
        size = torch.finfo(dense.dtype).bits // 8
        work = [
            decode_bytes(shape_of(model), sequences, context, rate, size)
            for model, rate in ((routed, real), (dense, 0.0))
        ]
        found = compared(seconds["routed"], seconds["dense"], work[0] / work[1])
        lines.append({"mode": "decode", "case": f"{sequences}x{context}", "bypass": real, **found})
    return lines


def time_training(
    routed: PreTrainedModel, bypass: float, args: argparse.Namespace, device: str
) -> list[dict[str, Any]]:
    """One step (forward, backward) over LoRA on every linear layer of the same backbone."""
    lines = []
    config = routed.config
    with torch.device(device):
        lora = AutoModelForCausalLM.from_config(config, dtype=routed.dtype).train()
    rank = max(1, round(128 * config.hidden_size / 4096))
    add_lora(lora, (*ATTENTION, *FFN), range(config.num_hidden_layers), rank, rank, 0)
    trained = sum(p.numel() for p in lora.parameters() if p.requires_grad)
    router = router_of(routed)
    assert router is not None
    for sequences, length in cases(args.training):
        ids = _ids(routed, sequences, length, device)
        gates = forced_gates(router, sequences, length, bypass, device)
        real = 1 - float(gates.float().mean())
        for checkpointing in (False, True):
            routed.model.checkpointing = checkpointing
            if checkpointing:
                lora.gradient_checkpointing_enable({"use_reentrant": False})
            else:
                lora.gradient_checkpointing_disable()
            seconds = interleaved(
                {
                    "lora": lambda: _training_step(lora, ids, {}),  # noqa: B023
                    "routed": lambda: _training_step(routed, ids, {"gates": gates}),  # noqa: B023
                },
                args.rounds, args.warmup, device,
            )  # fmt: skip
            work = [
                training_flops(shape_of(routed), length, real, 0, checkpointing),
                training_flops(_dense_shape(routed), length, 0.0, trained, checkpointing),
            ]
            found = compared(seconds["routed"], seconds["lora"], work[0] / work[1])
            case = f"{sequences}x{length}" + (" recomputed" if checkpointing else "")
            lines.append({"mode": "training", "case": case, "bypass": real, **found})
    routed.model.checkpointing = False
    return lines


def _training_step(model: PreTrainedModel, ids: Tensor, extra: dict[str, Any]) -> None:
    model.zero_grad(set_to_none=True)
    output = decoder(model)(input_ids=ids, use_cache=False, **extra)
    loss = model.loss_function(
        logits=model.lm_head(output.last_hidden_state),
        labels=ids,
        vocab_size=model.config.vocab_size,
    )
    loss.backward()


def _dense_shape(model: PreTrainedModel) -> Shape:
    sizes = shape_of(model)
    return Shape(sizes.width, sizes.layers, sizes.attention, sizes.ffn, sizes.head, sizes.key_value)


def _ids(model: PreTrainedModel, sequences: int, length: int, device: str) -> Tensor:
    rng = generator(0, "ids")
    return torch.randint(model.config.vocab_size, (sequences, length), generator=rng).to(device)


def _gates(
    routed: PreTrainedModel, ids: Tensor, bypass: float | None, device: str
) -> tuple[dict[str, Tensor], float]:
    """Forced gates as arguments and their rate; with ``bypass`` None the model's own rate."""
    router = router_of(routed)
    if router is None:
        return {}, 0.0
    if bypass is not None:
        gates = forced_gates(router, ids.shape[0], ids.shape[1], bypass, device)
        return {"gates": gates}, 1 - float(gates.float().mean())
    with torch.no_grad():
        executed = decoder(routed)(input_ids=ids, use_cache=False).executed
    return {}, 1 - float(executed.float().mean())


if __name__ == "__main__":
    run(main)
