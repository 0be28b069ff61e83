"""Routed units as Triton kernels, each with a twin in plain PyTorch of the same signature.

Nothing here imports Triton before a kernel is launched; without it, or without a CUDA device, the
twins run. ``choose`` says where kernels can run; what else one asks of its tensors is said beside.
"""
