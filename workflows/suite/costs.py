"""What one job of a suite costs: what its method states, times the suite's texts and updates.

An estimate. What a routed token skips in training is not subtracted, so that fits of routed rows
take less; a row that starts from a compressed model counts as one on the dense model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from methods import load_method
from methods.api import Backbone, Cost, Request, TrainingParams
from methods.core.model.backbone import empty_backbone, shape_config
from methods.core.model.folder import read_config
from methods.core.model.shapes import SHAPES
from workflows.suite.commands import PROBE_ROWS
from workflows.suite.job import FIDELITY, Job
from workflows.suite.jobs import Suite
from workflows.suite.load import load_of
from workflows.suite.machines import DISK_RATE, START_SECONDS, Machine
from workflows.suite.memory import (
    Dense,
    calibration_memory,
    fidelity_memory,
    scoring_memory,
    training_memory,
)
from workflows.timing.bounds import prefill_flops, training_flops

# Mean tokens of a chat of Tulu-3, cut to 2,048: its 3,102 bytes (2.914 GB in 939,343 chats) are
# about 750 tokens, 620 to 680 after the cut.
CHAT = 650
# Positions per trained token when a whole update is packed into rows.
PADDING = 1.03
# Texts that a document of the paper's tasks is fed as.
ANSWERS = 3


@dataclass(frozen=True)
class StepWork:
    """A fit or an evaluation.

    Args:
        tokens: Trained or scored.
        flops: Operations.
        layer_passes: Layers times passes over them.
        weight_bytes: Bytes of weights that decoding reads.
        memory: Peak, bytes.
    """

    tokens: float = 0.0
    flops: float = 0.0
    layer_passes: float = 0.0
    weight_bytes: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True)
class JobCost:
    """What a job costs.

    Args:
        job: The job.
        fit: Work of the fit step.
        evaluation: Work of one score step.
        trained: Parameters that it trains.
        weights: Bytes of the backbone.
        own_weights: Bytes of the weights that a static row stores, 0 for others.
        width: D.
    """

    job: Job
    fit: StepWork
    evaluation: StepWork
    trained: int
    weights: float
    own_weights: float
    width: int

    def seconds(self, work: StepWork, machine: Machine) -> float:
        """Of the fit or the evaluation on a machine, start and loading included."""
        start = START_SECONDS + self.weights / DISK_RATE
        return start + machine.seconds(work.flops, self.width, work.layer_passes, work.weight_bytes)


def job_cost(suite: Suite, job: Job, root: Path) -> JobCost:
    """What a job of a suite costs; a row that does not apply costs nothing.

    Args:
        suite: Of the job.
        job: The job.
        root: Checkout with results.

    Raises:
        ValueError: A param is wrong, or the backbone's sizes are not known.
    """
    backbone = backbone_of(suite, job.backbone, root)
    dense = Dense.of(backbone, suite.config["backbones"][job.backbone]["dtype"])
    method = load_method(job.method.name, job.params)
    lender = None if job.lender is None else root / job.lender.model
    request = Request(job.budget, job.seed, Path(), job.match or "pooled", lender)
    if method.skip_reason(backbone, request) is not None:
        return JobCost(job, StepWork(), StepWork(), 0, dense.weights, 0.0, dense.shape.width)
    cost = method.cost(backbone, request)
    training = method.params if isinstance(method.params, TrainingParams) else None
    shared = suite.config["share_prefix"] and method.batchable()
    stored = dense.weights * (1 - (job.budget or 0.0)) if method.kind == "static" else 0.0
    return JobCost(
        job,
        _fit(suite, dense, cost, training),
        _evaluation(suite, dense, job.budget or 0.0, shared, stored or dense.weights, cost.trained),
        cost.trained,
        dense.weights,
        stored,
        dense.shape.width,
    )


def backbone_of(suite: Suite, name: str, root: Path) -> Backbone:
    """A suite's backbone without numbers, from its folder, else from the published shape.

    Raises:
        ValueError: Neither is there.
    """
    folder = root / suite.backbone_folder(name)
    if (folder / "config.json").is_file():
        return empty_backbone(read_config(folder), folder)
    if name in SHAPES:
        return empty_backbone(shape_config(name))
    raise ValueError(
        f"backbone '{name}': {suite.backbone_folder(name)} has no config.json yet, and no "
        f"published shape has this name (known: {', '.join(SHAPES)})"
    )


def _fit(suite: Suite, dense: Dense, cost: Cost, training: TrainingParams | None) -> StepWork:
    """Training, if any, and passes over the calibration and the probe texts."""
    config, shape = suite.config, dense.shape
    rows = config["data"].get("calibration", {}).get("rows", 0)
    texts = rows if cost.texts is None else min(rows, cost.texts)
    length = min(config["max_length"], cost.length or config["max_length"])
    batch = min(texts, cost.batch or texts)
    pass_tokens = cost.passes * texts * length + cost.probe_passes * _probe_tokens(suite)
    flops = pass_tokens * prefill_flops(shape, 1, 1, 0.0)
    passes = cost.passes * math.ceil(texts / batch) * shape.layers if batch else 0.0
    memory = calibration_memory(dense, batch * length) if cost.passes else dense.weights
    if training is None:
        return StepWork(0.0, flops, passes, 0.0, memory)
    tokens = float(training.updates * training.batch_tokens)
    positions = PADDING * training.batch_tokens
    parts = math.ceil(positions / (training.micro_tokens or positions))
    row = min(training.row_length or CHAT, config["max_length"], int(positions))
    recomputed = training.checkpointing
    # Packed documents need a mask: attention computes both halves of it, as of twice the length.
    per_token = training_flops(shape, 2 * row, 0.0, cost.trained, recomputed, cost.layers)
    passes += training.updates * parts * (shape.layers + (2 + recomputed) * cost.layers)
    peak = training_memory(dense, cost, positions / parts, row, recomputed)
    return StepWork(tokens, flops + PADDING * tokens * per_token, passes, 0.0, max(memory, peak))


def _probe_tokens(suite: Suite) -> float:
    data = suite.config["data"]
    documents = data.get("probe", data.get("validation", {})).get("rows", 0)
    if suite.probes_tasks:
        documents = documents or PROBE_ROWS
        # Documents of each task, fed once per answer that differs.
        documents *= ANSWERS * sum(entry.probe for entry in suite.entries)
    return float(documents * min(CHAT, suite.config["max_length"]))


def _evaluation(
    suite: Suite, dense: Dense, budget: float, shared: bool, weights: float, trained: int
) -> StepWork:
    """One pass of the harness over all tasks; ``shared``: each context runs once for its choices.

    A row runs the dense parameters less its budget, and what it trained. On the texts of fidelity
    the dense model runs too.
    """
    shape, size = dense.shape, suite.config["batch_size"]
    load = load_of(suite.entries, size, suite.config.get("limit"), shared)
    run = shape.matrices(0.0) - budget * dense.parameters + trained
    tokens = load.prefill + load.written
    flops = 2 * tokens * (run + shape.width * load.context * shape.layers)
    passes = (load.batches + load.steps) * (2 if trained else 1)
    weight_bytes = load.steps * dense.number * (run + shape.head)
    memory = scoring_memory(dense, weights + 4 * trained, load, size)
    texts = suite.config["data"].get(FIDELITY, {}).get("rows", 0)
    if texts:
        length = min(CHAT, suite.config["max_length"])
        flops += 2 * texts * length * (run + dense.parameters)
        passes += 2 * math.ceil(texts / size)
        longest = size * suite.config["max_length"]
        memory = max(memory, fidelity_memory(dense, weights + 4 * trained, longest))
    return StepWork(tokens, flops, passes * shape.layers, weight_bytes, memory)
