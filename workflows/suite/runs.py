"""What one run of a suite costs: its fit and one evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from methods.core.model.shapes import ATTENTION
from workflows.stats.bounds import prefill_flops
from workflows.suite.job import Job
from workflows.suite.jobs import Suite
from workflows.suite.machines import DISK_RATE, MACHINES, START_SECONDS, Machine
from workflows.suite.memory import evaluation_memory, fit_memory, untrained_memory
from workflows.suite.model import Model
from workflows.suite.params import params_of
from workflows.suite.recipes import Recipe, recipe
from workflows.suite.tasks import Load, load_of

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Mean tokens of a chat of Tulu-3, cut to 2,048: its 3,102 bytes (2.914 GB in 939,343 chats) are
# about 750 tokens, 620 to 680 after the cut.
CHAT = 650
# Positions per trained token when a whole update is packed into rows.
PADDING = 1.03
# Forward passes over the probe: five surveys in training, about seven tries of a threshold.
PROBES = 12
# Texts that a document of the paper's tasks is fed as.
ANSWERS = 3
# Passes over the calibration documents, a backward pass as two; None: one per layer.
PASSES: Mapping[str, int | None] = {
    "shortgpt": 1, "slicegpt": 3, "llm_pruner": 4, "laco": None, "shortened_llama": None,
    "ffn_skipllm": 1,
    "replaceme": 2, "flap": 1, "random_skip": 0,
}  # fmt: skip
# Greedy searches: parts of a layer that a round leaves out in turn, each in half a pass.
GREEDY = {"sleb": 1, "blockpruner": 2}
# Forward passes over the probe when FFN-SkipLLM calibrates; those of its comparisons, and over how
# many documents at most.
CALIBRATING = 7
COMPARING = 7 * 5
COMPARED = 512


@dataclass(frozen=True)
class Work:
    """A fit or an evaluation.

    Args:
        tokens: Trained or scored.
        flops: Operations.
        layer_passes: Layers times passes over them.
        read: Bytes of weights that decoding reads.
        memory: Peak, bytes.
    """

    tokens: float
    flops: float
    layer_passes: float
    read: float
    memory: float


@dataclass(frozen=True)
class Run:
    """A run of a suite.

    Args:
        job: Which.
        fit: Of the fit step.
        evaluation: Of one score step.
        trained: Parameters that it trains.
        weights: Bytes of the backbone.
        left: Bytes of a static row's own weights, 0 for others.
        width: D.
    """

    job: Job
    fit: Work
    evaluation: Work
    trained: int
    weights: float
    left: float
    width: int

    def seconds(self, work: Work, machine: Machine) -> float:
        """Of the fit or the evaluation on a machine, start and loading included."""
        start = START_SECONDS + self.weights / DISK_RATE
        return start + machine.seconds(work.flops, self.width, work.layer_passes, work.read)


def run_of(suite: Suite, job: Job, model: Model) -> Run:
    """What a run costs.

    Args:
        suite: Of the job.
        job: The run.
        model: Its backbone.
    """
    number = BYTES[suite.config["backbones"][job.backbone]["dtype"]]
    params, name = params_of(job), _file(job)
    held = model.parameters
    if job.start is not None:  # a static model, taken as one of fewer layers
        layers = max(1, round(model.layers * (1 - (job.start.budget or 0.25))))
        model = replace(model, layers=layers)
    made = recipe(name, model, params, job.budget) if job.method.trained else None
    skip = made.skip if made else _pinned(job, params, model)
    shared = suite.config["share_prefix"] and job.method.causal
    shared = shared and params.get("inference") != "topk"
    load = load_of(suite.entries, suite.config["batch_size"], suite.config.get("limit"), shared)
    fit = _training(suite, made, model, params, number) if made else None
    static = job.method.kind == "static"
    return Run(
        job,
        fit or _untrained(suite, name, model, params, number, skip),
        _evaluation(suite, model, made, skip, number, load, static),
        made.trained if made else 0,
        number * held,
        number * held * (1 - skip) if static else 0.0,
        model.width,
    )


def uncounted_fits(jobs: Sequence[Job]) -> list[str]:
    """Rows without training whose passes over the calibration documents are not known."""
    known = {*PASSES, *GREEDY}
    fitted = [job for job in jobs if not job.method.trained and job.method.kind != "reference"]
    return list(dict.fromkeys(job.row for job in fitted if _file(job) not in known))


def _file(job: Job) -> str:
    """The method's file or folder."""
    return job.method.module.split(".")[1]


