"""Timing of a row against the dense model: prompts, decoding, training, with bounds."""
