"""Time of one FFN and of a training step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from methods.core.model.backbone import attention, count, decoder, ffn, layers
from methods.core.model.families import logits_of
from methods.core.model.shapes import ATTENTION, FFN
from methods.core.routing.decisions import Decision
from methods.core.routing.layer import add_ffn
from methods.core.routing.routed import router_of
from methods.core.routing.router import Context, Router
from methods.core.routing.steering import squared_use
from methods.core.seeds import generator
from methods.core.training.documents import packed_attention
from methods.core.training.lora import add_lora
from methods.core.training.losses import lm_loss_sum
from workflows.timing.bounds import DecoderSizes, training_flops
from workflows.timing.cases import Case
from workflows.timing.clock import time_in_turn, time_ratio
from workflows.timing.meters import peak_memory

Timing = dict[str, Any]
# Documents of equal length on every row of a training step.
DOCUMENTS = 4


def shape_of(model: PreTrainedModel) -> DecoderSizes:
    """Sizes of a model, in parameters, from which bounds are computed."""
    router = router_of(model)
    first = layers(model)[0]
    routed = adapter = own = 0
    if router is not None:
        routed = len({unit.layer for unit in router.units})
        adapters = count(*router.alternatives())
        adapter = adapters // routed
        # A shared router runs whole in every routed layer, any other only that layer's part.
        own = (count(router) - adapters) // (1 if router.shared else routed)
    head = model.lm_head
    assert isinstance(head, nn.Module)
    return DecoderSizes(
        width=int(model.config.hidden_size),
        layers=len(layers(model)),
        attention=count(attention(first)),
        ffn=count(ffn(first)),
        head=count(head),
        routed=routed,
        adapter=adapter,
        router=own,
    )


def forced_decisions(router: Router, rows: int, length: int, rate: float, device: str) -> Tensor:
    """Decisions (B, U, T): False, with probability ``rate``, skips a unit.

    The number of units that a token skips differs by one at most, so that all steps have the same
    work.
    """
    units, rng = len(router.units), generator(0, f"gates {rate}")
    order = torch.rand(rows, units, length, generator=rng).argsort(dim=1).argsort(dim=1)
    start = torch.rand(rows, 1, length, generator=rng)
    return (order + start >= rate * units).to(device)


@dataclass(frozen=True)
class Bench:
    """How to measure: device, number of timed calls, number of calls before these."""

    device: str
    rounds: int
    warmup: int

    @property
    def turns(self) -> int:
        """Calls of each function in one comparison."""
        return self.rounds + self.warmup

    def time(self, *functions: Callable[[], Any]) -> list[list[float]]:
        """Seconds of each timed call of some functions, called in turn."""
        return time_in_turn(functions, self.rounds, self.warmup, self.device)


def time_ffn(routed: PreTrainedModel, rate: float, bench: Bench) -> list[Timing]:
    """Time one FFN with its adapter over the FFN alone, without the router, on 2,048 tokens.

    Both add the update to the residual stream, as a layer does; kernels run where they can.
    """
    router = router_of(routed)
    assert router is not None
    alternative = router.alternative(0)
    trained = list(alternative.parameters()) if isinstance(alternative, nn.Module) else []
    dense = ffn(layers(routed)[router.units[0].layer])
    rows = torch.randn(1, 2048, routed.config.hidden_size, device=bench.device).to(routed.dtype)
    execute = forced_decisions(router, 1, 2048, rate, bench.device)[:, 0]
    sizes, real = shape_of(routed), 1 - float(execute.float().mean())
    bound = ((1 - real) * sizes.ffn + real * sizes.adapter) / sizes.ffn
    lines = []
    for backward in (False, True):
        leaf = rows.clone().requires_grad_(backward)
        routed_time, dense_time = bench.time(
            partial(
                _ffn_step,
                lambda x: add_ffn(x, x, Decision(execute), dense, alternative, False),
                leaf,
                trained,
            ),
            partial(_ffn_step, lambda x: x + dense(x), leaf, trained),
        )
        case = "forward, backward" if backward else "forward"
        times = time_ratio(routed_time, dense_time, bound=bound)
        lines.append({"mode": "block", "case": case, "bypass": real, **times})
    return lines


def time_training(
    routed: PreTrainedModel,
    case: Case,
    rate: float,
    recompute: bool,
    bench: Bench,
    ffns: bool = False,
) -> Timing:
    """Time a training step (forward, backward) over one of LoRA on the same backbone.

    Args:
        routed: The row; LoRA uses its backbone's weights.
        case: Sequences, tokens per sequence.
        rate: Share of the units that is skipped, forced.
        recompute: Whether layers run again in the backward pass.
        bench: Device and rounds.
        ffns: True: LoRA is only on the FFNs of the routed layers, so gradients go back through the
            same layers in both. False: LoRA is on every linear layer.
    """
    sequences, length = case
    router = router_of(routed)
    assert router is not None
    everywhere = range(len(layers(routed)))
    adapted = sorted({unit.layer for unit in router.units}) if ffns else everywhere
    lora = _with_lora(routed, FFN if ffns else (*ATTENTION, *FFN), adapted)
    trained = sum(p.numel() for p in lora.parameters() if p.requires_grad)
    ids = _ids(routed, sequences, length, bench.device)
    decisions = forced_decisions(router, sequences, length, rate, bench.device)
    extra, real = {"forced": decisions}, 1 - float(decisions.float().mean())
    if recompute:
        lora.gradient_checkpointing_enable({"use_reentrant": False})
        # transformers also computes gradients of the embeddings, which LoRA does not need.
        lora.disable_input_require_grads()
    routed.model.checkpointing = recompute
    routed.train()
    steps = partial(_training_step, routed, ids, extra), partial(_training_step, lora, ids, {})
    try:
        seconds = bench.time(*steps)
        memory = peak_memory(_each_without_gradients(steps, (routed, lora)))
    finally:
        routed.model.checkpointing = False
        routed.zero_grad(set_to_none=True)
        routed.eval()
    reached = len(everywhere) - adapted[0]
    each = _document_length(length)
    work = [
        training_flops(shape_of(routed), each, real, 0, recompute),
        training_flops(_dense_shape(routed), each, 0.0, trained, recompute, reached),
    ]
    times = time_ratio(*seconds, bound=work[0] / work[1])
    line = {
        "mode": "training-ffn" if ffns else "training",
        "case": f"{sequences}x{length}" + (" recomputed" if recompute else ""),
        "bypass": real,
        **times,
    }
    return line | {"tokens_per_second": ids.numel() / times["seconds"][50]} | memory


def time_update(row: PreTrainedModel, dense: PreTrainedModel, ids: Tensor, bench: Bench) -> Timing:
    """Time a training step (forward, backward) of a row over one of LoRA on every linear layer.

    Args:
        row: A model as loaded: the parameters that it trained require gradients. Its router decides
            as at the end of training, with noise if it samples.
        dense: Its backbone, which gets LoRA.
        ids: Texts (sequences, tokens), the same in every turn.
        bench: Device and rounds.
    """
    everywhere = range(len(layers(dense)))
    lora, routed = _with_lora(dense, (*ATTENTION, *FFN), everywhere), router_of(row) is not None

    def step() -> None:
        context = {"context": Context(generator=generator(0, "noise"))} if routed else {}
        _training_step(row, ids, context)

    trained = [(p, p.dtype) for p in row.parameters() if p.requires_grad]
    for parameter, _ in trained:
        # Loading cast adapters to the backbone's dtype.
        parameter.data = parameter.data.float()
    row.train()
    try:
        seconds = bench.time(step, partial(_training_step, lora, ids, {}))
    finally:
        row.zero_grad(set_to_none=True)
        row.eval()
        for parameter, dtype in trained:
            parameter.data = parameter.data.to(dtype)
    case = "x".join(map(str, ids.shape))
    return {"mode": "training", "case": case, "bypass": None, **time_ratio(*seconds, bound=None)}


def _with_lora(
    model: PreTrainedModel, projections: Sequence[str], adapted: Sequence[int]
) -> PreTrainedModel:
    """A model with LoRA on projections of some layers; it shares the backbone's weights."""
    config = model.config
    with torch.device("meta"):
        lora = AutoModelForCausalLM.from_config(config, dtype=model.dtype).train()
    shared = {name.replace(".base_layer", ""): part for name, part in model.state_dict().items()}
    lora.load_state_dict(shared, strict=False, assign=True)
    # Both have buffers that no file holds.
    lora.model.rotary_emb = decoder(model).rotary_emb
    lora.model.embed_tokens = decoder(model).embed_tokens
    rank = max(1, round(128 * config.hidden_size / 4096))
    return add_lora(lora, projections, adapted, rank, rank, 0)


