"""A suite's cost per row and in total, as JSON; all figures are derived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflows import ROOT
from workflows.suite.checks import FROM_TASKS
from workflows.suite.costs import CHAT, JobCost, job_cost
from workflows.suite.job import FIDELITY
from workflows.suite.jobs import Suite
from workflows.suite.load import unknown_tasks
from workflows.suite.machines import GB, MACHINES

# Hub data sets: documents and their bytes. PG19's validation split is 50 books.
DATASETS = {"allenai/tulu-3-sft-mixture": (939_343, 3_102), "emozilla/pg19": (50, 420_000)}
OTHER_DATASET = (10_000, 3_000)


def plan(suite: Suite, root: Path = ROOT) -> dict[str, Any]:
    """What a suite costs.

    Args:
        suite: Read and checked.
        root: Checkout with results.

    Returns:
        ``rows`` by name and ``total``, each with fits, evaluations, tokens, operations, hours per
        machine and peak memory; ``left``, the total of the jobs without a record; ``disk`` in GB;
        ``not_counted``, tasks and parts of the data whose tokens are not known. All derived, none
        measured.

    Raises:
        ValueError: A backbone has neither a config nor a published shape, or a param is wrong.
    """
    costs = [job_cost(suite, job, root) for job in suite.jobs]
    extra = repeats(suite)
    rows: dict[str, list[JobCost]] = {}
    for cost in costs:
        rows.setdefault(cost.job.row, []).append(cost)
    open_costs = [cost for cost in costs if not (root / cost.job.folder / "record.json").is_file()]
    return {
        "suite": suite.name,
        "basis": "derived",
        "rows": {name: totals(members, extra) for name, members in rows.items()},
        "total": totals(costs, extra),
        "left": totals(open_costs, extra),
        "disk": disk(suite, costs),
        "not_counted": [*unknown_tasks(suite.entries), *_unknown_texts(suite)],
    }


def _unknown_texts(suite: Suite) -> list[str]:
    """Parts of the data that fits or rows run on and of which nothing says how many texts."""
    data = suite.config["data"]
    parts = ("calibration", "probe" if "probe" in data else "validation", FIDELITY)
    counted = [
        part for part, spec in data.items() if "rows" in spec or spec["source"] == FROM_TASKS
    ]
    return [f"data.{part}" for part in parts if part in data and part not in counted]


def repeats(suite: Suite) -> Counter[str]:
    """Folder of a job -> evaluations beyond its own, for the noise floor."""
    return Counter(file.split("/noise/")[0] for file in suite.noise_files())


def totals(costs: Sequence[JobCost], extra: Mapping[str, int]) -> dict[str, Any]:
    """The sums over jobs, and the peaks."""
    evaluations = 0
    trained = scored = flops = 0.0
    seconds, longest = ({machine.name: 0.0 for machine in MACHINES} for _ in range(2))
    for cost in costs:
        times = 1 + extra.get(cost.job.folder, 0)
        evaluations += times
        trained += cost.fit.tokens
        scored += times * cost.evaluation.tokens
        flops += cost.fit.flops + times * cost.evaluation.flops
        for machine in MACHINES:
            fit, evaluation = (cost.seconds(work, machine) for work in (cost.fit, cost.evaluation))
            seconds[machine.name] += (fit + times * evaluation) / machine.jobs
            longest[machine.name] = max(longest[machine.name], fit + evaluation)
    return {
        "basis": "derived",
        "fits": len(costs),
        "evaluations": evaluations,
        "training_tokens": round(trained),
        "scored_tokens": round(scored),
        "flops": flops,
        "hours": _hours(seconds),
        "longest_run_hours": _hours(longest),
        "fit_memory_gb": round(max((cost.fit.memory for cost in costs), default=0) / GB, 2),
        "evaluation_memory_gb": round(
            max((cost.evaluation.memory for cost in costs), default=0) / GB, 2
        ),
        "trained_parameters": max((cost.trained for cost in costs), default=0),
    }


def _hours(seconds: Mapping[str, float]) -> dict[str, float]:
    """Machine -> hours, three digits."""
    return {name: round(value / 3600, 3) for name, value in seconds.items()}


def disk(suite: Suite, costs: Sequence[JobCost]) -> dict[str, Any]:
    """GB by kind. Static models that are not kept, and snapshots, exist one at a time; where all
    untrained fits run side by side, static models do so together.
    """
    statics = {True: [0.0], False: [0.0]}
    for cost in costs:
        statics[suite.keeps(suite.groups[cost.job.row])].append(cost.own_weights)
    kept, passing = statics[True], statics[False]
    backbones = {cost.job.backbone: cost.weights for cost in costs}
    kinds = {
        "backbones": sum(backbones.values()),
        "trained_parts": sum(4.0 * cost.trained for cost in costs),
        "static_models": sum(kept) + max(passing),
        "snapshots": max((12.0 * cost.trained for cost in costs), default=0),
        "data": sum(data_bytes(spec) for spec in _sources(suite)),
    }
    kinds |= {"total": sum(kinds.values()), "static_models_side_by_side": sum(kept) + sum(passing)}
    return {"basis": "derived", **{name: round(size / GB, 2) for name, size in kinds.items()}}


def _sources(suite: Suite) -> list[dict[str, Any]]:
    return [spec for spec in suite.config["data"].values() if spec["source"].startswith("hub:")]


def data_bytes(spec: dict[str, Any]) -> float:
    """Bytes of a part of a hub data set: text, and four per token."""
    documents, size = DATASETS.get(spec["source"].removeprefix("hub:"), OTHER_DATASET)
    return float(min(spec.get("rows", documents), documents) * (size + 4 * CHAT))
