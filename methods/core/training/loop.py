"""One training loop under every trained row.

The model's trainable parameters are those that ask for a gradient. Loss per update:

    sum(weight * cross-entropy) / sum(weight)
        +  sum over kinds of alpha_kind * sum(share * penalty) / sum(share)

with all denominators taken over the whole update, whatever it is split into: micro-batches,
processes, packed or padded rows give the same gradient. The kinds are what shall meet the budget:
under ``"pooled"`` all counted positions, under ``"split"`` those of prompts and the answer tokens,
the latter weighted so that every task counts the same. ``alpha`` is fixed (the paper) or steered so
that the share of parameters skipped meets the budget (``methods/core/routing/steering.py``).
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from methods.core.data import Document, task_weights
from methods.core.model.backbone import attention_kinds, decoder
from methods.core.routing.eviction import IMPLEMENTATION
from methods.core.routing.routed import RoutedDecoder
from methods.core.routing.router import Context
from methods.core.routing.steering import Gates, Term
from methods.core.seeds import generator
from methods.core.training.interruption import Interrupted, Notice
from methods.core.training.losses import lm_loss_sum
from methods.core.training.packing import Rows, deal, pack, plan, split, stack
from methods.core.training.params import TrainingParams
from methods.core.training.snapshots import digest, read_snapshot, write_snapshot

# Where in training targets are corrected: from within the ramp to where rates can still move.
SURVEYS = (0.35, 0.5, 0.6, 0.7, 0.8)
KINDS = {"pooled": ("pooled",), "split": ("prompt", "answer")}
# A token that predicts nothing, for a process without documents: a penalty may sum over all.
NOTHING = [[Document([0], 0)]]


class DivergedError(ValueError):
    """Training ended because its loss was not finite."""


@dataclass(frozen=True)
class Routing:
    """What training knows of a routed model.

    Args:
        shares: Of the dense parameters in each unit (U,).
        terms: Kind of position -> what routing adds to the loss there; the kinds are those of
            ``KINDS["pooled"]`` or ``KINDS["split"]``.
        reserved: Tokens at the start of a document that no penalty counts.
        structure: What the fit decided before; snapshots of others are left alone.
        survey: Kind -> share of the parameters that inference skips on probe texts; asked for a few
            times, it corrects the targets.
        probe: The documents of the survey; a run with others is another one.
    """

    shares: Tensor
    terms: Mapping[str, Term]
    reserved: int = 0
    structure: Mapping[str, Any] = field(default_factory=dict)
    survey: Callable[[], Mapping[str, float]] | None = None
    probe: Sequence[Document] = ()


@dataclass
class Trainer:
    """Trains a causal LM in place.

    Args:
        model: Its trainable parameters ask for a gradient.
        params: Hyper-parameters.
        documents: Training documents.
        seed: Of data order and noise.
        workdir: Snapshots and the log; a run found there is continued, on a CPU bit for bit, with
            the same number of processes.
        routing: Of a routed model; without terms the model routes nothing.
    """

    model: nn.Module
    params: TrainingParams
    documents: Sequence[Document]
    seed: int
    workdir: Path
    routing: Routing = Routing(torch.empty(0), {})

    def __post_init__(self) -> None:
        self.trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if not self.trained:
            raise ValueError("nothing to train: no parameter asks for a gradient")
        self.device = next(iter(self.trained.values())).device
        self._set_checkpointing()
        self.optimizer = torch.optim.AdamW(self._groups(), fused=True)
        self.tasks = task_weights(self.documents) if "answer" in self.routing.terms else {}
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.log: list[dict[str, float]] = []
        self.notice, self.stopping, self.tokens = Notice(), False, 0

    def _groups(self) -> list[dict[str, Any]]:
        """Trained parameters by weight decay and by their share of the learning rate."""
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in self.trained.items():
            decay = self.params.weight_decay if parameter.dim() > 1 else 0.0
            share = self.params.lora_rate if "lora_" in name else 1.0
            groups.setdefault((decay, share), []).append(parameter)
        return [
            {"params": members, "weight_decay": decay, "share": share}
            for (decay, share), members in groups.items()
        ]

    @cached_property
    def _mask_dtype(self) -> torch.dtype | None:
        """Of the masks of packed rows; None where transformers makes them, for other kernels."""
        model: Any = self.model
        sdpa = model.config._attn_implementation in ("sdpa", IMPLEMENTATION)
        full = set(attention_kinds(model.config)) == {"full_attention"}
        # As autocast multiplies: it would round the mask in every layer.
        dtype = torch.bfloat16 if self.device.type == "cuda" else model.dtype
        return dtype if sdpa and full else None

    def _set_checkpointing(self) -> None:
        if isinstance(self.model.model, RoutedDecoder):
            self.model.model.checkpointing = self.params.checkpointing
        elif self.params.checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
            # transformers then asks for gradients of the embeddings, which would send the backward
            # pass through every frozen layer below the first trained one.
            self.model.disable_input_require_grads()  # type: ignore[operator]

    def run(self) -> list[dict[str, float]]:
        """Train to the last update; returns the log, one entry per update.

        Raises:
            DivergedError: The loss is not finite; the last good snapshot stays in ``workdir``.
            Interrupted: SIGTERM or SIGINT came; a snapshot was left behind the update at hand.
        """
        done = self._resume()
        self.model.train()
        lengths = [len(document.ids) for document in self.documents]
        batches = islice(plan(lengths, self.params.batch_tokens, self.seed), done, None)
        total, quiet = self.params.updates, self.rank > 0
        bar = tqdm(total=total, initial=done, desc="training", disable=quiet)
        saved = monotonic()
        with self.notice, bar:
            for update in range(done, total):
                batch = next(batches)
                entry = self._update(update, [self.documents[n] for n in batch])
                self._note(entry, sum(lengths[n] for n in batch), bar)
                if self.routing.survey is not None and update + 1 in self._surveys:
                    self._correct(self.routing.survey())
                now = monotonic()
                due = now - saved >= 60 * self.params.snapshot_minutes
                if self.rank == 0 and (due or self.stopping or update + 1 == total):
                    self._snapshot(update + 1)
                    saved = now
                if self.stopping:
                    self._stop(update + 1)
        self.model.eval()
        return self.log

    def _note(self, entry: dict[str, float], tokens: int, bar: tqdm[Any]) -> None:
        """Log an update and show it, with the tokens per second since this process began."""
        self.log.append(entry)
        if not math.isfinite(entry["loss"]):
            raise DivergedError(
                f"the loss of update {entry['update']} is {entry['loss']}; "
                f"a lower learning_rate than {self.params.learning_rate} may help"
            )
        self.tokens += tokens
        shown = {n: f"{v:.3f}" for n, v in entry.items() if n.startswith(("loss", "skip", "alpha"))}
        rate = self.tokens / max(bar.format_dict["elapsed"], 1e-9)
        bar.set_postfix(shown | {"tokens/s": f"{rate:,.0f}"}, refresh=False)
        bar.update()

    def _stop(self, done: int) -> None:
        if self.world > 1:
            # torchrun ends all processes when the first one is gone; the snapshot must be whole.
            dist.barrier()
        raise Interrupted(
            f"interrupted; the snapshot after update {done} continues",
            self.notice.number or signal.SIGTERM,
        )

    @property
    def _surveys(self) -> set[int]:
        """Finished updates after which targets are corrected."""
        return {round(share * self.params.updates) for share in SURVEYS}

    def _correct(self, seen: Mapping[str, float]) -> None:
        for kind, term in self.routing.terms.items():
            if term.weight.target is not None:
                term.weight.target.correct(seen[kind])
        self.model.train()

    def _update(self, update: int, documents: Sequence[Document]) -> dict[str, float]:
        """One optimizer step on one batch."""
        micro = self._micro_batches(documents)
        totals = torch.stack([self._totals(rows) for rows in micro]).sum(dim=0)
        totals = totals.to(self.device, non_blocking=True)
        self._sum(totals)
        totals[1:].clamp_(min=1)
        weights = {kind: term.weight.alpha for kind, term in self.routing.terms.items()}
        sums = torch.zeros(1 + 4 * len(weights), dtype=torch.float64, device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        progress = update / self.params.updates
        for number, rows in enumerate(micro):
            noise = generator(self.seed, f"noise {update}/{self.rank}/{number}")
            sums += self._forward_backward(rows, totals, progress, noise)
        self._share_gradients()
        shared = torch.cat([sums, sums.new_full((1,), self.notice.number)])
        self._sum(shared)
        norm = nn.utils.clip_grad_norm_(self.trained.values(), self.params.clip)
        # The update's one wait for the device.
        loss, *logged, signalled, size = torch.cat([shared, norm.double()[None]]).tolist()
        self.stopping = bool(signalled)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(update) * group["share"]
        if math.isfinite(size):
            self.optimizer.step()
        entry = {"update": update, "loss": loss if math.isfinite(size) else math.nan, "norm": size}
        for place, (kind, term) in enumerate(self.routing.terms.items()):
            penalty, skip, soft_skip, executed = logged[4 * place : 4 * place + 4]
            told = {
                "penalty": penalty, "skip": skip, "alpha": weights[kind], "executed": executed,
            }  # fmt: skip
            entry |= {named(name, kind): value for name, value in told.items()}
            term.weight.observe(skip, soft_skip, progress)
        return entry

    def _micro_batches(self, documents: Sequence[Document]) -> list[Rows]:
        """What this process runs of a batch, one forward pass each; all processes run as many."""
        params, packed = self.params, pack(documents, self.params.row_length)
        shares = [split(share, params.micro_tokens) for share in deal(packed, self.world)]
        mine = shares[self.rank]
        mine += [[]] * (max(map(len, shares)) - len(mine))
        return [
            stack(rows or NOTHING, params.row_length, params.prompt_weight, self.tasks)
            for rows in mine
        ]

    def _forward_backward(
        self, rows: Rows, totals: Tensor, progress: float, noise: torch.Generator
    ) -> Tensor:
        """Accumulate gradients of one micro-batch; returns its parts of the logged sums.

        Nothing but dispatch waits for the device: rows are counted before they are moved there.
        """
        # The last position of the tensor predicts nothing: counted is False there.
        predicting = rows.counted.flatten().nonzero().squeeze(1)
        predicting = predicting.to(self.device, non_blocking=True)
        dtype = self._mask_dtype if rows.packed else None
        rows = rows.to(self.device)
        extra = {"context": Context(progress, noise, rows.answers)} if self.routing.terms else {}
        device = self.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            output = decoder(self.model)(
                input_ids=rows.ids,
                # One for all layers; of a boolean mask each would make and keep its own.
                attention_mask=None if dtype is None else rows.mask(dtype),
                position_ids=rows.positions,
                use_cache=False,
                **extra,
            )
            hidden = output.last_hidden_state.flatten(0, 1)[predicting]
            targets = rows.ids.flatten()[predicting + 1]
            head = self.model.lm_head
            assert isinstance(head, nn.Module)
            loss = lm_loss_sum(hidden, head, targets, rows.weights.flatten()[predicting])
        loss = loss / totals[0].float()
        logged = [loss.detach().double()]
        for (kind, term), (total, unreserved) in zip(
            self.routing.terms.items(), totals[1:].view(-1, 2), strict=True
        ):
            share, free = rows.share(kind), self._unreserved(rows, kind)
            penalty = torch.zeros_like(loss)
            if term.penalty is not None:
                gates = Gates(output.soft, output.executed, free, progress)
                penalty = term.penalty(gates) / unreserved.float()
                loss = loss + term.weight.alpha * penalty
            logged.append(penalty.detach().double())
            ran = output.executed.double()
            soft = ran if output.soft is None else output.soft.detach().double()
            sizes = self.routing.shares.to(self.device, non_blocking=True)
            each = share.double()[:, None]
            for gates in (ran, soft):
                logged.append(((1 - gates) * each).sum(dim=(0, 2)) @ sizes / total)
            logged.append((ran * free.double()[:, None]).sum() / unreserved)
        loss.backward()
        return torch.stack(logged)

    def _totals(self, rows: Rows) -> Tensor:
        """Sum of the loss weights; per kind that of its positions, with and without reserved."""
        sums = [rows.weights.sum()]
        for kind in self.routing.terms:
            sums += [rows.share(kind).sum(), self._unreserved(rows, kind).sum()]
        return torch.stack(sums).double()

    def _unreserved(self, rows: Rows, kind: str) -> Tensor:
        """Weight (B, T) of each position in the penalty of a kind."""
        return rows.share(kind) * (rows.positions >= self.routing.reserved)

    def _rate(self, update: int) -> float:
        """Learning rate of an update: linear warm-up, then the schedule down to 0."""
        params = self.params
        warm = max(1, round(params.warmup * params.updates))
        if update < warm:
            return params.learning_rate * (update + 1) / warm
        share = (update - warm) / max(1, params.updates - warm)
        factor = {"cosine": 0.5 * (1 + math.cos(math.pi * share)), "linear": 1 - share}
        return params.learning_rate * factor.get(params.schedule, 1.0)

    def _sum(self, values: Tensor) -> None:
        if self.world > 1:
            dist.all_reduce(values)

    def _share_gradients(self) -> None:
        """Sum gradients over processes; a parameter no token reached counts as zero."""
        for parameter in self.trained.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.world > 1:
            gradients = [p.grad for p in self.trained.values() if p.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
            for gradient, part in zip(
                gradients, flat.split([g.numel() for g in gradients]), strict=True
            ):
                gradient.copy_(part.view_as(gradient))

    def _snapshot(self, done: int) -> None:
        state = {"log": self.log, "done": done, "identity": self._identity}
        state["weights"] = {k: term.weight.state() for k, term in self.routing.terms.items()}
        write_snapshot(self.workdir, self.trained, self.optimizer, state)
        with (self.workdir / "training.jsonl").open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(entry) + "\n" for entry in self.log)

    @cached_property
    def _identity(self) -> str:
        """What a snapshot must share with this run: all that its updates follow from."""
        shapes = [(name, tuple(p.shape)) for name, p in self.trained.items()]
        targets = [(kind, term.weight.target) for kind, term in self.routing.terms.items()]
        budgets = [(kind, None if each is None else each.budget) for kind, each in targets]
        frozen = [p for p in self.model.parameters() if not p.requires_grad]
        known = self.params, self.seed, shapes, budgets, self.routing.structure, len(self.documents)
        return digest(repr(known), chain(self.documents, self.routing.probe), frozen)

    def _resume(self) -> int:
        """Continue a run found in ``workdir``; returns the number of finished updates."""
        state = read_snapshot(self.workdir, self.trained, self.optimizer, self._identity)
        if state is None:
            return 0
        self.log = state["log"]
        for kind, term in self.routing.terms.items():
            term.weight.restore(state["weights"][kind])
        return int(state["done"])


def named(name: str, kind: str) -> str:
    """The key of a kind's figure in the log; the pooled one bears no suffix."""
    return name if kind == "pooled" else f"{name}_{kind}"


def thinned(log: list[dict[str, float]], keep: int = 200) -> list[dict[str, float]]:
    """At most about ``keep`` entries of a training log, the last one among them."""
    step = max(1, len(log) // keep)
    return [*log[:-1:step], *log[-1:]]
