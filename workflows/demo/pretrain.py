"""Training of a world's backbone: packing, the update and the loop.

Several short documents share a row. Each has its own positions, and the attention mask keeps them
apart. The optimizer is AdamW with a linear warm-up and a cosine decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from methods.core.training.snapshots import read_snapshot, write_snapshot
from workflows.demo.corpus import FIRST_WEIGHTS, corpus_hash, documents, items, task_names
from workflows.demo.presets import Recipe
from workflows.demo.tokenizer import BOS_ID, EOS_ID, MAX_LENGTH, PAD_ID, word_ids
from workflows.demo.world import World

NO_LABEL = -100
REPORTS = 100


@dataclass(frozen=True)
class Batch:
    """Packed rows, all of shape (B, T).

    Attributes:
        ids: Token ids, pads at the end of a row.
        positions: Position within the document.
        segments: Number of the document within the row, 0 for pads.
        labels: The next token; `NO_LABEL` if there is none.
        weights: Weight of the label's loss.
    """

    ids: Tensor
    positions: Tensor
    segments: Tensor
    labels: Tensor
    weights: Tensor

    def to(self, device: str) -> Batch:
        """Return the same rows on a device."""
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))

    def mask(self) -> Tensor:
        """Return the (B, 1, T, T) mask: True where a query may see a key."""
        same = self.segments[:, :, None] == self.segments[:, None, :]
        length = self.ids.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=same.device).tril()
        return (same & before)[:, None]


def backbone_config(world: World) -> LlamaConfig:
    """Return the shape of a world's backbone."""
    shape = world.preset.shape
    return LlamaConfig(
        vocab_size=len(word_ids(world)),
        hidden_size=shape.width,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=1e-5,
        initializer_range=shape.spread,
        tie_word_embeddings=False,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )


Row = list[tuple[int, int, int, int, float]]  # id, position, segment, label, weight


class Packer:
    """Fills rows with documents of a world, in the order of the stream."""

    def __init__(self, world: World, stream: Iterator[dict[str, str]], recipe: Recipe) -> None:
        self.stream = stream
        self.recipe = recipe
        self.ids = word_ids(world)
        self.waiting: Row = []

    def encode(self, document: dict[str, str]) -> Row:
        """Turn a document into row entries of segment 0."""
        prompt = [self.ids[word] for word in document["prompt"].split()]
        answer = [self.ids[word] for word in document["completion"].split()]
        tokens = [BOS_ID, *prompt, *answer, EOS_ID]
        first_answer = len(prompt)
        entries: Row = []
        for position, token in enumerate(tokens):
            last = position == len(tokens) - 1
            label = NO_LABEL if last else tokens[position + 1]
            weight = 1.0 if position >= first_answer else self.recipe.prompt_weight
            entries.append((token, position, 0, label, 0.0 if last else weight))
        return entries

    def row(self) -> Row:
        """Fill one row; the document that does not fit begins the next row."""
        row: Row = []
        segment = 0
        while True:
            entries = self.waiting or self.encode(next(self.stream))
            if len(row) + len(entries) > self.recipe.length:
                self.waiting = entries
                break
            self.waiting = []
            segment += 1
            row += [(token, pos, segment, label, w) for token, pos, _, label, w in entries]
        return row + [(PAD_ID, 0, 0, NO_LABEL, 0.0)] * (self.recipe.length - len(row))

    def batch(self) -> Batch:
        """Fill the rows of one update."""
        rows = [self.row() for _ in range(self.recipe.rows)]
        ids, positions, segments, labels = (
            torch.tensor([[entry[field] for entry in row] for row in rows]) for field in range(4)
        )
        weights = torch.tensor([[entry[4] for entry in row] for row in rows])
        return Batch(ids, positions, segments, labels, weights)


def new_backbone(world: World, seed: int) -> LlamaForCausalLM:
    """Build the untrained backbone of a world; its weights depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(backbone_config(world))


def weighted_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Return the mean next-token loss (nats), weighted by `batch.weights`."""
    logits = model(
        input_ids=batch.ids,
        attention_mask=batch.mask(),
        position_ids=batch.positions,
        use_cache=False,
    ).logits
    losses = functional.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), ignore_index=NO_LABEL, reduction="none"
    )
    weights = batch.weights.flatten()
    return (losses * weights).sum() / weights.sum()


