"""What passes through the parts of a model, and gradients, one layer of them in memory at a time.

A backward pass over a whole model holds a gradient for every weight, and the activations of every
layer. Here the forward pass keeps only what enters each layer; then layer by layer, the last one
first, each batch runs through the layer once more and back. The gradients are those of one backward
pass over all documents together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from methods.core.data import Batch
from methods.core.model.backbone import decoder, layers, projection_weights
from methods.core.training.losses import next_token_loss


class LayerGradients(NamedTuple):
    """Gradients of the weights of one layer, by name; float32.

    ``first``: of the loss averaged over all predictions of all batches, or the sum over batches of
    the gradient of each batch's own mean loss. ``squares``: the mean over batches of the square of
    the latter; empty unless asked for.
    """

    layer: int
    first: dict[str, Tensor]
    squares: dict[str, Tensor]


class Call(NamedTuple):
    """How a layer was called for a batch: hidden states (B, T, D) and the keyword arguments."""

    hidden: Tensor
    options: dict[str, Any]


def layer_gradients(
    model: nn.Module,
    batches: Sequence[Batch],
    span: range,
    squared: bool = False,
    weights_of: Callable[[nn.Module], dict[str, nn.Parameter]] = projection_weights,
    by_batch: bool = False,
) -> Iterator[LayerGradients]:
    """Gradients of the mean next-token loss over all real tokens, layer by layer.

    Args:
        model: Causal LM with L layers; its weights stay as they are.
        batches: Right-padded; pads neither predict nor are predicted.
        span: Layers that are asked for, within 0 to L - 1.
        squared: Whether ``squares`` are wanted; with one document per batch they are the diagonal
            of the empirical Fisher matrix.
        weights_of: The weights of a layer that are asked for.
        by_batch: Whether ``first`` sums the gradients of the batches' own mean losses.

    Yields:
        The layers of ``span``, the last one first.

    Raises:
        ValueError: No document has a token to predict.
    """
    predictions = predicted_tokens(batches)
    shares = [1.0 if by_batch else count / sum(predictions) for count in predictions]
    calls, upstream = layer_calls(model, batches, span.start)
    upstream = [_loss_gradient(model, *pair) for pair in zip(upstream, batches, strict=True)]
    for index in reversed(range(span.start, len(layers(model)))):
        layer = layers(model)[index]
        weights = weights_of(layer) if index in span else {}
        result = LayerGradients(index, _zeros(weights), _zeros(weights) if squared else {})
        for number, call in enumerate(calls.pop()):
            upstream[number], gradients = _backward(layer, call, weights, upstream[number])
            _accumulate(result, gradients, shares[number], len(batches))
        if index in span:
            yield result


def predicted_tokens(batches: Sequence[Batch]) -> list[int]:
    """Tokens that each batch predicts: all real ones but the first of every document.

    Raises:
        ValueError: No document has a token to predict.
    """
    counts = [int(batch.valid[:, 1:].sum()) for batch in batches]
    if not sum(counts):
        raise ValueError(
            "the calibration documents have no token to predict: all are shorter than 2"
        )
    return counts


def _zeros(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: torch.zeros_like(w, dtype=torch.float32) for n, w in weights.items()}


def layer_calls(
    model: nn.Module, batches: Sequence[Batch], first: int = 0
) -> tuple[list[list[Call]], list[Tensor]]:
    """Run every batch and keep how layers were called.

    Args:
        model: Causal LM.
        batches: Right-padded documents.
        first: Lowest layer whose calls are kept.

    Returns:
        For each layer from ``first`` on one call per batch, and per batch what the last layer
        returned (B, T, D), before the final norm.
    """
    stack = layers(model)[first:]
    calls: list[list[Call]] = [[] for _ in stack]
    ends: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, given, options, kept=kept: kept.append(Call(given[0], options)),
            with_kwargs=True,
        )
        for layer, kept in zip(stack, calls, strict=True)
    ]
    hooks.append(stack[-1].register_forward_hook(lambda _, __, output: ends.append(output)))
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            for batch in batches:
                # Right padding leaves real tokens untouched in a causal model.
                decoder(model)(input_ids=batch.ids.to(device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return calls, ends


@torch.no_grad()
def observe(
    model: nn.Module,
    batch: Batch,
    modules: Iterable[nn.Module],
    see: Callable[[int, Tensor, Tensor], None],
) -> None:
    """Run a batch through the decoder and show what modules read and make of its real tokens.

    Args:
        model: Causal LM.
        batch: Right-padded documents.
        modules: Called once per pass with one tensor (B, T, in), returning one (B, T, out).
        see: Called as each module has run, with its place in ``modules`` and with its input
            (n, in) and output (n, out) at the n real tokens, document by document.
    """
    device = next(model.parameters()).device
    valid = batch.valid.to(device)

    def watch(number: int, module: nn.Module) -> RemovableHandle:
        return module.register_forward_hook(
            lambda _, given, made: see(number, given[0][valid], made[valid])
        )

    hooks = [watch(number, module) for number, module in enumerate(modules)]
    try:
        # Right padding leaves real tokens untouched in a causal model.
        decoder(model)(input_ids=batch.ids.to(device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()


@torch.enable_grad()
def _loss_gradient(model: nn.Module, end: Tensor, batch: Batch) -> Tensor:
    """Gradient (B, T, D) of a batch's mean loss for the output ``end`` of the last layer."""
    end = end.detach().requires_grad_()
    loss, tokens = next_token_loss(model, end, batch)
    return torch.autograd.grad(loss / max(1, tokens), end)[0]


@torch.enable_grad()
def _backward(
    layer: nn.Module, call: Call, weights: Mapping[str, Tensor], upstream: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Gradients for the input of a layer and for ``weights``, given the one for its output."""
    hidden = call.hidden.detach().requires_grad_()
    output = layer(hidden, **call.options)
    below, *gradients = torch.autograd.grad(output, [hidden, *weights.values()], upstream)
    return below, dict(zip(weights, gradients, strict=True))


def _accumulate(
    result: LayerGradients, gradients: dict[str, Tensor], share: float, batches: int
) -> None:
    """Add one batch, in float32 whatever the weights are."""
    for name, gradient in gradients.items():
        exact = gradient.float()
        result.first[name].add_(exact, alpha=share)
        if result.squares:
            result.squares[name].addcmul_(exact, exact, value=1 / batches)
