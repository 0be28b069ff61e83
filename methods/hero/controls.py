"""Controls that keep HeRo's adapters and training but not its router."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.api import (
    DECISIONS,
    Context,
    Data,
    Document,
    Gate,
    Router,
    Tokens,
    Unit,
    decoder,
    lay_out,
    load_fitted,
    read_json,
    router_of,
    uniform_hash,
)
from methods.hero.branch import Adapter
from methods.hero.heads import Sizes

# Training texts on which rates are counted.
LENT = 2000


class _WithAdapters(Router):
    """A router with HeRo's adapters."""

    def __init__(self, units: list[Unit], sizes: Sizes, generator: torch.Generator | None) -> None:
        super().__init__()
        self.units = units
        self.adapters = nn.ModuleList(
            Adapter(sizes.hidden, sizes.adapter, generator) for _ in units
        )

    def alternative(self, index: int) -> Adapter:
        """The adapter of block ``index``."""
        adapter = self.adapters[index]
        assert isinstance(adapter, Adapter)
        return adapter


class StaticGates(_WithAdapters):
    """One learned gate per block, the same for every token: routing without tokens.

    The blocks with the smallest gates are bypassed; in training their number grows to its target
    over the first half, so that the gates have told the blocks apart before.

    Args:
        units: R feed-forward networks.
        sizes: Widths.
        initial_bias: First logit of every gate.
        closed: Number of blocks to bypass.
        generator: Of the adapters' initial values.
    """

    def __init__(
        self,
        units: list[Unit],
        sizes: Sizes,
        initial_bias: float,
        closed: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(units, sizes, generator)
        self.logits = nn.Parameter(torch.full((len(units),), initial_bias))
        self.closed = closed

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tensor:
        """Which blocks run (R,)."""
        order = self.logits.detach().argsort(stable=True)
        run = torch.ones_like(self.logits, dtype=torch.bool)
        run[order[: round(self.closed * min(1.0, 2 * at.progress))]] = False
        return run

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """The block's gate, for every token."""
        shape = block_input.shape[:2]
        gate = torch.sigmoid(self.logits[index].float()).expand(shape)
        return Gate(gate, "gate", state[index].expand(shape)), state


class RandomBypass(_WithAdapters):
    """Tokens bypass block j at a rate that is looked up, drawn from a hash.

    The hash is of (seed, layer, position, token), so that cached decoding meets the same draw.

    Both branches run at full strength; only the adapters are trained. The threshold t shifts all
    rates, to sigmoid(logit(rate) + logit(t)).

    Args:
        units: R feed-forward networks.
        sizes: Widths.
        rates: Bypass rates in (0, 1), (R, K).
        key: What a rate depends on: ``"block"`` alone (K = 1), the ``"kind"`` of the position (K =
            2: prompt, answer) or the ``"token"`` (K: size of the vocabulary).
        seed: Of the hash.
        generator: Of the adapters' initial values.
    """

    def __init__(
        self,
        units: list[Unit],
        sizes: Sizes,
        rates: Tensor,
        key: Literal["block", "kind", "token"],
        seed: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(units, sizes, generator)
        self.key, self.seed, self.threshold = key, seed, 0.5
        self.register_buffer("logits", torch.logit(rates.double(), eps=1e-6), persistent=False)

    @property
    def reads_kinds(self) -> bool:
        """Whether it must be told which tokens are answer tokens."""
        return self.key == "kind"

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> tuple[Tensor, Tensor]:
        """The draws (B, R, T); the place (B, T) of each token among the K rates."""
        if tokens.ids is None:
            raise ValueError("random bypassing hashes token ids, so it needs input_ids")
        layers = [unit.layer for unit in self.units]
        draws = uniform_hash(self.seed, layers, tokens.positions, tokens.ids)
        if self.key == "token":
            return draws, tokens.ids
        if self.key == "block":
            return draws, torch.zeros_like(tokens.ids)
        if at.answers is None:
            raise ValueError("variant 'by-kind' must be told which tokens are answer tokens")
        return draws, (at.answers > 0).long()

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """The draw of block ``index``."""
        draws, places = state
        logits = self.get_buffer("logits")[index]
        shift = math.log(self.threshold / (1 - self.threshold))
        execute = draws[:, index] >= torch.sigmoid(logits + shift)[places]
        return Gate(execute.float(), execute=execute), state


def lent_rates(
    folder: Path, key: Literal["block", "kind", "token"], data: Data, device: str, count: int
) -> list[list[float]]:
    """What a fitted HeRo bypasses, as the rates of a control.

    Args:
        folder: Of its model.
        key: What the rates depend on, see :class:`RandomBypass`.
        data: Its training texts are counted on, except by block: there the fit has counted.
        device: Where the model runs.
        count: R, its blocks.

    Returns:
        Rates (R, K), or by token the rows of :func:`measured_rates`.

    Raises:
        ValueError: The model routes other blocks, or its fit counted no rates.
    """
    if key == "block":
        told = read_json(folder / DECISIONS).get("bypass_rates")
        if not isinstance(told, list) or not all(isinstance(rate, float) for rate in told):
            raise ValueError(f"{folder / DECISIONS} holds no 'bypass_rates', numbers by block")
        rates = [[rate] for rate in told]
        found = len(rates)
    else:
        model = load_fitted(folder, device=device).model
        measured = measured_rates(model, data.training()[:LENT])
        rates = measured["token_rates"]
        found = len(rates[0]) - 1
        if key == "kind":
            rates = [list(both) for both in zip(*measured["kind_rates"], strict=True)]
    if found != count:
        raise ValueError(f"the lender {folder} has rates of {found} blocks, the control {count}")
    return rates


@torch.no_grad()
def measured_rates(model: nn.Module, documents: Sequence[Document]) -> dict[str, list[list[float]]]:
    """How often HeRo bypasses each block, by kind of position and by token, on training texts.

    A rate of k bypasses among n tokens is (k + 1/2) / (n + 1), so that none is 0 or 1.

    Args:
        model: Routed causal LM with R units.
        documents: Texts.

    Returns:
        ``kind_rates``: the R rates of prompt positions and those of answer tokens.
        ``token_rates``: rows of R + 1 numbers, a token's id and its rates; -1 stands for tokens
        that the texts lack.
    """
    vocab = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    counts = torch.zeros(2, vocab, dtype=torch.float64)
    skips = torch.zeros(2, vocab, len(router_of(model).units), dtype=torch.float64)  # type: ignore[union-attr]
    device = next(model.parameters()).device
    for start in range(0, len(documents), 32):
        rows = lay_out(documents[start : start + 32], 0, 1.0)
        output = decoder(model)(
            input_ids=rows.ids.to(device), position_ids=rows.positions.to(device), use_cache=False
        )
        skipped = (~output.executed).double().cpu().transpose(1, 2)
        for kind, chosen in enumerate((rows.prompting > 0, rows.answers > 0)):
            ids = rows.ids[chosen]
            counts[kind].index_add_(0, ids, torch.ones(len(ids), dtype=torch.float64))
            skips[kind].index_add_(0, ids, skipped[chosen])
    by_kind = (skips.sum(dim=1) + 0.5) / (counts.sum(dim=1)[:, None] + 1)
    number, total = counts.sum(dim=0), skips.sum(dim=0)
    rates = (total + 0.5) / (number[:, None] + 1)
    seen = number.nonzero()[:, 0].tolist()
    unseen = (total.sum(dim=0) + 0.5) / (number.sum() + 1)
    table = [[-1.0, *_short(unseen)], *([float(n), *_short(rates[n])] for n in seen)]
    return {"kind_rates": [_short(each) for each in by_kind], "token_rates": table}


def _short(rates: Tensor) -> list[float]:
    """Numbers of four digits, as they are lent: a large vocabulary has many."""
    return [float(f"{rate:.4g}") for rate in rates.tolist()]


def token_table(rows: Sequence[Sequence[float]], vocab: int) -> Tensor:
    """Rates (R, V) from rows of :func:`measured_rates`.

    Raises:
        ValueError: The row of tokens that the texts lack is missing, or an id is too large.
    """
    # On the CPU also where weights have no numbers yet.
    found = {int(row[0]): torch.tensor(row[1:], dtype=torch.float64, device="cpu") for row in rows}
    if -1 not in found or max(found) >= vocab:
        raise ValueError(f"rates by token need a row -1 and ids below {vocab}")
    table = found.pop(-1)[:, None].repeat(1, vocab)
    for number, rates in found.items():
        table[:, number] = rates
    return table
