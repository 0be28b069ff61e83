"""A plan as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workflows.suite.jobs import Suite
from workflows.suite.machines import GB, MACHINES, Machine


def opening(suite: Suite) -> str:
    """What a run of a suite says first: its plan, or why there is none."""
    try:
        # Methods state their cost in files that import torch. The Snakefile imports this module for
        # every job list, and under `--sdm conda` Snakemake's own Python may have no torch.
        from workflows.suite.plan import plan

        return "\n".join(plan_lines(plan(suite)))
    except (ImportError, ValueError) as error:
        reason = str(error)
    # A method's file may fail in any other way, and a plan is no reason to stop a run.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return f"No plan of what suite {suite.name} costs: {reason}"


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """The plan as text."""
    machines = [machine.name for machine in MACHINES]
    head = ["row", "fits", "evals", "trained Mtok", "scored Mtok", "PFLOP"]
    head += [f"{name} h" for name in machines] + ["fit GB", "eval GB"]
    table = [head]
    for name, cost in (*plan["rows"].items(), ("total", plan["total"])):
        cells = [name, f"{cost['fits']}", f"{cost['evaluations']}"]
        cells += [f"{cost[key] / 1e6:,.1f}" for key in ("training_tokens", "scored_tokens")]
        cells += [f"{cost['flops'] / 1e15:,.1f}", *(_short(cost["hours"][m]) for m in machines)]
        cells += [f"{cost['fit_memory_gb']:.1f}", f"{cost['evaluation_memory_gb']:.1f}"]
        table.append(cells)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = [
        "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    ]
    return [
        f"Suite {plan['suite']}; every figure is derived, none is measured.",
        *rows,
        *plan_notes(plan),
    ]


def _short(value: float) -> str:
    """Two decimals below ten, none above."""
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def plan_notes(plan: Mapping[str, Any]) -> list[str]:
    """What the table leaves out."""
    total, open_jobs, disk = plan["total"], plan["left"], plan["disk"]
    sizes = {name: size for name, size in disk.items() if name != "basis"}
    together = sizes.pop("static_models_side_by_side")
    kinds = ", ".join(f"{name.replace('_', ' ')} {size:g}" for name, size in sizes.items())
    sentences = [f"Disk in GB (derived): {kinds}."]
    if together != sizes["static_models"]:
        sentences[0] += (
            f" Where all untrained fits run side by side, as on a cluster, static models take "
            f"{together:g}."
        )
    for machine in MACHINES:
        if machine.jobs > 1:
            longest = total["longest_run_hours"][machine.name]
            sentences.append(
                f"{machine.name}: {machine.jobs} runs side by side; the longest takes "
                f"{_short(longest)} h on its core."
            )
        elif _too_small(total, machine):
            sentences.append(f"{machine.name}: the largest run needs more memory than it has.")
    if open_jobs["fits"] < total["fits"]:
        records = total["fits"] - open_jobs["fits"]
        first = MACHINES[0].name
        hours = _short(open_jobs["hours"][first])
        sentences.append(f"{records} runs have records; the others take {hours} {first} h.")
    if plan["not_counted"]:
        sentences.append(
            f"Not counted, since their tokens are not known: {', '.join(plan['not_counted'])}."
        )
    return sentences


def _too_small(total: Mapping[str, Any], machine: Machine) -> bool:
    """Whether a machine lacks the memory for the largest run."""
    peak = max(total["fit_memory_gb"], total["evaluation_memory_gb"])
    return bool(machine.memory and peak * GB > machine.memory)
