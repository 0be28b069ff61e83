"""What a GPU runs: routed units as Triton kernels, each with a twin in plain PyTorch.

A twin has the signature of its kernel. No file imports Triton before a kernel is launched, and
nothing outside of this room does at all; without it, or without a CUDA device, the twins run.
``choose`` says where kernels can run; what else one asks of its tensors is said beside it.
``hero`` holds the kernels of one method.
"""
