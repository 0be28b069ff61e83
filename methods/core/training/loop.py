"""The training loop of every trained row: updates, their log, snapshots, interruption.

It trains the parameters of a model that ask for a gradient. The loss is that of ``objective.py``.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from tqdm import tqdm

from methods.core.data import Document, task_weights
from methods.core.routing.routed import RoutedDecoder
from methods.core.seeds import generator
from methods.core.training.interruption import Interrupted, Notice
from methods.core.training.objective import FIGURES, NO_ROUTING, Objective, Routing, log_key
from methods.core.training.optimizer import learning_rate, parameter_groups
from methods.core.training.packing import Rows, deal, document_batches, pack, split, stack
from methods.core.training.params import TrainingParams
from methods.core.training.processes import rank_and_world, sum_gradients, sum_over_processes
from methods.core.training.snapshots import digest, read_snapshot, write_snapshot

# For a process without documents: a token that predicts nothing. A pass must run all the same,
# because a penalty may sum over all processes.
NOTHING = [[Document([0], 0)]]


# In place of the sum of no weights, which divides zeros alone.
TINY = 1e-9


class DivergedError(ValueError):
    """Training ended because its loss, a penalty or the gradients' norm was not finite."""


@dataclass
class Trainer:
    """Trains a causal LM in place.

    Args:
        model: Causal LM; the parameters that ask for a gradient are trained.
        params: Hyper-parameters.
        documents: Training documents.
        seed: Of data order and noise.
        workdir: Folder of the snapshot and the log. If it has a snapshot of the same run, the run
            is continued; on a CPU with the same number of processes the result is the same to the
            bit.
        routing: Of a routed model.
    """

    model: nn.Module
    params: TrainingParams
    documents: Sequence[Document]
    seed: int
    workdir: Path
    routing: Routing = NO_ROUTING

    def __post_init__(self) -> None:
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("nothing to train: no parameter asks for a gradient")
        self.device = next(iter(self.parameters.values())).device
        if self.device.type == "cpu" and next(self.model.parameters()).dtype is torch.float16:
            raise ValueError("gradients underflow in float16 on a CPU, take bfloat16 or float32")
        switch_off_dropout(self.model)
        self._set_checkpointing()
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.parameters, self.params), fused=True
        )
        self.objective = Objective(self.model, self.routing, self.device)
        self.tasks = task_weights(self.documents) if "answer" in self.routing.terms else {}
        self.rank, self.world = rank_and_world()
        self.log: list[dict[str, float]] = []
        self.notice, self.stopping, self.tokens = Notice(), False, 0
        # Seconds of the parts of this run before it was continued, and when this part began.
        self.earlier, self.began = 0.0, perf_counter()

    def _set_checkpointing(self) -> None:
        if isinstance(self.model.model, RoutedDecoder):
            self.model.model.checkpointing = self.params.checkpointing
        elif self.params.checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
            # transformers now asks for gradients of the embeddings. The backward pass would then
            # run through every frozen layer below the first trained one.
            self.model.disable_input_require_grads()  # type: ignore[operator]

    def run(self) -> list[dict[str, float]]:
        """Train to the last update; returns the log, one entry per update.

        Raises:
            DivergedError: See there; the last good snapshot stays in ``workdir``.
            Interrupted: SIGTERM or SIGINT came; a snapshot was written after the current update.
        """
        done = self._resume()
        if self.rank == 0 and done == self.params.updates:
            # Only what followed the training was interrupted: all its seconds are earlier ones now.
            self._snapshot(done)
        self.model.train()
        lengths = [len(document.ids) for document in self.documents]
        batches = islice(document_batches(lengths, self.params.batch_tokens, self.seed), done, None)
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
            # A signal that came after the last update's own look.
            late = torch.tensor(float(self.notice.number), device=self.device)
            sum_over_processes(late)
            if late:
                self._stop(total)
        self.model.eval()
        return self.log

    def _note(self, entry: dict[str, float], tokens: int, bar: tqdm[Any]) -> None:
        """Log an update and show it, with the tokens per second of all processes."""
        self.log.append(entry)
        penalties = [name for name in entry if name.startswith("penalty")]
        figures = {"loss": "loss", **dict.fromkeys(penalties, "penalty")}
        for name, words in (figures | {"norm": "norm of the gradients"}).items():
            if not math.isfinite(entry[name]):
                raise DivergedError(
                    f"the {words} of update {entry['update']} is {entry[name]}; "
                    f"a lower learning_rate than {self.params.learning_rate} may help"
                )
        self.tokens += tokens
        names = [name for name in entry if name.startswith(("loss", "skip", "alpha"))]
        figures = {name: f"{entry[name]:.3f}" for name in names}
        rate = self.tokens / max(bar.format_dict["elapsed"], 1e-9)
        bar.set_postfix(figures | {"tokens/s": f"{rate:,.0f}"}, refresh=False)
        bar.update()

    def _stop(self, done: int) -> None:
        if self.world > 1:
            # torchrun ends all processes when the first one ends; the snapshot must be complete.
            dist.barrier()
        raise Interrupted(
            f"interrupted; the snapshot after update {done} continues",
            self.notice.number or signal.SIGTERM,
        )

    @property
    def _surveys(self) -> set[int]:
        """Numbers of finished updates after which targets are corrected."""
        return {round(share * self.params.updates) for share in self.routing.surveys}

    def _correct(self, skips: Mapping[str, float]) -> None:
        """Correct the targets by what inference skips, by kind."""
        for kind, term in self.routing.terms.items():
            if term.weight.target is not None:
                term.weight.target.correct(skips[kind])
        self.model.train()

    def _update(self, update: int, documents: Sequence[Document]) -> dict[str, float]:
        """One optimizer step on one batch; returns its entry of the log."""
        passes = self._micro_batches(documents)
        totals = torch.stack([self.objective.totals(rows) for rows in passes]).sum(dim=0)
        totals = totals.to(self.device, non_blocking=True)
        sum_over_processes(totals)
        # A kind, or the loss, may have no position in this update: nothing is seen of it.
        present = (totals[1::2] > 0).double()
        totals.clamp_(min=TINY)
        alphas = {kind: term.weight.alpha for kind, term in self.routing.terms.items()}
        sums = torch.zeros(1 + FIGURES * len(alphas), dtype=torch.float64, device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        progress = update / self.params.updates
        for number, rows in enumerate(passes):
            noise = generator(self.seed, f"noise {update}/{self.rank}/{number}")
            sums += self.objective.backward(rows, totals, progress, noise)
        sum_gradients(self.parameters.values())
        shared = torch.cat([sums, sums.new_full((1,), self.notice.number)])
        sum_over_processes(shared)
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.params.clip)
        # Besides dispatch and attend, here alone the host waits for the device.
        host = torch.cat([present, shared, norm.double()[None]]).tolist()
        seen, (loss, *figures, signals, size) = host[: len(alphas)], host[len(alphas) :]
        # A signal to one process stops all of them after the same update.
        self.stopping = bool(signals)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(update, self.params) * group["share"]
        if math.isfinite(size):
            self.optimizer.step()
        entry = {"update": update, "loss": loss, "norm": size}
        for place, (kind, term) in enumerate(self.routing.terms.items()):
            penalty, skip, soft_skip, executed = figures[FIGURES * place : FIGURES * (place + 1)]
            of_kind = {
                "penalty": penalty, "skip": skip, "alpha": alphas[kind], "executed": executed,
            }  # fmt: skip
            if seen[place]:
                term.weight.observe(skip, soft_skip, progress)
            else:
                of_kind = {"alpha": alphas[kind]}
            entry |= {log_key(name, kind): value for name, value in of_kind.items()}
        return entry

    def _micro_batches(self, documents: Sequence[Document]) -> list[Rows]:
        """This process's part of a batch, by forward pass; all processes have as many passes."""
        params, packed = self.params, pack(documents, self.params.row_length)
        shares = [split(share, params.micro_tokens) for share in deal(packed, self.world)]
        own = shares[self.rank]
        own += [[]] * (max(map(len, shares)) - len(own))
        return [
            stack(rows or NOTHING, params.row_length, params.prompt_weight, self.tasks)
            for rows in own
        ]

    def _snapshot(self, done: int) -> None:
        state = {"log": self.log, "done": done, "identity": self._identity}
        state |= {"earlier": self.earlier, "seconds": self.earlier + perf_counter() - self.began}
        state["weights"] = {k: term.weight.state() for k, term in self.routing.terms.items()}
        write_snapshot(self.workdir, self.parameters, self.optimizer, state)
        with (self.workdir / "training.jsonl").open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(entry) + "\n" for entry in self.log)

    @cached_property
    def _identity(self) -> str:
        """A digest of all that the updates of this run follow from.

        A snapshot with another digest belongs to another run.
        """
        shapes = [(name, tuple(p.shape)) for name, p in self.parameters.items()]
        targets = [(kind, term.weight.target) for kind, term in self.routing.terms.items()]
        budgets = [
            (kind, None if each is None else (each.budget, each.share)) for kind, each in targets
        ]
        frozen = [p for p in self.model.parameters() if not p.requires_grad]
        structure, number = self.routing.structure, len(self.documents)
        params = {n: v for n, v in vars(self.params).items() if n != "snapshot_minutes"}
        settings = repr((params, self.seed, shapes, budgets, structure, number))
        return digest(settings, chain(self.documents, self.routing.probe), frozen)

    def _resume(self) -> int:
        """Continue the run in ``workdir``, if any; returns the number of finished updates."""
        state = read_snapshot(self.workdir, self.parameters, self.optimizer, self._identity)
        if state is None:
            return 0
        self.log, self.earlier = state["log"], state["seconds"]
        for kind, term in self.routing.terms.items():
            term.weight.restore(state["weights"][kind])
        return int(state["done"])


def switch_off_dropout(model: nn.Module) -> None:
    """Set the backbone's own dropout to 0: no seed reaches its masks, and no row adds any.

    Args:
        model: Causal LM of transformers, whose attentions hold the share as a number.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "residual_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def thin(log: list[dict[str, float]]) -> list[dict[str, float]]:
    """About 200 entries of a training log, the last one among them."""
    step = max(1, len(log) // 200)
    return [*log[:-1:step], *log[-1:]]
