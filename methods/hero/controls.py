"""Controls with HeRo's adapters and training, but with another router."""

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
    Tokens,
    Unit,
    decoder,
    lay_out,
    load_fitted,
    read_card,
    read_json,
    router_of,
    uniform_hash,
)
from methods.hero.adapter import AdaptedRouter
from methods.hero.heads import Sizes

# So many training texts are enough to count rates.
RATE_TEXTS = 2000


class StaticGates(AdaptedRouter):
    """One learned gate per FFN, the same for every token.

    The FFNs with the smallest gates are skipped. Their number grows to its target over the first
    half of training, so that the gates can first learn to tell the FFNs apart.

    Args:
        units: R feed-forward networks.
        sizes: Widths.
        initial_bias: First logit of every gate.
        skips: Number of FFNs to skip.
        generator: Of the adapters' initial values.
    """

    def __init__(
        self,
        units: list[Unit],
        sizes: Sizes,
        initial_bias: float,
        skips: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.units = units
        self.add_adapters(units, sizes, generator)
        self.logits = nn.Parameter(torch.full((len(units),), initial_bias))
        self.skips = skips

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> Tensor:
        """Which FFNs run (R,)."""
        order = self.logits.detach().argsort(stable=True)
        skipped = order[: round(self.skips * min(1.0, 2 * at.progress))]
        # index_fill: an assignment copies its value from the host, which no CUDA graph takes.
        return torch.ones_like(self.logits, dtype=torch.bool).index_fill(0, skipped, False)

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """The gate of the FFN, for every token."""
        shape = block_input.shape[:2]
        gate = torch.sigmoid(self.logits[index].float()).expand(shape)
        return Gate(gate, "gate", state[index].expand(shape)), state


class RandomGates(AdaptedRouter):
    """Each token skips FFN j at random, at a rate from a table.

    The random number is a hash of (seed, layer, position, token), so that cached decoding repeats
    it. Both branches run at full strength; only the adapters are trained. The threshold t shifts
    all rates, to sigmoid(logit(rate) + logit(t)).

    Args:
        units: R feed-forward networks.
        sizes: Widths.
        rates: Rates of skipping in (0, 1), (R, K).
        key: What a rate depends on besides the FFN: ``"unit"``: nothing (K = 1); ``"kind"``:
            prompt or answer token (K = 2); ``"token"``: the token id (K: size of the vocabulary).
        seed: Of the hash.
        generator: Of the adapters' initial values.
    """

    def __init__(
        self,
        units: list[Unit],
        sizes: Sizes,
        rates: Tensor,
        key: Literal["unit", "kind", "token"],
        seed: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.units = units
        self.add_adapters(units, sizes, generator)
        self.key, self.seed, self.threshold = key, seed, 0.5
        self.register_buffer("logits", torch.logit(rates.double(), eps=1e-6), persistent=False)

    @property
    def reads_kinds(self) -> bool:
        """Whether it needs to know which tokens are answer tokens."""
        return self.key == "kind"

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> tuple[Tensor, Tensor]:
        """Uniform numbers (B, R, T); the index (B, T) of each token among the K rates."""
        if tokens.ids is None:
            raise ValueError("random skipping hashes token ids, so it needs input_ids")
        layers = [unit.layer for unit in self.units]
        draws = uniform_hash(self.seed, layers, tokens.positions, tokens.ids)
        if self.key == "token":
            return draws, tokens.ids
        if self.key == "unit":
            return draws, torch.zeros_like(tokens.ids)
        if at.answers is None:
            raise ValueError("variant 'by-kind' needs to know which tokens are answer tokens")
        return draws, (at.answers > 0).long()

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Skip where the uniform number of FFN ``index`` is below the token's rate."""
        draws, columns = state
        logits = self.get_buffer("logits")[index]
        shift = math.log(self.threshold / (1 - self.threshold))
        execute = draws[:, index] >= torch.sigmoid(logits[columns] + shift)
        return Gate(execute.float(), execute=execute), state


def lender_rates(
    folder: Path,
    key: Literal["unit", "kind", "token"],
    data: Data,
    device: str,
    layers: Sequence[int],
) -> list[list[float]]:
    """How often a fitted HeRo skips, as the rates of a control.

    Args:
        folder: Of the fitted model, the lender.
        key: What the rates depend on, see :class:`RandomGates`.
        data: Rates by kind and by token are counted on its training texts. Rates by FFN are those
            that the lender's fit counted on the probe texts, under ``match: split`` on their
            answer tokens.
        device: Where the model runs.
        layers: The control's, R of them.

    Returns:
        Rates (R, K); by token the rows of :func:`count_rates`.

    Raises:
        ValueError: The lender routes other layers or units, or its fit counted no rates.
    """
    own = (read_card(folder).structure or {}).get("layers")
    if own != list(layers):
        raise ValueError(f"the lender {folder} routes the layers {own}, the control {list(layers)}")
    if key == "unit":
        return [[rate] for rate in fitted_rates(folder, len(layers))]
    model = load_fitted(folder, device=device).model
    units = router_of(model).units  # type: ignore[union-attr]
    if [unit.layer for unit in units] != list(layers):
        raise ValueError(
            f"the lender {folder} has {len(units)} units, the control {len(layers)} FFNs"
        )
    counts = count_rates(model, data.training()[:RATE_TEXTS])
    if key == "kind":
        return [list(both) for both in zip(*counts["kind_rates"], strict=True)]
    return counts["token_rates"]


def fitted_rates(folder: Path, count: int) -> list[float]:
    """How often each of ``count`` FFNs was skipped at the end of a fit.

    Raises:
        ValueError: The fit did not count so many rates.
    """
    rates = read_json(folder / DECISIONS).get("bypass_rates")
    if not isinstance(rates, list) or not all(isinstance(rate, float) for rate in rates):
        raise ValueError(f"{folder / DECISIONS} holds no 'bypass_rates', numbers by FFN")
    if len(rates) != count:
        raise ValueError(f"{folder / DECISIONS} has rates of {len(rates)} FFNs, not of {count}")
    return rates


@torch.no_grad()
def count_rates(model: nn.Module, documents: Sequence[Document]) -> dict[str, list[list[float]]]:
    """How often HeRo skips each FFN on training texts, by kind of token and by token id.

    The rate of k skips among n tokens is (k + 1/2) / (n + 1), so that no rate is 0 or 1.

    Args:
        model: Routed causal LM with R units.
        documents: Texts.

    Returns:
        ``kind_rates``: the R rates of prompt tokens and those of answer tokens.
        ``token_rates``: rows of R + 1 numbers, a token's id and its rates; the id -1 stands for
        all tokens that the texts lack.
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
        skip_flags = (~output.executed).double().cpu().transpose(1, 2)
        for kind, mask in enumerate((rows.prompting > 0, rows.answers > 0)):
            ids = rows.ids[mask]
            counts[kind].index_add_(0, ids, torch.ones(len(ids), dtype=torch.float64))
            skips[kind].index_add_(0, ids, skip_flags[mask])
    by_kind = (skips.sum(dim=1) + 0.5) / (counts.sum(dim=1)[:, None] + 1)
    number, total = counts.sum(dim=0), skips.sum(dim=0)
    rates = (total + 0.5) / (number[:, None] + 1)
    ids_in_texts = number.nonzero()[:, 0].tolist()
    mean = (total.sum(dim=0) + 0.5) / (number.sum() + 1)
    table = [[-1.0, *_short(mean)], *([float(n), *_short(rates[n])] for n in ids_in_texts)]
    return {"kind_rates": [_short(each) for each in by_kind], "token_rates": table}


def _short(rates: Tensor) -> list[float]:
    """Rates of four digits: a table for a large vocabulary is long."""
    return [float(f"{rate:.4g}") for rate in rates.tolist()]


def token_table(rows: Sequence[Sequence[float]], vocab: int) -> Tensor:
    """Rates (R, V) from rows of :func:`count_rates`.

    Raises:
        ValueError: The row of tokens that the texts lack is missing, or an id is too large.
    """
    # On the CPU even while the model is built on meta tensors.
    by_id = {int(row[0]): torch.tensor(row[1:], dtype=torch.float64, device="cpu") for row in rows}
    if -1 not in by_id or max(by_id) >= vocab:
        raise ValueError(f"rates by token need a row -1 and ids below {vocab}")
    table = by_id.pop(-1)[:, None].repeat(1, vocab)
    for number, rates in by_id.items():
        table[:, number] = rates
    return table
