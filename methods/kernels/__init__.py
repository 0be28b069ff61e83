"""What a GPU runs: routed units as Triton kernels, each with a twin in plain PyTorch.

A twin has the signature of its kernel. Only files of this folder import Triton, and only when a
kernel is launched. Without Triton, or without a CUDA device, the twins run. ``choose`` says where
kernels can run; further conditions are in a kernel's own file. ``hero`` has the kernels of one
method.
"""
