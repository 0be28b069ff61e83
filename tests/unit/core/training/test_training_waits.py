"""How often an update waits for its device: a GPU idles while the host reads from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from methods.core.training.packing import Rows
from tests.toys.training import build_row, trainer_for

READS = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal")


class Waits(TorchDispatchMode):
    """Counts what would wait for a GPU, from when rows are moved there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.counts, self.moved = Counter[str](), False
        to, tolist = Rows.to, Tensor.tolist

        def moving(rows: Rows, device: torch.device) -> Rows:
            self.moved = True
            return to(rows, device)

        def listing(values: Tensor) -> list[Any]:
            self.counts["tolist"] += self.moved
            return tolist(values)

        patch.setattr(Rows, "to", moving)
        patch.setattr(Tensor, "tolist", listing)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if self.moved and name in READS:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("row", "dispatched"), [("lora", 0), ("skipgpt-rt", 0), ("hero", 4)])
def test_an_update_fetches_its_figures_once(
    row: str, dispatched: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_row(row) if row == "skipgpt-rt" else None
    trainer = trainer_for(row, tmp_path, updates=1, model=model)
    trainer.model.train()
    with Waits(monkeypatch) as waits:
        trainer._update(0, trainer.documents[:4])
    # Each dispatched unit asks how many tokens execute it.
    assert waits.counts == Counter(tolist=1, _local_scalar_dense=dispatched)
