"""The steps of the pipeline, each run as ``python -m workflows.steps.<step>``.

Everything behind the prepare steps works offline; libraries read these variables when they are
imported, so they are set here, before any step imports one. What the user exports stands.
"""

import gc
import os
import sys

# Python's name for a module that it is still looking for: this process is a step. What its imports
# leave behind is never garbage, so the collector rests until `run` starts the step.
if sys.argv[0] == "-m":
    gc.disable()
PREPARE = ("data", "fetch", "task_data")
if not any(f"workflows.steps.{step}" in sys.orig_argv for step in PREPARE):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Seconds between two states of a progress bar: each is a line of its own in a log.
os.environ.setdefault("TQDM_MININTERVAL", "2" if sys.stderr.isatty() else "30")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# Numpy's sums may follow the number of threads, and numbers must not.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
