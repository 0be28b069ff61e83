"""lm-eval's own command line, for compressed folders: `python -m workflows.steps.lm_eval ...`.

`--model skipbench --model_args pretrained=DIR` counts and scores as the score step does;
`--model hf` loads the same folders through transformers. All other options are lm-eval's; tasks of
this project need `--include_path workflows/evaluation/tasks`. Task files are held against the same
rules as by the score step.
"""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

import yaml
from lm_eval.__main__ import cli_evaluate

import workflows.evaluation.registered  # noqa: F401
from workflows.evaluation.loading import confine_templates
from workflows.evaluation.taskfiles import as_list, check_files
from workflows.runtime.program import run, set_up_torch


def included() -> list[Path]:
    """Folders of task files: those of lm-eval's `--include_path`, and of the file of `--config`.

    Raises:
        ValueError: That file is no YAML mapping.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--include_path", action="append", default=[])
    parser.add_argument("--config", "-C", action="append", default=[])
    args, _ = parser.parse_known_args()
    named = [*args.include_path, *chain.from_iterable(map(_of_config, args.config))]
    return [Path(folder) for folder in named]


def _of_config(name: str) -> list[str]:
    """Key `include_path` of a config file of lm-eval."""
    try:
        config = yaml.safe_load(Path(name).read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"--config {name} is not valid YAML: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"--config {name} is no mapping of keys")
    return [str(folder) for folder in as_list(config.get("include_path"))]


def main() -> None:
    """Register the model class and confine the tasks, then run lm-eval."""
    for folder in included():
        check_files(folder)
    confine_templates()
    set_up_torch(threads=1)
    cli_evaluate()


if __name__ == "__main__":
    run(main)
