"""Sums over the processes of a training run; with one process they change nothing."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor, nn


def rank_and_world() -> tuple[int, int]:
    """The number of this process, from 0, and the number of all processes."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def sum_over_processes(values: Tensor) -> None:
    """Sum a tensor over all processes, in place."""
    if rank_and_world()[1] > 1:
        dist.all_reduce(values)


def sum_gradients(parameters: Collection[nn.Parameter]) -> None:
    """Sum gradients over all processes; a parameter that no token reached has gradient zero."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if rank_and_world()[1] > 1:
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
