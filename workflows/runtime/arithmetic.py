"""Other arithmetic on the same machine: what stands in for another CPU when a fit is repeated.

Training is chaotic: where an instruction set or a number of threads rounds last bits otherwise,
gates flip, and a trained router ends points away.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Arithmetic:
    """How a fit computes.

    Args:
        environment: Variables that torch, oneDNN and MKL read when they are loaded. A CPU that
            lacks an instruction set runs as it can; the record says what torch reports.
        threads: Of torch.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1

    @property
    def prefix(self) -> str:
        """What stands before a command."""
        return shlex.join(["env", *(f"{name}={value}" for name, value in self.environment.items())])


ARITHMETIC = {
    "avx2": Arithmetic(
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        }
    ),
    "baseline": Arithmetic(
        {
            "ATEN_CPU_CAPABILITY": "default",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        }
    ),
    "two-threads": Arithmetic(threads=2),
}
