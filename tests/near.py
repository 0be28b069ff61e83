"""Equal but for rounding, whatever the CPU: the one rule of the tests."""

from __future__ import annotations

import torch
from torch import Tensor

# The longest sum in a toy, that of its FFN.
TERMS = 64
# Of a number that stands for such a sum in float32.
ROUNDING = TERMS * torch.finfo(torch.float32).eps


def assert_near(found: Tensor, expected: Tensor, terms: int = TERMS) -> None:
    """Found equals expected but for ``terms`` eps of the largest expected value.

    A sum of n terms is off by at most n eps of their size. Instruction sets and threads add in
    other orders; through the layers of a toy the errors of such sums grow and partly cancel.
    """
    bound = terms * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)
