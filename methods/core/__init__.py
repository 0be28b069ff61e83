"""What methods share: the backbone, surgery on it, per-token routing, counting, data, files."""
