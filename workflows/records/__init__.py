"""The result of one job: its types, its files, and the part that comes from a fitted model."""

# Column of the frame of items with the texts of each, as JSON.
SAMPLE = "sample"
# What a fit decided: in the folder of its model, and by this ending beside its record.
DECISIONS = "decisions.json"
# Params that change no number: where one changes, nothing is fitted again.
IDLE = {"snapshot_minutes"}
