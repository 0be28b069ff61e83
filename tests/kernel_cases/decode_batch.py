"""The launches of a routed FFN for a batch of tokens, which use tensor cores."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiled import Case
from tests.kernel_cases.decode import decode_cases


def cases() -> Iterator[Case]:
    """Both widths of the tile, a slim SwiGLU and no adapter."""
    yield from decode_cases("llama31_8b", 8)
    yield from decode_cases("llama2_13b", 16)
    yield from decode_cases("llama2_7b", 4, "none")
    yield from decode_cases("llama2_13b", 8, "slim")
