"""HeRo's router for decoding: two launches per routed block, and their twin in plain PyTorch."""
