"""HeRo's router by kernels: two launches per routed FFN, and their twin in plain PyTorch."""
