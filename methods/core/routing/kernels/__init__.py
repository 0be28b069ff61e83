"""Routed units as Triton kernels, each with a twin in plain PyTorch of the same signature.

Nothing here imports Triton before a kernel is launched; without it, or without a CUDA device, the
twins run. ``choose`` is the one place that decides between the two.
"""

from methods.core.routing.kernels.choose import available

__all__ = ["available"]
