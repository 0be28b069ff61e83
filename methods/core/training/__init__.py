"""Training: documents, packing, the loss, the loop, LoRA, snapshots."""
