"""Snapshots of a training run: parameters, optimizer and log in one safetensors file."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from methods.core.data import Document
from methods.core.training.processes import rank_and_world

NAME = "snapshot.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
# By size in bytes.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def write_snapshot(
    folder: Path,
    trained: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
) -> None:
    """Replace the snapshot in ``folder``; if the write is interrupted the old one stays."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"parameter/{n}": p.detach().cpu().contiguous() for n, p in trained.items()}
    for name, parameter in trained.items():
        for moment in MOMENTS:
            tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment].cpu().contiguous()
    temporary = folder / f".{NAME}.part"
    save_file(tensors, temporary, metadata={"state": json.dumps(state)})
    with temporary.open("rb") as stream:
        # Else a power cut could leave an empty file under the new name.
        os.fsync(stream.fileno())
    temporary.replace(folder / NAME)


def read_snapshot(
    folder: Path,
    trained: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    identity: str,
) -> dict[str, Any] | None:
    """Fill parameters and optimizer from the snapshot in ``folder``.

    Args:
        folder: Of the run.
        trained: Parameters by name.
        optimizer: Of these parameters.
        identity: Of the run; the snapshot of a run with other params, data or model is not used.

    Returns:
        The state given to :func:`write_snapshot`, or None if there is no snapshot of this run.

    Raises:
        ValueError: The snapshot is damaged.
    """
    file = folder / NAME
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as stored:
            state: dict[str, Any] = json.loads(stored.metadata()["state"])
            found = state["identity"]
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{file} is damaged; remove it to start anew ({error})") from error
    if found != identity:
        warnings.warn(
            f"{file} is of other params, data or weights: training starts anew", stacklevel=2
        )
        return None
    for name, parameter in trained.items():
        with torch.no_grad():
            parameter.copy_(tensors[f"parameter/{name}"])
        optimizer.state[parameter] = {
            moment: tensors[f"{moment}/{name}"].to(parameter.device) for moment in MOMENTS
        }
    return state


def tell_other_code(folder: Path) -> None:
    """Say so if runs of other code, whose folders lie beside this one, left a snapshot."""
    if rank_and_world()[0] > 0 or (folder / NAME).is_file():
        return
    for other in sorted(folder.parent.glob(f"*/{NAME}")):
        print(f"a snapshot of other code lies in {other.parent}: training starts anew", flush=True)


def earlier_seconds(folder: Path) -> float:
    """How long the run whose last snapshot is in ``folder`` trained before it was continued."""
    if not (folder / NAME).is_file():
        return 0.0
    with safe_open(folder / NAME, framework="pt") as stored:
        return float(json.loads(stored.metadata()["state"])["earlier"])


def digest(settings: str, documents: Iterable[Document], frozen: Sequence[Tensor]) -> str:
    """The identity of a run: equal for runs that may continue each other's snapshots.

    Args:
        settings: Everything that is small.
        documents: All that the run reads; their ids and other fields enter.
        frozen: Weights that are not trained. The sums of their bits enter, which no order of
            summation changes: another number of threads may continue a run.
    """
    result = hashlib.sha256(settings.encode())
    for ids, *fields in documents:
        result.update(repr((len(ids), fields)).encode())
        result.update(np.asarray(ids, dtype=np.int32).tobytes())
    bits = [weight.detach().view(INTEGERS[weight.element_size()]) for weight in frozen]
    result.update(repr([int(numbers.sum(dtype=torch.int64)) for numbers in bits]).encode())
    return result.hexdigest()