def _pinned(job: Job, params: Mapping[str, Any], model: Model) -> float:
    """Share of the parameters that a row without training skips; a pinned knob is its share."""
    if job.method.kind == "reference":
        return 0.0
    if job.budget is not None:
        return job.budget
    if params.get("layers"):
        return float(params["layers"]) * model.layer / model.parameters
    return float(params.get("ratio") or params.get("slice_fraction") or 0.25)


def _training(
    suite: Suite, made: Recipe, model: Model, params: Mapping[str, Any], number: int
) -> Work:
    tokens = float(params["updates"] * params["batch_tokens"])
    positions = PADDING * params["batch_tokens"]
    passes = math.ceil(positions / (params["micro_tokens"] or positions))
    row = min(params["row_length"] or CHAT, suite.config["max_length"], int(positions))
    recomputed = bool(params["checkpointing"])
    # Packed documents need a mask: attention computes both halves of it.
    flops = PADDING * tokens * made.flops(2 * row, recomputed)
    calibrating = PROBES * _probe_tokens(suite)
    flops += 2 * calibrating * (made.shape.matrices(made.bypass) + made.beside)
    through = model.layers + (2 + recomputed) * made.reached
    memory = fit_memory(model, made, number, positions / passes, row, recomputed)
    return Work(tokens, flops, params["updates"] * passes * through, 0.0, memory.peak)


def _probe_tokens(suite: Suite) -> float:
    data = suite.config["data"]
    documents = data.get("probe", data.get("validation", {})).get("rows", 0)
    if suite.probes_tasks:
        # Documents of each task, fed once per answer that differs.
        documents *= ANSWERS * sum(entry.probe for entry in suite.entries)
    return float(documents * min(CHAT, suite.config["max_length"]))


def _passes(name: str, model: Model, params: Mapping[str, Any], skip: float) -> int:
    """Passes of a fit without training over the calibration documents."""
    if name in GREEDY:
        parts = GREEDY[name] * model.layers
        rounds = round(parts * skip)
        return round(rounds * (1 + (parts - rounds / 2) / 2))
    passes = PASSES.get(name, 0)
    if passes is None:
        return 4 if params.get("criterion") == "taylor" else model.layers
    return passes


def _untrained(
    suite: Suite, name: str, model: Model, params: Mapping[str, Any], number: int, skip: float
) -> Work:
    """A fit that reads calibration documents, if any."""
    longest = suite.config["max_length"]
    documents = suite.config["data"].get("calibration", {}).get("rows", 0)
    documents = params.get("samples") or params.get("sentences") or documents
    tokens = float(documents * min(longest, params.get("length") or longest))
    passes = _passes(name, model, params, skip)
    if not passes:
        return Work(0.0, 0.0, 0.0, 0.0, float(number * model.parameters))
    through = passes * tokens
    if name == "ffn_skipllm":
        probed = _probe_tokens(suite)
        through += CALIBRATING * probed + COMPARING * min(COMPARED * min(CHAT, longest), probed)
    flops = through * prefill_flops(model.shape(), 1, 1, 0.0)
    batches = math.ceil(documents / 16)
    # LLM-Pruner and Taylor scores hold what enters each layer for every document, the others for a
    # batch; LaCo, SliceGPT, ReplaceMe and FLAP at one place.
    every = name == "llm_pruner" or params.get("criterion") == "taylor"
    held = tokens if every else tokens / batches
    places = 1 if name in ("laco", "slicegpt", "replaceme", "flap") else model.layers
    memory = untrained_memory(model, number, held, places)
    return Work(0.0, flops, passes * batches * model.layers, 0.0, memory)


def _evaluation(
    suite: Suite,
    model: Model,
    made: Recipe | None,
    skip: float,
    number: int,
    load: Load,
    static: bool,
) -> Work:
    """One pass of the harness over all tasks, each context once where choices may share it."""
    shape = model.shape(ATTENTION)
    added = 0 if made is None else made.trained
    run = shape.matrices(0.0) - skip * model.parameters + added
    tokens = load.prefill + load.written
    flops = 2 * tokens * run + 2 * model.width * load.context * model.layers * tokens
    passes = (load.batches + load.steps) * (2 if made else 1)
    read = load.steps * number * (run + model.embedding)
    memory = evaluation_memory(
        model, skip if static else 0.0, number, load, suite.config["batch_size"], added
    )
    return Work(tokens, flops, passes * model.layers, read, memory)


def hours(seconds: Mapping[str, float]) -> dict[str, float]:
    """Machine -> hours, three digits."""
    return {name: round(value / 3600, 3) for name, value in seconds.items()}


def no_hours() -> dict[str, float]:
    """Machine -> 0 seconds."""
    return {machine.name: 0.0 for machine in MACHINES}
