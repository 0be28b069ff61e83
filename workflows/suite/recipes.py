"""What a fit of each method trains, runs and keeps per position.

A new method has no recipe of its own: if it trains, its gradients are taken to flow through every
layer of the dense model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from methods.core.model.shapes import ATTENTION, FFN, candidate_layers
from workflows.stats.bounds import Shape, training_flops
from workflows.suite.model import Model

# Bypass of a HeRo whose alpha is pinned: its paper's rows have 74 to 77 %.
PINNED_BYPASS = 0.75
# Mean over a steered training of its last bypass rate: gates start open.
RAMP = 0.8
LORA = {
    "mlp_candidates": FFN,
    "mlp_all": FFN,
    "attn_all": ATTENTION,
    "qv_all": ("q_proj", "v_proj"),
    "qv": ("q_proj", "v_proj"),
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "all": (*ATTENTION, *FFN),
}
# Numbers of HeRo's router per token and block beside its widths: states, path, scalars.
ROUTER_REST = 400


@dataclass(frozen=True)
class Recipe:
    """A fit that trains; numbers are per position of a forward pass.

    Args:
        shape: What training multiplies.
        bypass: Mean bypass rate of routed layers in training.
        reached: Layers that gradients flow through, the last ones.
        beside: Trained parameters outside ``shape`` that every position uses.
        trained: All trained parameters.
        skip: Share of the dense parameters that inference skips.
        read: Layers whose attention the backward pass needs.
        run: The same for FFNs, in shares where only some tokens run them.
        single: Further numbers kept in float32, whatever the model's dtype.
        copies: Numbers kept once more in float32 if the model has 16 bits.
        kept: Further numbers kept in the model's dtype.
        shared: Of ``kept``, those that in float32 are one tensor for several matrices.
        streams: Numbers in the model's dtype that checkpointed layers keep beside their inputs.
        carried: Numbers in float32 that they hand to the next, all layers.
    """

    shape: Shape
    bypass: float
    reached: int
    beside: int
    trained: int
    skip: float
    read: float
    run: float
    single: float = 0.0
    copies: float = 0.0
    kept: float = 0.0
    shared: float = 0.0
    streams: float = 0.0
    carried: float = 0.0

    def flops(self, length: float, checkpointing: bool) -> float:
        """Operations per position of one training step; ``length`` tokens are read by each."""
        return training_flops(
            self.shape, length, self.bypass, self.beside, checkpointing, self.reached
        )


Params = Mapping[str, Any]
Maker = Callable[[Model, Params, float | None], Recipe]


def recipe(name: str, model: Model, params: Params, budget: float | None) -> Recipe:
    """The recipe of a trained method.

    Args:
        name: Of the method's file or folder.
        model: Backbone.
        params: Of the run, defaults among them.
        budget: Share of the parameters to skip; None: the params decide.
    """
    return MAKERS.get(name, _unknown)(model, params, budget)


def _unknown(model: Model, params: Params, budget: float | None) -> Recipe:
    return _dense(model, budget or 0.0)


def _dense(model: Model, skip: float) -> Recipe:
    """Gradients through every layer, nothing skipped in training, nothing trained yet."""
    count = model.layers
    norms = 2.0 * model.width * count
    return Recipe(model.shape(), 0.0, count, 0, 0, skip, count - 1, count, single=norms)


def with_lora(made: Recipe, model: Model, modules: str, rank: int, layers: int) -> Recipe:
    """The recipe with LoRA on the named projections of the last ``layers`` layers."""
    names = LORA[modules]
    beside = model.lora(names, rank, layers)
    # Of a 16-bit model each projection keeps an input of its own; in float32 those that read one
    # tensor share it.
    inputs = sum(model.sides(name)[0] for name in names)
    distinct = sum({name_reads(name): model.sides(name)[0] for name in names}.values())
    return replace(
        made,
        beside=made.beside + beside,
        trained=made.trained + beside,
        read=made.read if names == FFN else layers,
        kept=made.kept + layers * (inputs + rank * len(names)),
        shared=made.shared + layers * (inputs - distinct),
    )


def name_reads(projection: str) -> str:
    """Which tensor a projection of a layer reads."""
    return {"o_proj": "heads", "down_proj": "channels"}.get(
        projection, "attention" if projection in ATTENTION else "ffn"
    )


def _lora(model: Model, params: Params, budget: float | None) -> Recipe:
    count = model.layers
    only = params["modules"] == "mlp_candidates"
    layers = len(candidate_layers(count, 0.25)) if only else count
    bare = replace(
        _dense(model, 0.0), reached=layers, read=layers - 1, run=layers,
        single=2.0 * model.width * layers,
    )  # fmt: skip
    return with_lora(bare, model, params["modules"], params["rank"], layers)


def _hero(model: Model, params: Params, budget: float | None) -> Recipe:
    width, total = model.width, model.parameters
    count = len(_candidates(model, params["candidates"], budget))
    head = params["head_width"] or min(256, max(32, width // 16))
    adapter = params["adapter_width"]
    adapter = min(896, round(width * 896 / 4096)) if adapter is None else adapter
    router = _hero_router(model, params["variant"], head, params["memory_width"], count)
    parts = 2 * width * adapter
    always = ATTENTION if params["unit"] == "ffn" else ("k_proj", "v_proj")
    shape = model.shape(always, routed=count, adapter=parts, router=router)
    last = PINNED_BYPASS
    if budget is not None and params["alpha"] is None:
        last = min(1.0, budget * total / (count * shape.ffn))
    bypass = RAMP * last
    small = 6 * head + 6 * params["memory_width"] + ROUTER_REST
    history = 0 if params["variant"] in ("no-history", "static", "random") else 3 * width + small
    norms = 2 * width * (count - 1)
    return Recipe(
        shape, bypass, count, 0, count * parts + router, last * count * shape.ffn / total,
        read=count - 1,
        run=(count - 1) * (1 - bypass),
        single=norms + count * history,
        copies=(count - 1) * width,
        kept=count * ((2 + bypass) * width + 2 * bypass * adapter),
        streams=(count - 1) * width if history else 0.0,
        carried=2 * count * params["memory_width"] if history else 0.0,
    )  # fmt: skip


def _candidates(model: Model, given: Any, budget: float | None) -> list[int]:
    """The layers that param ``candidates`` stands for."""
    if given != "auto":
        return list(given)
    return candidate_layers(model.layers, 0.25 if budget is None else budget)


def _hero_router(model: Model, variant: str, head: int, memory: int, blocks: int) -> int:
    """Parameters that all routed blocks share, with one scalar for each block."""
    width, state = model.width, 64
    local = width * head + 2 * head + 1
    if variant in ("random", "by-kind", "by-token"):
        return 0
    if variant in ("static", "no-history"):
        return blocks if variant == "static" else local
    encoder = width + width * head + head * 48
    path = 0 if variant == "no-aux" else 6 * 64 + 64 + 64 * 16 + 16
    reading = 3 * state * memory + state * state + state * memory
    history = (state + memory + 1) * head + 2 * head + 1
    return local + encoder + path + reading + history + blocks


def _skipgpt(model: Model, params: Params, budget: float | None) -> Recipe:
    """Training runs every module and multiplies by its gate."""
    width, count = model.width, model.layers
    one = 2 * width + 2
    if params["router"] == "mlp":
        one = width * (width // 4) + width // 4 + 2 * (width // 4) + 2
    routers = 2 * count * one
    made = replace(
        _dense(model, budget or params["sparsity"] or 0.0), beside=routers, trained=routers,
        copies=2.0 * count * width, kept=2.0 * count * width,
    )  # fmt: skip
    if params["tuning"] == "RT":
        return made
    return with_lora(made, model, "qv", params["rank"], count)


def _d_llm(model: Model, params: Params, budget: float | None) -> Recipe:
    """Training runs every layer and multiplies by its gate."""
    width, count = model.width, model.layers
    start = params["start_layer"]
    routed = count - (max(1, round(2 * count / 32)) if start is None else start)
    hidden = params["router_width"] or min(512, max(32, width // 8))
    one = width * hidden + 4 * hidden + 2 if params["router"] == "mlp" else 2 * width + 2
    skip = budget or 1 - (params["omega"] or 1.0)
    made = replace(
        _dense(model, skip), beside=routed * one, trained=routed * one,
        single=2.0 * width * count + 4.0 * hidden * routed,
        copies=float(routed * width),
        # The difference that the gate scales; keys, values and results times their gates.
        kept=routed * (width + 2.0 * model.heads * model.head),
    )  # fmt: skip
    return with_lora(made, model, params["modules"], params["rank"], count)


def _mod_d(model: Model, params: Params, budget: float | None) -> Recipe:
    """Tokens that lose are left out: of FFNs, queries and attention outputs."""
    width, count = model.width, model.layers
    routed = count - params["protected_first"] - params["protected_last"]
    routers = 2 * routed * (width + 1)
    shape = model.shape(("k_proj", "v_proj"), routed=routed, router=2 * width)
    held = routed * shape.ffn / model.parameters
    capacity = params["capacity"]
    bypass = 1 - capacity if capacity else min(1.0, (budget or 0.0) / held)
    made = replace(
        _dense(model, bypass * held), shape=shape, bypass=bypass, trained=routers,
        run=count - bypass * routed,
        copies=2.0 * routed * width,
        kept=routed * width * (2 * (1 - bypass) + 1.5),
    )  # fmt: skip
    return with_lora(made, model, "qv", params["rank"], count)


def _slim(model: Model, params: Params, budget: float | None, blocks: bool) -> Recipe:
    """Bottleneck heads and slim SwiGLUs on the last layers, by block or by FFN."""
    width, count = model.width, len(_candidates(model, params["candidates"], budget))
    hidden = params["router_width"] or max(32, width // 16)
    adapter = params["adapter_width"] or max(1, model.channels // 16)
    head = (width + params.get("append_norm", False) + 1) * hidden + hidden * width + width
    always = ("k_proj", "v_proj") if blocks else ATTENTION
    shape = model.shape(always, routed=count, adapter=3 * width * adapter, router=head)
    held, last = count * shape.ffn / model.parameters, PINNED_BYPASS
    if budget is not None and params["alpha"] is None:
        last = min(1.0, budget / held)
    bypass = RAMP * last
    return Recipe(
        shape, bypass, count, 0, count * (head + shape.adapter), last * held,
        read=count - 1,
        run=(count - 1) * (1 - bypass),
        single=2 * width * (count - 1) + count * (3 * hidden + (2 - blocks) * width),
        copies=(count - 1) * width,
        # Rows that run are gathered for attention too, its results scattered.
        kept=count * ((2 + bypass + 3 * bypass * blocks) * width + 4 * bypass * adapter),
    )  # fmt: skip


def _mindskip(model: Model, params: Params, budget: float | None) -> Recipe:
    """Training runs every target and multiplies by its gate."""
    width, count = model.width, len(_candidates(model, params["candidates"], budget))
    return replace(
        _dense(model, budget or 0.0), reached=count, beside=count * width, trained=count * width,
        read=count - 1, run=count - 1,
        single=2.0 * width * count, copies=float(count * width), kept=float(count * width),
    )  # fmt: skip


MAKERS: dict[str, Maker] = {
    "lora": _lora, "hero": _hero, "skipgpt": _skipgpt, "d_llm": _d_llm, "mod_d": _mod_d,
    "flexidepth": partial(_slim, blocks=True), "diffskip": partial(_slim, blocks=False),
    "mindskip": _mindskip,
}  # fmt: skip
