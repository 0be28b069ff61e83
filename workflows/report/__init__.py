"""From records to tables, figures and the page."""

# What the CSV files of a report are called.
FRAMES = (
    "retain", "measures", "ranks", "differences", "budgets", "costs", "speeds", "noise",
    "scores", "paper_values", "paper_order", "paper_agreement",
)  # fmt: skip