def rate_at(step: int, recipe: Recipe) -> float:
    """Return the learning rate at a step: linear warm-up, then a cosine down to zero."""
    warm = max(1, round(recipe.warmup * recipe.steps))
    if step < warm:
        return recipe.rate * (step + 1) / warm
    done = (step - warm) / max(1, recipe.steps - warm)
    return recipe.rate * 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def exact_rates(model: LlamaForCausalLM, world: World, count: int = 100) -> dict[str, float]:
    """Measure, per task, how many validation items the model completes word for word.

    Args:
        model: The backbone.
        world: Source of the items.
        count: Items per task.

    Returns:
        Task name -> share of the items, in [0, 1], for which each answer token is the most likely.
    """
    packer = Packer(world, iter(()), Recipe())
    rates = {}
    for task in task_names(world):
        some = items(task, "validation")[:count]
        rows = [packer.encode({"prompt": i["prompt"], "completion": i["answer"]}) for i in some]
        longest = max(map(len, rows))
        fill = (PAD_ID, 0, 0, NO_LABEL, 0.0)
        rows = [row + [fill] * (longest - len(row)) for row in rows]
        ids, labels = (torch.tensor([[e[f] for e in row] for row in rows]) for f in (0, 3))
        answers = torch.tensor([[e[4] == 1.0 and e[3] != EOS_ID for e in row] for row in rows])
        best = model(input_ids=ids.to(model.device), use_cache=False).logits.argmax(-1).cpu()
        rates[task] = ((best == labels) | ~answers).all(1).float().mean().item()
    return rates


def update(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: Batch, recipe: Recipe
) -> float:
    """Make one update and return the loss before it.

    Raises:
        ValueError: If the loss is not finite.
    """
    optimizer.zero_grad()
    loss = weighted_loss(model, batch)
    if not torch.isfinite(loss):
        raise ValueError(f"the loss became {loss.item()}")
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()
    return loss.item()


class Lessons(IterableDataset[Batch]):
    """The batches of a training in order, from a given step on.

    Args:
        world: What is taught.
        recipe: Of the training.
        done: Number of earlier steps; their batches are drawn, but not returned.
    """

    def __init__(self, world: World, recipe: Recipe, done: int) -> None:
        self.world, self.recipe, self.done = world, recipe, done

    def __iter__(self) -> Iterator[Batch]:
        recipe, seed = self.recipe, self.recipe.seed
        first = Packer(self.world, documents(self.world, "train", seed, FIRST_WEIGHTS), recipe)
        later = Packer(self.world, documents(self.world, "train", seed), recipe)
        turn = int(recipe.first_lessons * recipe.steps)
        packers = (first if step < turn else later for step in range(recipe.steps))
        return islice((packer.batch() for packer in packers), self.done, None)


def train(
    world: World, recipe: Recipe, workdir: Path, device: str = "cpu"
) -> tuple[LlamaForCausalLM, list[dict[str, Any]]]:
    """Train a backbone from scratch, or continue from the snapshot of an interrupted training.

    Args:
        world: What is taught.
        recipe: Everything else on which the result depends.
        workdir: For snapshots, one with every report.
        device: For updates. Rows are packed on the CPU; for an accelerator in another process.

    Returns:
        The model, and about `REPORTS` reports at equal distances: step, mean loss since the report
        before, and the rates of `exact_rates`.
    """
    model = new_backbone(world, recipe.seed)
    model.to(device)  # type: ignore[arg-type]
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        parameters.values(), betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
    )
    kind = device.split(":")[0]
    identity = repr((world.preset, recipe, corpus_hash(world, recipe.seed), kind))
    state = read_snapshot(workdir, parameters, optimizer, identity) or {"reports": [], "done": 0}
    reports: list[dict[str, Any]] = state["reports"]
    losses: list[float] = []
    every = max(1, recipe.steps // REPORTS)
    batches = DataLoader(
        Lessons(world, recipe, state["done"]),
        batch_size=None,
        num_workers=0 if device == "cpu" else 1,
        generator=torch.Generator(),  # else the loader would advance the global one
    )
    progress = tqdm(batches, "backbone", recipe.steps, initial=state["done"], unit="step")
    for step, batch in enumerate(progress, start=state["done"] + 1):
        optimizer.param_groups[0]["lr"] = rate_at(step - 1, recipe)
        losses.append(update(model, optimizer, batch.to(device), recipe))
        if step % every and step < recipe.steps:
            continue
        rates = exact_rates(model, world)
        reports.append({"step": step, "loss": sum(losses) / len(losses), **rates})
        losses.clear()
        progress.set_postfix(loss=f"{reports[-1]['loss']:.3f}")
        progress_so_far = {"identity": identity, "done": step, "reports": reports}
        write_snapshot(workdir, parameters, optimizer, progress_so_far)
    return model, reports
