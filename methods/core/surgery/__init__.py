"""What static methods do to weights."""
