"""Toys under the rows that route by token, and slow functions to check them by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from methods import load_method
from methods.base import Fitted, Request
from methods.core.data import Document
from methods.core.model.backbone import attention, decoder
from methods.core.routing.decisions import Decider, Decision
from methods.core.routing.router import Context, Gate, Router, Tokens, ffn_units
from tests.toys.models import cast, make_model, wrap
from tests.toys.texts import documents

IDS = torch.randint(0, 60, (4, 11), generator=torch.Generator().manual_seed(21))
# D-LLM as the authors of SkipGPT implement it.
SIMPLE_D_LLM = {
    "router": "linear", "evict": False, "start_layer": 0, "reserved": 0, "penalty": "batch",
    "penalty_weight": 10.0, "ramp": "constant", "evaluation": "sample", "modules": "qv",
}  # fmt: skip
# Variant -> row and params.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "skipgpt-rt": ("skipgpt-rt", {}),
    "skipgpt-rt-mlp": ("skipgpt-rt", {"router": "mlp"}),
    "skipgpt-rt-sampled": ("skipgpt-rt", {"evaluation": "sample"}),
    "skipgpt-joint": ("skipgpt-joint", {"rank": 4}),
    "d-llm": ("d-llm", {"rank": 4}),
    "d-llm-skipgpt": ("d-llm", {"rank": 4} | SIMPLE_D_LLM),
    "mod-d": ("mod-d", {"rank": 4}),
    "mod-d-topk": ("mod-d", {"rank": 4, "inference": "topk"}),
    "flexidepth": ("flexidepth", {}),
    "diffskip": ("diffskip", {}),
    "mindskip": ("mindskip", {}),
    "mindskip-block": ("mindskip-block", {}),
    "hero+lora": ("hero", {"lora_rank": 4, "initial_bias": 0.5}),
}
# Of six layers, those that a row routes in its own tests.
ROUTED = [2, 3, 4, 5]
# Rows whose decisions list the layers that they route.
LISTS_LAYERS = ("flexidepth", "diffskip", "mindskip", "mindskip-block", "hero")
TRAINING = {"updates": 6, "batch_tokens": 60, "learning_rate": 3e-3, "row_length": 40}


class Texts:
    """The data of a fit."""

    def training(self) -> list[Document]:
        return documents()

    def probe(self) -> list[Document]:
        return documents(16, seed=4)


class PromptSkipper(Router):
    """Skips its unit at three of ten prompt positions, and never on answer tokens."""

    reads_kinds = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.units = ffn_units(model, [2])

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tensor:
        assert at.answers is not None
        return (at.answers > 0) | (tokens.positions % 10 >= 3)

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Tensor,
        at: Context,
    ) -> tuple[Gate, Tensor]:
        return Gate(execute=state), state


def build_variant(
    variant: str, kind: str = "llama", dtype: torch.dtype = torch.float32, **structure: Any
) -> Any:
    """A model whose routers and LoRA are at their starts, in eval mode."""
    row, params = VARIANTS[variant]
    start: dict[str, Any] = {"seed": 7, "threshold": 0.5}
    if row == "mod-d":
        start |= {"capacity": 0.7, "levels": None}
    if row in LISTS_LAYERS:
        start |= {"layers": [1, 2, 3]}
    dense = cast(make_model(kind), dtype)
    model = load_method(row, params).build(wrap(dense), start | structure)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
    if row == "mod-d" and params.get("inference") != "topk" and "levels" not in structure:
        model.model.router.levels = [[0.0, 1.0]] * len(model.model.router.units)
    return model.eval()


def build_biased(row: str, bias: float, layers: Sequence[int] = ROUTED, **params: Any) -> Any:
    """A toy Llama under ``row``, whose gates start by ``bias``, in eval mode."""
    method = load_method(row, {"initial_bias": bias, **params})
    structure = {"layers": layers, "seed": 7, "threshold": 0.5}
    return method.build(wrap(make_model()), structure).eval()


def shake_variant(variant: str, kind: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    """The same with noise on every trained weight, so that decisions go both ways."""
    model = build_variant(variant, kind, dtype)
    rng = torch.Generator().manual_seed(13)
    if VARIANTS[variant][0] in ("flexidepth", "diffskip"):
        model.model.router.initial_bias = 0.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
                # LoRA gets less: more on queries and keys would fix attention on single tokens. And
                # HeRo's deep router would say the same of every token.
                size = 0.1 if variant == "hero+lora" else 0.3
                parameter += (0.05 if "lora_" in name else size) * noise.to(parameter.dtype)
        # D-LLM's output bias starts so high that every token would run.
        for router in model.model.router.routers if variant == "d-llm" else ():
            router[-1].bias.zero_()
    return model


def fit(variant: str, workdir: Path, budget: float | None = 0.2, **params: Any) -> Fitted:
    """A short fit on a toy Llama."""
    row, own = VARIANTS[variant]
    method = load_method(row, TRAINING | own | params)
    return method.fit(wrap(make_model()), Texts(), Request(budget, 5, workdir))


def set_routers(model: Any, bias: Sequence[float]) -> None:
    """Set the last linear layer of every router to weights 0 and ``bias``."""
    with torch.no_grad():
        for router in model.model.router.routers:
            last = router if isinstance(router, nn.Linear) else router[-1]
            last.weight.zero_()
            last.bias.copy_(torch.tensor(bias))


def without_pads(ids: Tensor) -> Tokens:
    """Sequences without pads."""
    places = torch.arange(ids.shape[1]).expand_as(ids)
    return Tokens(ids, places, torch.ones_like(ids, dtype=torch.bool))


def training_context(progress: float = 0.0, seed: int = 0) -> Context:
    """The context of a training pass."""
    return Context(progress, torch.Generator().manual_seed(seed))


def decide(
    router: Router,
    index: int,
    before: Tensor,
    after: Tensor | None,
    state: Any,
    at: Context | None = None,
) -> tuple[Decision, Any]:
    """The decision that follows from a router's gate without recomputation."""
    return Decider(router, at or Context(), None, False).decide(index, before, after, state)


