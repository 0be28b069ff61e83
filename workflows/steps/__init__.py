"""The steps of the pipeline, each run as ``python -m workflows.steps.<step>``.

All steps after the prepare steps work offline. Libraries read these variables when they are
imported, so they are set here, before any step imports one. Values that the user exports win.
"""

import gc
import os
import sys

# Under `python -m` argv[0] is "-m" until the module is found: this process is a step. Imports leave
# no garbage, so the collector is off until `run` starts the step.
if sys.argv[0] == "-m":
    gc.disable()
PREPARE = ("data", "fetch", "task_data")
# The console command names its step in argv[0].
RUNS = {*sys.orig_argv, sys.argv[0].replace("skipbench ", "workflows.steps.")}
if RUNS.isdisjoint(f"workflows.steps.{step}" for step in PREPARE):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Seconds between two states of a progress bar: in a log each state is a line.
os.environ.setdefault("TQDM_MININTERVAL", "2" if sys.stderr.isatty() else "30")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# Numpy's sums can depend on the number of threads; results must not.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
