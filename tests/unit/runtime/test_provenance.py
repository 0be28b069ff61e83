"""What a record says of the machine."""

from __future__ import annotations

import pytest
import torch

from tests import steps
from workflows.runtime.arithmetic import ARITHMETIC
from workflows.runtime.provenance import provenance


def test_the_instruction_set_is_the_one_that_torch_reports() -> None:
    told = provenance()["hardware"]["cpu_capability"]
    assert told == torch.backends.cpu.get_cpu_capability()


def test_other_arithmetic_reaches_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ARITHMETIC["baseline"].environment.items():
        monkeypatch.setenv(name, value)
    code = "from workflows.runtime import provenance; print(provenance.cpu_capability())"
    done = steps.python("-c", code)
    assert done.stdout.strip() == "DEFAULT", done.stderr