def slow_attention(model: Any, layer: nn.Module, rows: Tensor, reads: list[list[int]]) -> Tensor:
    """Attention of a toy Llama on one sequence, computed for one token and one head at a time.

    Args:
        model: Holds the rotary embedding.
        layer: Holds the attention.
        rows: Inputs of the attention (T, D), after the norm.
        reads: The tokens that each token reads.
    """
    heads, width = attention(layer), 8
    places = torch.arange(len(rows))[None]
    cosine, sine = decoder(model).rotary_emb(rows[None], position_ids=places)

    def rotate(parts: Tensor) -> Tensor:
        half = torch.cat([-parts[..., width // 2 :], parts[..., : width // 2]], dim=-1)
        return parts * cosine[0, :, None] + half * sine[0, :, None]

    query = rotate(heads.q_proj(rows).view(-1, 4, width))
    key = rotate(heads.k_proj(rows).view(-1, 2, width))
    value = heads.v_proj(rows).view(-1, 2, width)
    outputs = []
    for t, tokens in enumerate(reads):
        parts = []
        for head in range(4):
            scores = key[tokens, head // 2] @ query[t, head] / width**0.5
            parts.append(scores.softmax(0) @ value[tokens, head // 2])
        outputs.append(heads.o_proj(torch.cat(parts)))
    return torch.stack(outputs)


def causal_reads(length: int) -> list[list[int]]:
    """The tokens that each token reads under causal attention."""
    return [list(range(t + 1)) for t in range(length)]


def winners(weights: list[float], capacity: float, compare: str) -> list[bool]:
    """Which tokens of one document run under MoD-D, by the definition."""
    k = max(1, math.floor(round(capacity * len(weights), 9)))
    tau = sorted(weights, reverse=True)[k - 1]
    if compare == "inclusive" or k == 1:
        return [w >= tau for w in weights]
    return [w > tau for w in weights]
