"""HeRo's router by kernels: two launches per routed block, and their twin in plain PyTorch."""
