"""Tiny random backbones, texts and tasks, and short runs on them."""
