"""How the methods are compared: jobs, steps, evaluation, statistics, the demo world."""

from pathlib import Path

# The checkout.
ROOT = Path(__file__).resolve().parents[1]
