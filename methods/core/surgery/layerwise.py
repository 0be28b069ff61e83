"""Inputs and outputs of the parts of a model, and gradients layer by layer.

A usual backward pass holds the gradients of all weights and the activations of all layers in
memory. Here the forward pass stores only the inputs of each layer. Then, from the last layer to the
first, each batch runs through the layer again, forward and backward. The gradients are the same as
those of one backward pass over all documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from methods.core.data import Batch
from methods.core.model.backbone import decoder, layers, projection_weights
from methods.core.training.losses import next_token_loss


class LayerGradients(NamedTuple):
    """Gradients of the weights of one layer, by name; float32.

    ``first``: gradients of the mean loss over all predictions of all batches; or, with
    ``by_batch``, the sum over batches of the gradients of their own mean losses. ``squares``: mean
    over batches of the squared gradients of their own mean losses; empty unless asked for.
    """

    layer: int
    first: dict[str, Tensor]
    squares: dict[str, Tensor]


class Call(NamedTuple):
    """The arguments of a layer for a batch: hidden states (B, T, D) and keyword arguments."""

    hidden: Tensor
    options: dict[str, Any]


def gradient_reason(model: PreTrainedModel) -> str | None:
    """Why gradients of a model say nothing, or None."""
    if model.dtype is torch.float16:
        return "gradients underflow in float16, load the backbone in bfloat16 or float32"
    return None


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
        span: The layers, within 0 to L - 1.
        squared: Whether to compute ``squares``; with one document per batch they are the diagonal
            of the empirical Fisher matrix.
        weights_of: Gives the weights of a layer whose gradients are computed.
        by_batch: Whether ``first`` is the sum over batches; see :class:`LayerGradients`.

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
    """Number of tokens that each batch predicts: all real tokens except each document's first.

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
    """Run every batch and record the calls of layers.

    Args:
        model: Causal LM.
        batches: Right-padded documents.
        first: The first layer whose calls are recorded.

    Returns:
        For each layer from ``first`` on, one call per batch; and for each batch the output of the
        last layer (B, T, D), before the final norm.
    """
    stack = layers(model)[first:]
    calls: list[list[Call]] = [[] for _ in stack]
    ends: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(
            # The default binds the list of this layer; a plain name would be that of the last one.
            lambda _, inputs, options, record=record: record.append(Call(inputs[0], options)),
            with_kwargs=True,
        )
        for layer, record in zip(stack, calls, strict=True)
    ]
    hooks.append(stack[-1].register_forward_hook(lambda _, __, output: ends.append(output)))
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            for batch in batches:
                # No mask: in a causal model no real token reads the pads on its right.
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
    """Run a batch through the decoder and show the inputs and outputs of modules.

    Args:
        model: Causal LM.
        batch: Right-padded documents.
        modules: Modules that run once per pass, from one tensor (B, T, in) to one (B, T, out).
        see: Called after each module has run, with the module's place in ``modules``, its input
            (n, in) and its output (n, out) at the n real tokens, document by document.
    """
    device = next(model.parameters()).device
    valid = batch.valid.to(device)

    def watch(number: int, module: nn.Module) -> RemovableHandle:
        return module.register_forward_hook(
            lambda _, inputs, output: see(number, inputs[0][valid], output[valid])
        )

    hooks = [watch(number, module) for number, module in enumerate(modules)]
    try:
        # No mask: in a causal model no real token reads the pads on its right.
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
    """Gradients for the input of a layer and for its weights, from that for its output."""
    hidden = call.hidden.detach().requires_grad_()
    output = layer(hidden, **call.options)
    below, *gradients = torch.autograd.grad(output, [hidden, *weights.values()], upstream)
    return below, dict(zip(weights, gradients, strict=True))


def _accumulate(
    result: LayerGradients, gradients: dict[str, Tensor], share: float, batches: int
) -> None:
    """Add the gradients of one batch, in float32 for weights of any dtype."""
    for name, gradient in gradients.items():
        exact = gradient.float()
        result.first[name].add_(exact, alpha=share)
        if result.squares:
            result.squares[name].addcmul_(exact, exact, value=1 / batches)
