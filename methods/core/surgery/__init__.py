"""What static methods do to a model: remove, merge, narrow, slice; and what they observe."""
