"""lm-eval's own command line, for compressed folders: `python -m workflows.steps.lm_eval ...`.

`--model skipbench --model_args pretrained=DIR` counts and scores as the score step does;
`--model hf` loads the same folders through transformers. All other options are lm-eval's; tasks of
this project need `--include_path workflows/evaluation/tasks`.
"""

from __future__ import annotations

from lm_eval.__main__ import cli_evaluate

import workflows.evaluation.registered  # noqa: F401
from workflows.runtime.program import run, set_up_torch


def main() -> None:
    """Register the model class, then run lm-eval."""
    set_up_torch(threads=1)
    cli_evaluate()


if __name__ == "__main__":
    run(main)
