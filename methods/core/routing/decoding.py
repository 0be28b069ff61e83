"""Greedy decoding in which every step is the same work on the same addresses.

A static cache holds keys and values, buffers hold the token, its place and what it can see; a
routed model takes its decisions on the device. So a step asks the host for nothing, and on a GPU
the whole of it is one CUDA graph that is captured once and replayed. Elsewhere the same step runs
eagerly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache

from methods.core.model.backbone import attention_kinds
from methods.core.routing.caches import StaticEvictingCache
from methods.core.routing.routed import router_of

# Steps between two looks of the host at who has ended.
LOOKS = 16


class StaticDecoder:
    """Decodes one token of each sequence per step.

    Args:
        model: Dense, narrowed, shallower or routed causal LM in eval mode.
        sequences: B.
        capacity: Tokens that the cache holds per sequence, pads and new ones included.
        graph: Whether steps are a CUDA graph; None: where the model is on a GPU.
        forced: Whether steps take their decisions from ``gates`` in place of the router's.

    Raises:
        ValueError: Layers see a window shorter than ``capacity``, or a graph is asked for without
            a GPU.

    Attributes:
        token: The latest tokens (B, 1); a step reads it and puts the next there.
        logits: Of the latest step (B, V).
        gates: Decisions (B, U, 1), bool, where they are forced; else None.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sequences: int,
        capacity: int,
        graph: bool | None = None,
        forced: bool = False,
    ) -> None:
        on_gpu = model.device.type == "cuda"
        columns = columns_for(capacity, on_gpu)
        if "sliding_attention" in attention_kinds(model.config) and model.config.sliding_window:
            window = int(model.config.sliding_window)
            if window < capacity:
                raise ValueError(
                    f"layers see {window} tokens, fewer than the {capacity} to be decoded"
                )
            columns = min(columns, window)
        if graph and not on_gpu:
            raise ValueError(f"a CUDA graph needs a GPU; the model is on {model.device.type}")
        self.model, self.capacity = model, capacity
        self.captures = on_gpu if graph is None else graph
        device, router = model.device, router_of(model)
        self.cache = StaticCache(config=model.config, max_cache_len=columns)
        if router is not None and router.evicts:
            evicting = [unit.layer for unit in router.units if unit.kind == "evicting"]
            self.cache = StaticEvictingCache(model.config, columns, evicting)
        self.token = torch.zeros(sequences, 1, dtype=torch.int64, device=device)
        self.logits = torch.zeros(
            sequences, model.config.vocab_size, dtype=model.dtype, device=device
        )
        # Of the token: its position in the text, its column in the cache, and what attention adds
        # to its scores: 0 on the columns it sees, else -inf. Of a boolean mask each layer would
        # make its own.
        self._positions = torch.zeros_like(self.token)
        self._column = torch.zeros(1, dtype=torch.int64, device=device)
        self._mask = torch.zeros(sequences, 1, 1, columns, dtype=model.dtype, device=device)
        self.gates: Tensor | None = None
        if forced and router is not None:
            shape = (sequences, len(router.units), 1)
            self.gates = torch.ones(shape, dtype=torch.bool, device=device)
        self._extra: dict[str, Any] = {} if router is None else {"static": True}
        if self.gates is not None:
            self._extra["gates"] = self.gates
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def prefill(self, ids: Tensor, mask: Tensor | None = None, **extra: Any) -> None:
        """Start anew behind prompts; ``token`` is then the first new one.

        Args:
            ids: Prompts (B, T), padded on the left.
            mask: 1 on tokens, 0 on pads (B, T); None: no pads.
            extra: Further arguments of the model's call, such as ``gates`` (B, U, T).

        Raises:
            ValueError: The prompts are longer than the cache.
        """
        length = ids.shape[1]
        if length >= self.capacity:
            raise ValueError(f"prompts of {length} tokens leave no room in {self.capacity}")
        self.cache.reset()
        self._mask.fill_(-math.inf)
        self._mask[..., :length] = 0
        self._positions.fill_(length)
        if mask is not None:
            self._mask[..., :length].masked_fill_(~mask.bool()[:, None, None], -math.inf)
            self._positions.copy_(mask.bool().sum(dim=1, keepdim=True))
            extra["position_ids"] = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
        evicting = self.cache if isinstance(self.cache, StaticEvictingCache) else None
        output = self.model(
            ids, attention_mask=mask, use_cache=True, logits_to_keep=1,
            past_key_values=self.cache if evicting is None else None, **extra,
        )  # fmt: skip
        if evicting is not None:
            evicting.take(output.past_key_values)
        self._column.fill_(length)
        self._take(output.logits)

    def step(self) -> None:
        """Feed ``token``; ``logits`` and ``token`` are those behind it.

        Nothing checks the room: at most ``capacity`` minus the length of the prompts steps.
        """
        if not self.captures:
            self._step()
            return
        if self._graph is None:
            with torch.cuda.device(self.model.device):
                self._graph = self._captured()
        self._graph.replay()

    def mark(self) -> Callable[[], None]:
        """What takes back every step from here on; the next one writes over what they stored."""
        carried = [self.token, self.logits, self._positions, self._column, self._mask]
        # What the layers of the cache count their columns by, on the device.
        layers: list[Any] = self.cache.layers
        carried += [layer.cumulative_length for layer in layers]
        kept = [tensor.clone() for tensor in carried]

        def back() -> None:
            for tensor, value in zip(carried, kept, strict=True):
                tensor.copy_(value)

        return back

    @torch.no_grad()
    def _step(self) -> None:
        self._mask.index_fill_(-1, self._column, 0)
        output = self.model(
            self.token, attention_mask=self._mask, position_ids=self._positions,
            past_key_values=self.cache, use_cache=True, **self._extra,
        )  # fmt: skip
        self._column.add_(1)
        self._positions.add_(1)
        self._take(output.logits)

    def _take(self, logits: Tensor) -> None:
        self.logits.copy_(logits[:, -1])
        self.token.copy_(self.logits.argmax(dim=-1, keepdim=True))

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The step as a graph; trial runs before it leave no trace."""
        back = self.mark()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step()
                back()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        back()
        return graph


def columns_for(capacity: int, on_gpu: bool) -> int:
    """Columns of a cache for so many tokens: on a GPU attention copies masks of other widths."""
    return capacity + -capacity % 8 if on_gpu else capacity


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    ids: Tensor,
    mask: Tensor | None = None,
    new_tokens: int = 128,
    graph: bool | None = None,
) -> Tensor:
    """The tokens of ``model.generate(ids, attention_mask=mask, do_sample=False)``, step by step.

    Settings of the model's ``generation_config`` other than its end and pad tokens do not enter.

    Args:
        model: As in :class:`StaticDecoder`.
        ids: Prompts (B, T), padded on the left.
        mask: 1 on tokens, 0 on pads (B, T); None: no pads.
        new_tokens: At most so many are added.
        graph: As in :class:`StaticDecoder`.

    Returns:
        Prompts and what follows (B, T + n); behind its end token a sequence is padded.
    """
    if new_tokens < 1:
        raise ValueError(f"new_tokens is {new_tokens}, must be positive")
    decoder = StaticDecoder(model, len(ids), ids.shape[1] + new_tokens, graph)
    ends = _ends(model)
    stops = torch.tensor(ends, dtype=torch.int64, device=ids.device)
    settings = model.generation_config.pad_token_id
    pad = settings if settings is not None else (ends[0] if ends else 0)
    decoder.prefill(ids, mask)
    ended = torch.zeros_like(decoder.token, dtype=torch.bool)
    found = list[Tensor]()
    for number in range(new_tokens):
        if number > 0:
            decoder.step()
        decoder.token.masked_fill_(ended, pad)
        found.append(decoder.token.clone())
        ended |= torch.isin(decoder.token, stops)
        if number % LOOKS == LOOKS - 1 and bool(ended.all()):
            break
    new = torch.cat(found, dim=1)
    # The host looked late: as many columns as the longest sequence has tokens.
    after = torch.isin(new, stops).cumsum(dim=1) - torch.isin(new, stops).long()
    return torch.cat([ids, new[:, : int((after == 0).sum(dim=1).max())]], dim=1)


def _ends(model: PreTrainedModel) -> Sequence[int]:
    ends = model.generation_config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [int(ends)]
