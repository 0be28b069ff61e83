"""How far rounding may move a value, on any CPU: the one rule of the tests."""

from __future__ import annotations

import torch
from torch import Tensor

# The longest sum in a toy: a row of its FFN.
TERMS = 64
# Relative error of such a sum in float32.
ROUNDING = TERMS * torch.finfo(torch.float32).eps


def assert_near(result: Tensor, expected: Tensor, terms: int = TERMS) -> None:
    """Each value differs by at most ``terms`` eps of the largest expected value.

    A sum of n terms is off by at most n eps of their size, because instruction sets and threads
    add in different orders. Through the layers of a toy such errors grow and partly cancel.
    """
    bound = terms * torch.finfo(expected.dtype).eps * float(expected.detach().abs().max())
    torch.testing.assert_close(result, expected, rtol=0, atol=bound)
