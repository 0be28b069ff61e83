"""The demo world: procedural knowledge, nine tasks about it, and a small backbone trained on it."""
