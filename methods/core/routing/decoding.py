"""Greedy decoding in which every step does the same work on the same addresses.

Keys and values are in a static cache. The token, its place and its mask are in fixed buffers. A
routed model decides on the device. So a step needs nothing from the host, and on a GPU it is one
CUDA graph, which is captured once and replayed. Elsewhere the same step runs eagerly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache, StaticLayer, StaticSlidingWindowLayer

from methods.core.model.backbone import attention_kinds
from methods.core.routing.caches import StaticEvictingCache
from methods.core.routing.flash import IMPLEMENTATION, Columns, attention_by, takes
from methods.core.routing.routed import router_of

# Steps after which the host looks whether all sequences have ended.
LOOKS = 16


class StaticDecoder:
    """Decodes one token of each sequence per step.

    Args:
        model: Dense, narrowed, shallower or routed causal LM in eval mode.
        sequences: B.
        capacity: Tokens that the cache holds per sequence, pads and new ones included.
        graph: Whether steps are a CUDA graph; None: if the model is on a GPU.
        forced: Whether decisions of steps come from ``decisions``, not from the router.

    Raises:
        ValueError: Layers have an attention window shorter than ``capacity``, or a graph is asked
            for without a GPU.

    Attributes:
        token: The latest tokens (B, 1); a step reads them and writes the next ones.
        logits: Of the latest step (B, V).
        decisions: Forced decisions (B, U, 1), bool; None where the router decides.
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
        if graph and not on_gpu:
            raise ValueError(f"a CUDA graph needs a GPU; the model is on {model.device.type}")
        self.model, self.capacity = model, capacity
        self.captures = on_gpu if graph is None else graph
        device, router = model.device, router_of(model)
        self.cache = StaticCache(config=model.config, max_cache_len=columns)
        if router is not None and router.evicts:
            evicting = [unit.layer for unit in router.units if unit.kind == "evicting"]
            self.cache = StaticEvictingCache(model.config, columns, evicting)
        # No token leaves a window of the room's length. A layer that slides would count on the
        # host, where neither a graph nor mark() reaches it.
        for number, layer in enumerate(self.cache.layers):
            if isinstance(layer, StaticSlidingWindowLayer):
                self.cache.layers[number] = StaticLayer(columns)
        self.token = torch.zeros(sequences, 1, dtype=torch.int64, device=device)
        self.logits = torch.zeros(
            sequences, model.config.vocab_size, dtype=model.dtype, device=device
        )
        # Of the token: its position in the text, its column in the cache, and its mask, which is 0
        # on the columns that it reads, else -inf. From a boolean mask each layer would make such a
        # mask again.
        self._positions = torch.zeros_like(self.token)
        self._column = torch.zeros(1, dtype=torch.int64, device=device)
        self._mask = torch.zeros(sequences, 1, 1, columns, dtype=model.dtype, device=device)
        self.decisions: Tensor | None = None
        if forced and router is not None:
            shape = (sequences, len(router.units), 1)
            self.decisions = torch.ones(shape, dtype=torch.bool, device=device)
        self._extra: dict[str, Any] = {} if router is None else {"capturable": True}
        if self.decisions is not None:
            self._extra["forced"] = self.decisions
        # For flash attention, by number of key heads; empty where another attention runs.
        self._columns: dict[int, Columns] = {}
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def prefill(self, ids: Tensor, mask: Tensor | None = None, **extra: Any) -> None:
        """Start anew with prompts; ``token`` is then the first new token.

        Args:
            ids: Prompts (B, T), padded on the left.
            mask: 1 on tokens, 0 on pads (B, T); None: no pads.
            extra: Further arguments of the model's call, such as ``forced`` (B, U, T).

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
        self._point_at_columns(length - self._positions[:, 0], length)
        self._take(output.logits)

    def step(self) -> None:
        """Run the model on ``token``; then ``logits`` and ``token`` are the next ones.

        The room in the cache is not checked: take at most ``capacity`` - length of the prompts
        steps.
        """
        if not self.captures:
            self._step()
            return
        if self._graph is None:
            with torch.cuda.device(self.model.device):
                self._graph = self._capture()
        self._graph.replay()

    def mark(self) -> Callable[[], None]:
        """A function that takes back all steps after this call.

        It leaves their keys and values in the cache; the next steps write over them.
        """
        buffers = [self.token, self.logits, self._positions, self._column, self._mask]
        # The numbers of columns in use, which the layers of the cache count on the device.
        layers: list[Any] = self.cache.layers
        buffers += [layer.cumulative_length for layer in layers]
        buffers += [columns.lengths for columns in self._columns.values()]
        copies = [tensor.clone() for tensor in buffers]

        def take_back() -> None:
            for tensor, value in zip(buffers, copies, strict=True):
                tensor.copy_(value)

        return take_back

    @torch.no_grad()
    def _step(self) -> None:
        self._mask.index_fill_(-1, self._column, 0)
        for columns in self._columns.values():
            columns.lengths.add_(1)
        flash = attention_by(self.model, IMPLEMENTATION) if self._columns else nullcontext()
        with flash:
            output = self.model(
                self.token, attention_mask=self._mask, position_ids=self._positions,
                past_key_values=self.cache, use_cache=True, **self._extra,
            )  # fmt: skip
        self._column.add_(1)
        self._positions.add_(1)
        self._take(output.logits)

    def _point_at_columns(self, first: Tensor, stored: int) -> None:
        """Tell flash attention what the prompts have stored; addresses stay.

        Args:
            first: Pads before each prompt (B,).
            stored: Columns, pads included.
        """
        layers: list[Any] = self.cache.layers
        # A layer whose attention is removed stores nothing.
        keys = [layer.keys for layer in layers if layer.is_initialized]
        widths = {key.shape[-1] for key in keys}
        if not takes(self.model, widths, self.model.dtype, self.model.device):
            return
        for heads in {key.shape[1] for key in keys}:
            new = Columns.of(first, stored, heads, keys[0].shape[2])
            for old, number in zip(self._columns.setdefault(heads, new), new, strict=True):
                old.copy_(number)
        self._extra["columns"] = self._columns

    def _take(self, logits: Tensor) -> None:
        self.logits.copy_(logits[:, -1])
        self.token.copy_(self.logits.argmax(dim=-1, keepdim=True))

    def _capture(self) -> torch.cuda.CUDAGraph:
        """The step as a graph; the trial runs before the capture are taken back."""
        take_back = self.mark()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step()
                take_back()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        take_back()
        return graph


def columns_for(capacity: int, on_gpu: bool) -> int:
    """Columns of a cache for ``capacity`` tokens; on a GPU a multiple of 8.

    There attention copies masks of other widths in every layer.
    """
    return capacity + -capacity % 8 if on_gpu else capacity


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    ids: Tensor,
    mask: Tensor | None = None,
    new_tokens: int = 128,
    graph: bool | None = None,
) -> Tensor:
    """The same tokens as ``model.generate(ids, attention_mask=mask, do_sample=False)``.

    Of the model's ``generation_config`` only the end tokens and the pad token are used.

    Args:
        model: As in :class:`StaticDecoder`.
        ids: Prompts (B, T), padded on the left.
        mask: 1 on tokens, 0 on pads (B, T); None: no pads.
        new_tokens: Most new tokens per sequence.
        graph: As in :class:`StaticDecoder`.

    Returns:
        Prompts and new tokens (B, T + n); after its end token a sequence is padded.
    """
    if new_tokens < 1:
        raise ValueError(f"new_tokens is {new_tokens}, must be positive")
    decoder = StaticDecoder(model, len(ids), ids.shape[1] + new_tokens, graph)
    ends = _ends(model)
    stops = torch.tensor(ends, dtype=torch.int64, device=ids.device)
    pad = model.generation_config.pad_token_id
    if pad is None:
        pad = ends[0] if ends else 0
    decoder.prefill(ids, mask)
    ended = torch.zeros_like(decoder.token, dtype=torch.bool)
    tokens = list[Tensor]()
    for number in range(new_tokens):
        if number > 0:
            decoder.step()
        decoder.token.masked_fill_(ended, pad)
        tokens.append(decoder.token.clone())
        ended |= torch.isin(decoder.token, stops)
        if number % LOOKS == LOOKS - 1 and bool(ended.all()):
            break
    new = torch.cat(tokens, dim=1)
    # The host may have looked late: cut to the longest sequence, which ends with its end token.
    ends_before = torch.isin(new, stops).cumsum(dim=1) - torch.isin(new, stops).long()
    return torch.cat([ids, new[:, : int((ends_before == 0).sum(dim=1).max())]], dim=1)


def _ends(model: PreTrainedModel) -> Sequence[int]:
    ends = model.generation_config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [int(ends)]
