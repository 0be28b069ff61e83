"""HeRo's router by its equations, in float64, for one token and one block at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

EPS = 1e-6
NAMES = ("gate", "history_logit", "local_logit", "p", "m", "novelty", "context", "path")
Weights = dict[str, Tensor]


@dataclass
class TokenState:
    """What one token carries over depth; the memory is the 64 x 64 recurrence."""

    matrix: Tensor
    mass: Tensor
    p: float = 1.0
    m: float = 1.0
    last: Tensor | None = None
    delta: Tensor | None = None


def fresh(weights: Weights) -> TokenState:
    """The state before the first block."""
    width = len(weights["W_q"]) if "W_q" in weights else 1
    zeros = torch.zeros(width, width, dtype=torch.float64)
    return TokenState(zeros, zeros[0])


def in_double(weights: Weights) -> Weights:
    return {name: weight.detach().double() for name, weight in weights.items()}


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def phi(x: Tensor) -> Tensor:
    """ELU(x) + 1: x + 1 above zero, e^x below."""
    return torch.where(x > 0, x + 1, torch.exp(x))


def mlp(weights: Weights, name: str, x: Tensor) -> Tensor:
    inner = silu(weights[f"{name}_W1"] @ x + weights[f"{name}_b1"])
    return weights[f"{name}_W2"] @ inner + weights[f"{name}_b2"]


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)) + EPS)


def path_vector(block: int, total: int, delta: Tensor | None, state: TokenState) -> list[float]:
    """[j/R, (R-j)/R, ||delta_j||, cosine of two steps, p, m]; ``block`` counts from 1."""
    distance = bend = 0.0
    if block >= 2:
        distance = math.sqrt(float(delta @ delta))
    if block >= 3:
        bend = cosine(delta, state.delta)
    return [block / total, (total - block) / total, distance, bend, state.p, state.m]


def one_gate(
    weights: Weights,
    block: int,
    total: int,
    hbar: Tensor,
    state: TokenState,
    norm_eps: float,
    variant: str = "full",
) -> tuple[dict[str, float | Tensor], TokenState]:
    """Block ``block`` (from 1) of ``total`` for one token with hbar (D,)."""
    local = float(mlp(weights, "local", hbar))
    if variant in ("no-history", "same-size"):
        second = float(mlp(weights, "second", hbar)) if variant == "same-size" else 0.0
        return {
            "gate": sigmoid(local + second), "history_logit": second, "local_logit": local
        }, state  # fmt: skip
    delta = None if block == 1 else hbar - state.last
    path = path_vector(block, total, delta, state)
    if variant == "no-position":
        path[:4] = [0.0] * 4
    x = torch.tensor(path, dtype=torch.float64)
    normed = weights["rms_w"] * hbar / math.sqrt(float(hbar @ hbar) / len(hbar) + norm_eps)
    z_hidden = weights["W_hu"] @ silu(weights["W_hd"] @ normed)
    if variant == "no-aux":
        z_path = torch.zeros(16, dtype=torch.float64)
    else:
        z_path = mlp(weights, "path", x)
    s = torch.cat([z_hidden, z_path])

    read = phi(weights["W_q"] @ s)
    context = (read @ state.matrix) / (float(read @ state.mass) + EPS)
    novelty = 0.0
    if block > 1:
        novelty = 1 - cosine(weights["W_n"] @ s, weights["W_c"] @ context)
    if variant == "no-memread":
        context, novelty = 0 * context, 0.0
    features = torch.cat([s, context, torch.tensor([novelty], dtype=torch.float64)])
    history = float(mlp(weights, "hist", features))
    p = sigmoid(history / 0.9)

    written = phi(weights["W_k"] @ s)
    rho = sigmoid(float(weights["eta"][block - 1]))
    after = TokenState(
        matrix=rho * state.matrix + torch.outer(written, weights["W_v"] @ s),
        mass=rho * state.mass + written,
        p=p,
        m=state.m * p,
        last=hbar,
        delta=delta if delta is not None else torch.zeros_like(hbar),
    )
    found = {
        "gate": sigmoid(history + local), "history_logit": history, "local_logit": local,
        "p": p, "m": after.m, "novelty": novelty, "context": context, "path": x,
    }  # fmt: skip
    return found, after


def all_gates(
    weights: Weights, hbar: Tensor, norm_eps: float, variant: str = "full"
) -> dict[str, Tensor]:
    """Every value of every gate for hbar (R, B, T, D): name -> (R, B, T) or (R, B, T, width)."""
    weights, hbar = in_double(weights), hbar.double()
    total, batch, length, _ = hbar.shape
    cells_of: dict[str, dict[tuple[int, int, int], Tensor]] = {}
    for row, token in product(range(batch), range(length)):
        state = fresh(weights)
        for block in range(1, total + 1):
            values, state = one_gate(
                weights, block, total, hbar[block - 1, row, token], state, norm_eps, variant
            )
            for name, value in values.items():
                cell = torch.as_tensor(value, dtype=torch.float64)
                cells_of.setdefault(name, {})[block - 1, row, token] = cell
    return {
        name: torch.stack([cells[index] for index in sorted(cells)]).unflatten(
            0, (total, batch, length)
        )
        for name, cells in cells_of.items()
    }
