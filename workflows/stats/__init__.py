"""Statistics on arrays and frames: no torch, no files."""
