"""What the clock needs."""
