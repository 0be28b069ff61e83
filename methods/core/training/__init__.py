"""One training loop under every trained row."""
