"""One piece of a timing run: what is measured at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from workflows.timing.modes import Timing


class Piece(NamedTuple):
    """A few lines of one mode and case; ``name`` says which.

    ``setup``: it measures nothing, and what follows needs it.
    ``trains``: it runs in torch's deterministic mode on a GPU too, as fits do. Inference does not:
    in that mode torch writes a static cache by a sort, a dozen kernels in place of one.
    """

    name: str
    measure: Callable[[], list[Timing] | None]
    trains: bool = False
    setup: bool = False

    def lines(self) -> list[Timing] | None:
        """What it measured; None if that took more memory than the GPU has.

        Raises:
            OutOfMemoryError: Of torch, in a setup.
        """
        try:
            return self.measure() or []
        except torch.OutOfMemoryError:
            if self.setup:
                raise
            print(f"{self.name}: more than the memory of the GPU", flush=True)
            return None
