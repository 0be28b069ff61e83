"""What a model must do for given tokens, counted from its modules and its decisions.

The bound of a measured ratio is the work of a row over that of the dense model: multiplications for
a prompt, bytes that must be read for a new token. A row can be no faster than its bound.
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

# Batches that are drawn from a trace to predict how many weights a decode step reads.
DRAWS = 200


@dataclass(frozen=True)
class Work:
    """Sizes behind the work of one model, in parameters.

    Args:
        ledger: Of the model.
        always: What every token needs, the head left out, were no unit skipped.
        again: What it multiplies once more for every further unit: a router that units share.
        head: The output matrix.
        widths: Of the queries of each layer.
    """

    ledger: Ledger
    always: int
    again: int
    head: int
    widths: tuple[int, ...]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Work:
        """Of a dense, narrowed, shallower or routed causal LM."""
        book = Ledger.of(model, total=1, dense_layers=0)
        heads: list[Any] = [attention(layer) for layer in layers(model)]
        whole: Any = model
        head, looked_up = whole.lm_head.weight, whole.model.embed_tokens.weight
        always = book.resident + book.always - head.numel()
        if head is not looked_up:
            always -= looked_up.numel()
        # A layer may have lost its attention.
        widths = tuple(h.o_proj.in_features if hasattr(h, "o_proj") else 0 for h in heads)
        router = router_of(model)
        shared = 0
        if router is not None and router.shared:
            shared = (len(router.units) - 1) * (count(router) - sum(book.instead))
        return cls(book, always, shared, head.numel(), widths)

    def saved(self, skipped: Tensor, instead: Tensor) -> float:
        """Parameters left out, given how much each unit is skipped and its branch runs (U,)."""
        sizes = torch.from_numpy(self.ledger.sizes)
        adapters = torch.tensor(self.ledger.instead, dtype=torch.float64)
        return float(skipped.double() @ sizes - instead.double() @ adapters)

    def prompt_flops(self, executed: Tensor | None, sequences: int, length: int) -> float:
        """Operations of a prompt pass with logits of the last token only.

        Args:
            executed: Decisions (B, U, T), bool; None where no unit is routed.
            sequences: B.
            length: T.
        """
        tokens = sequences * length
        per_token = float(self.always + self.again)
        reading = self.reading(None if executed is None else executed.transpose(1, 2))
        if executed is not None:
            rates = 1 - executed.double().mean(dim=(0, 2)).cpu()
            per_token -= self.saved(rates, rates)
        widths = sum(width * share for width, share in zip(self.widths, reading, strict=True))
        return 2 * tokens * (per_token + length * widths) + 2 * sequences * self.head

    def reading(self, executed: Tensor | None) -> list[float]:
        """Share of the tokens that read in the attention of each layer.

        Args:
            executed: Decisions (..., U), bool; None where no unit is routed.
        """
        shares = [1.0] * len(self.widths)
        for number, unit in enumerate(self.ledger.units):
            if executed is not None and unit.kind != "ffn":
                shares[unit.layer] = float(executed[..., number].double().mean())
        return shares

    def step_bytes(self, executed: Tensor | None, cache: Cache, number_bytes: int) -> float:
        """Bytes read in a decode step, mean over steps.

        Args:
            executed: Decisions (S, B, U), bool, of S steps; None where no unit is routed.
            cache: Keys and values.
            number_bytes: Of one number.
        """
        read = zip(cache.layers, self.reading(executed), strict=True)
        held = sum(share * _numbers(layer) for layer, share in read)
        return number_bytes * (self.step_weights(executed) + held)

    def step_weights(self, executed: Tensor | None) -> float:
        """Parameters read in a decode step, mean over steps.

        A unit's matrices are read when one sequence of the batch needs them; a shared router once,
        being small enough to stay near the processor.

        Args:
            executed: Decisions (S, B, U), bool, of S steps; None where no unit is routed.
        """
        whole = float(self.always + self.head)
        if executed is None:
            return whole
        unread = (~executed.any(dim=1)).double().mean(dim=0).cpu()
        instead = (~executed).any(dim=1).double().mean(dim=0).cpu()
        return whole - self.saved(unread, instead)

    def predicted_weights(self, executed: Tensor | None, sequences: int) -> float:
        """The same of batches drawn from a trace of single tokens.

        Args:
            executed: Trace (N, U), bool, N tokens of any texts.
            sequences: Tokens of a batch, drawn with replacement.
        """
        if executed is None:
            return self.step_weights(None)
        rng = generator(0, f"batches of {sequences}")
        chosen = torch.randint(len(executed), (DRAWS, sequences), generator=rng)
        return self.step_weights(executed.cpu()[chosen])


def _numbers(layer: Any) -> float:
    """Keys and values that a layer of a cache holds."""
    if layer.keys is None:
        return 0.0
    held = float(layer.keys.numel() + layer.values.numel())
    if isinstance(layer, StaticLayer):
        held *= float(layer.cumulative_length.double().mean()) / layer.max_cache_len
    return held
