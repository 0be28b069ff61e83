"""The work of a model for some tokens, counted from its modules and its decisions.

The bound of a measured ratio is the work of a row over the work of the dense model. For a prompt,
work is the number of operations; for a decoding step, the number of bytes that are read. The bound
is one of work, not of the clock: a row can beat it where dense's operations run worse than its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel, StaticLayer

from methods.core.model.backbone import attention, count, layers
from methods.core.model.ledger import Ledger
from methods.core.routing.routed import router_of
from methods.core.seeds import generator

# Number of batches that are drawn from a trace to predict how many weights a decoding step reads.
DRAWS = 200


@dataclass(frozen=True)
class Work:
    """Sizes of one model, in parameters, from which its work follows.

    Args:
        ledger: Of the model.
        always: Parameters that run for every token if no unit is skipped, without the head.
        again: Parameters of a shared router, counted once for each routed layer but the first: it
            runs once per layer.
        head: The output matrix.
        widths: Width of the queries of each layer.
    """

    ledger: Ledger
    always: int
    again: int
    head: int
    widths: tuple[int, ...]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Work:
        """Of a dense, narrowed, shallower or routed causal LM."""
        ledger = Ledger.of(model, total=1, dense_layers=0)
        heads: list[Any] = [attention(layer) for layer in layers(model)]
        whole: Any = model
        head, embeddings = whole.lm_head.weight, whole.model.embed_tokens.weight
        always = ledger.resident + ledger.always - head.numel()
        if head is not embeddings:
            always -= embeddings.numel()
        # A layer whose attention was removed has no o_proj.
        widths = tuple(h.o_proj.in_features if hasattr(h, "o_proj") else 0 for h in heads)
        router = router_of(model)
        shared = 0
        if router is not None and router.shared:
            runs = len({unit.layer for unit in router.units})
            shared = (runs - 1) * (count(router) - sum(ledger.instead))
        return cls(ledger, always, shared, head.numel(), widths)

    def saved(self, skipped: Tensor, instead: Tensor) -> float:
        """Parameters that do not run.

        Args:
            skipped: Share of the tokens, or steps, that skip each unit (U,).
            instead: Share for which its alternative runs (U,).
        """
        sizes = torch.from_numpy(self.ledger.sizes)
        adapters = torch.tensor(self.ledger.instead, dtype=torch.float64)
        return float(skipped.double() @ sizes - instead.double() @ adapters)

    def prompt_flops(self, executed: Tensor | None, sequences: int, length: int) -> float:
        """Operations of a prompt pass with logits of the last token only.

        Args:
            executed: Decisions (B, U, T), bool; None if no unit is routed.
            sequences: B.
            length: T.
        """
        tokens = sequences * length
        per_token = float(self.always + self.again)
        shares = self.attention_shares(None if executed is None else executed.transpose(1, 2))
        if executed is not None:
            per_token -= self.saved(*prompt_rates(executed))
        widths = sum(width * share for width, share in zip(self.widths, shares, strict=True))
        return 2 * tokens * (per_token + length * widths) + 2 * sequences * self.head

    def attention_shares(self, executed: Tensor | None) -> list[float]:
        """Share of the tokens for which the attention of each layer runs.

        Args:
            executed: Decisions (..., U), bool; None if no unit is routed.
        """
        shares = [1.0] * len(self.widths)
        for number, unit in enumerate(self.ledger.units):
            if executed is not None and unit.kind != "ffn":
                shares[unit.layer] = float(executed[..., number].double().mean())
        return shares

    def step_bytes(self, executed: Tensor | None, cache: Cache, number_bytes: int) -> float:
        """Bytes read in a decoding step, mean over steps.

        Args:
            executed: Decisions (S, B, U), bool, of S steps; None if no unit is routed.
            cache: Keys and values.
            number_bytes: Bytes of one number.
        """
        return number_bytes * (self.step_weights(executed) + self.cache_numbers(executed, cache))

    def cache_numbers(self, executed: Tensor | None, cache: Cache) -> float:
        """Keys and values read in a decoding step, mean over steps; see :meth:`step_bytes`."""
        shares = zip(cache.layers, self.attention_shares(executed), strict=True)
        return sum(share * _numbers(layer) for layer, share in shares)

    def step_weights(self, executed: Tensor | None) -> float:
        """Parameters read in a decoding step, mean over steps.

        A unit's matrices are read if at least one sequence of the batch runs the unit. A shared
        router is read once per step, because it is small enough to stay in the processor's cache.

        Args:
            executed: Decisions (S, B, U), bool, of S steps; None if no unit is routed.
        """
        whole = float(self.always + self.head)
        if executed is None:
            return whole
        return whole - self.saved(*step_rates(executed))

    def predicted_weights(self, executed: Tensor, sequences: int) -> float:
        """:meth:`step_weights` of batches that are drawn from a trace of single tokens.

        Args:
            executed: Decisions about N tokens of any texts (N, U), bool.
            sequences: Batch size; tokens are drawn with replacement.
        """
        rng = generator(0, f"batches of {sequences}")
        tokens = torch.randint(len(executed), (DRAWS, sequences), generator=rng)
        return self.step_weights(executed.cpu()[tokens])


def prompt_rates(executed: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of the tokens that skip each unit and that take its alternative, both (U,).

    Args:
        executed: Decisions (B, U, T), bool.
    """
    rates = 1 - executed.double().mean(dim=(0, 2)).cpu()
    return rates, rates


def step_rates(executed: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of the steps that do not read each unit and that read its alternative, both (U,).

    Args:
        executed: Decisions (S, B, U), bool, of S steps.
    """
    unread = (~executed.any(dim=1)).double().mean(dim=0).cpu()
    instead = (~executed).any(dim=1).double().mean(dim=0).cpu()
    return unread, instead


def _numbers(layer: Any) -> float:
    """How many numbers a layer of a cache has in its keys and values."""
    if layer.keys is None:
        return 0.0
    numbers = float(layer.keys.numel() + layer.values.numel())
    if isinstance(layer, StaticLayer):
        # A static cache has its full size from the start, and only a part of it is in use.
        numbers *= float(layer.cumulative_length.double().mean()) / layer.max_cache_len
    return numbers
