"""Toy models of the rows that route by token, and slow pieces to rebuild them from."""

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
from methods.core.model.backbone import Backbone, attention, count, decoder
from methods.core.routing.decisions import Decider, Decision
from methods.core.routing.router import Context, Gate, Router, Tokens, ffn_units
from tests import toy
from tests.training_toys import documents

IDS = torch.randint(0, 60, (4, 11), generator=torch.Generator().manual_seed(21))
# D-LLM as the authors of SkipGPT made it again.
SIMPLIFIED = {
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
    "d-llm-skipgpt": ("d-llm", {"rank": 4} | SIMPLIFIED),
    "mod-d": ("mod-d", {"rank": 4}),
    "mod-d-topk": ("mod-d", {"rank": 4, "inference": "topk"}),
    "flexidepth": ("flexidepth", {}),
    "diffskip": ("diffskip", {}),
    "mindskip": ("mindskip", {}),
    "mindskip-block": ("mindskip-block", {}),
}
# Rows that write down which layers they route.
NAMED = ("flexidepth", "diffskip", "mindskip", "mindskip-block")
TRAINING = {"updates": 6, "batch_tokens": 60, "learning_rate": 3e-3, "row_length": 40}


class Texts:
    """The data of a fit."""

    def training(self) -> list[Document]:
        return documents()

    def probe(self) -> list[Document]:
        return documents(16, seed=4)


class Spared(Router):
    """Runs everything on answer tokens and skips unit 0 on three of ten prompt positions."""

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


def wrap(model: nn.Module) -> Backbone:
    return Backbone(model, None, Path(), None, "", count(model))


def built(
    variant: str, kind: str = "llama", dtype: torch.dtype = torch.float32, **structure: Any
) -> Any:
    """A model with its routers as they start and fresh LoRA, in eval mode."""
    row, params = VARIANTS[variant]
    start: dict[str, Any] = {"seed": 7, "threshold": 0.5}
    if row == "mod-d":
        start |= {"capacity": 0.7, "levels": None}
    if row in NAMED:
        start |= {"layers": [1, 2, 3]}
    dense = toy.cast(toy.make_model(kind), dtype)
    model = load_method(row, params).build(wrap(dense), start | structure)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
    if row == "mod-d" and params.get("inference") != "topk" and "levels" not in structure:
        model.model.router.levels = [[0.0, 1.0]] * len(model.model.router.units)
    return model.eval()


def shaken(variant: str, kind: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    """The same with every trained weight moved; decisions go both ways."""
    model = built(variant, kind, dtype)
    rng = torch.Generator().manual_seed(13)
    if VARIANTS[variant][0] in ("flexidepth", "diffskip"):
        model.model.router.initial_bias = 0.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
                # More on queries and keys would leave attention to single tokens.
                parameter += (0.05 if "lora_" in name else 0.3) * noise.to(parameter.dtype)
        # The output bias of D-LLM starts far on one side.
        for router in model.model.router.routers if variant == "d-llm" else ():
            router[-1].bias.zero_()
    return model


def fit(variant: str, workdir: Path, budget: float | None = 0.2, **params: Any) -> Fitted:
    """A short fit on a fresh toy."""
    row, own = VARIANTS[variant]
    method = load_method(row, TRAINING | own | params)
    return method.fit(wrap(toy.make_model()), Texts(), Request(budget, 5, workdir))


def set_routers(model: Any, bias: Sequence[float]) -> None:
    """The last linear layer of every router: weights 0 and this bias."""
    with torch.no_grad():
        for router in model.model.router.routers:
            last = router if isinstance(router, nn.Linear) else router[-1]
            last.weight.zero_()
            last.bias.copy_(torch.tensor(bias))


def all_real(ids: Tensor) -> Tokens:
    """Sequences without pads."""
    places = torch.arange(ids.shape[1]).expand_as(ids)
    return Tokens(ids, places, torch.ones_like(ids, dtype=torch.bool))


def training(progress: float = 0.0, seed: int = 0) -> Context:
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
    """What becomes of a router's gate where no layer runs again."""
    return Decider(router, at or Context(), None, False).decide(index, before, after, state)


def slow_attention(model: Any, layer: nn.Module, rows: Tensor, seen: list[list[int]]) -> Tensor:
    """Attention of a toy Llama on one sequence, a token and a head at a time.

    Args:
        model: Owner of the rotary embedding.
        layer: Whose attention.
        rows: Its inputs (T, D), normed.
        seen: The tokens that each token reads.
    """
    heads, width = attention(layer), 8
    places = torch.arange(len(rows))[None]
    cosine, sine = decoder(model).rotary_emb(rows[None], position_ids=places)

    def turned(parts: Tensor) -> Tensor:
        half = torch.cat([-parts[..., width // 2 :], parts[..., : width // 2]], dim=-1)
        return parts * cosine[0, :, None] + half * sine[0, :, None]

    query = turned(heads.q_proj(rows).view(-1, 4, width))
    key = turned(heads.k_proj(rows).view(-1, 2, width))
    value = heads.v_proj(rows).view(-1, 2, width)
    mixed = []
    for t, read in enumerate(seen):
        parts = []
        for head in range(4):
            scores = key[read, head // 2] @ query[t, head] / width**0.5
            parts.append(scores.softmax(0) @ value[read, head // 2])
        mixed.append(heads.o_proj(torch.cat(parts)))
    return torch.stack(mixed)


def earlier(length: int) -> list[list[int]]:
    """What each token reads under plain causal attention."""
    return [list(range(t + 1)) for t in range(length)]


def winners(weights: list[float], capacity: float, compare: str) -> list[bool]:
    """Who runs of the tokens of one document under MoD-D, from the definition."""
    k = max(1, math.floor(round(capacity * len(weights), 9)))
    tau = sorted(weights, reverse=True)[k - 1]
    if compare == "inclusive" or k == 1:
        return [w >= tau for w in weights]
    return [w > tau for w in weights]