def _ffn_step(
    function: Callable[[Tensor], Tensor], leaf: Tensor, trained: Sequence[Tensor]
) -> None:
    """Forward, and backward if ``leaf`` requires a gradient; no gradient is left."""
    with torch.set_grad_enabled(leaf.requires_grad):
        output = function(leaf)
    if leaf.requires_grad:
        output.sum().backward()
        for tensor in (leaf, *trained):
            tensor.grad = None


def _each_without_gradients(
    functions: Iterable[Callable[[], Any]], models: Sequence[PreTrainedModel]
) -> Iterator[Callable[[], Any]]:
    """The functions; before each one the models' gradients are freed."""
    for function in functions:
        for model in models:
            model.zero_grad(set_to_none=True)
        yield function


def _training_step(model: PreTrainedModel, ids: Tensor, extra: dict[str, Any]) -> None:
    """Forward and backward pass as the trainer runs them: packed rows, the loss of every token.

    The tokens of each row are ``DOCUMENTS`` documents; the mask is made again in every step. A
    routed model has a penalty of HeRo's form, so that every gate has a gradient.
    """
    model.zero_grad(set_to_none=True)
    positions = (torch.arange(ids.shape[1]) % _document_length(ids.shape[1])).expand(ids.shape)
    targets = ids[:, 1:].flatten()
    weights = torch.ones(len(targets), device=ids.device)
    with packed_attention(model, positions, ids.device) as apart:
        arguments = {"input_ids": ids, "position_ids": positions.to(ids.device)}
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            output = decoder(model)(use_cache=False, **arguments, **apart, **extra)
            states = output.last_hidden_state[:, :-1].flatten(0, 1)
            loss = lm_loss_sum(states, logits_of(model), targets, weights)
        loss = loss / len(targets)
        soft = getattr(output, "soft", None)
        if soft is not None:
            loss = loss + squared_use(soft, torch.ones_like(ids)) / ids.numel()
        loss.backward()


def _document_length(length: int) -> int:
    return math.ceil(length / DOCUMENTS)


def _dense_shape(model: PreTrainedModel) -> DecoderSizes:
    sizes = shape_of(model)
    return DecoderSizes(sizes.width, sizes.layers, sizes.attention, sizes.ffn, sizes.head)


def _ids(model: PreTrainedModel, sequences: int, length: int, device: str) -> Tensor:
    rng = generator(0, "ids")
    return torch.randint(model.config.vocab_size, (sequences, length), generator=rng).to(device)
