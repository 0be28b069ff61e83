"""Check a suite before anything costly runs: params of every row, backbones, tokenizers.

Writes the complete config as results/{suite}/suite.json, which the report reads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods import load_method
from methods.core.jsonfile import parse_json
from methods.core.model.backbone import check_weights
from methods.core.model.folder import read_config, read_tokenizer, window_of
from workflows.runtime.files import write_json
from workflows.runtime.program import run, step_parser
from workflows.suite.checks import is_local
from workflows.suite.job import Job
from workflows.suite.jobs import Suite, read_suite
from workflows.timing.cases import check_length


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--config", required=True, metavar="JSON", help="the suite's config")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE.json", help="the complete config"
    )
    return parser.parse_args()


def main() -> None:
    """Check and write."""
    args = arguments()
    suite = read_suite(parse_json(args.config, "--config"))
    check_rows(suite)
    for name in suite.config["backbones"]:
        folder = Path(suite.backbone_folder(name))
        if not folder.is_dir() and not is_local(suite.config["backbones"][name]["path"]):
            # The prepare stage makes it, and the suite is checked again then.
            continue
        config = read_config(folder)
        check_windows(suite, name, window_of(config))
        check_weights(folder, config)
        tokenizer = read_tokenizer(folder, config)
        if tokenizer is None:
            raise ValueError(f"backbone '{name}' in {folder} has no tokenizer; tasks are text")
        chats = [entry.task for entry in suite.entries if entry.chat_template]
        if chats and tokenizer.chat_template is None:
            raise ValueError(
                f"backbone '{name}' in {folder} has no chat template, which "
                f"{', '.join(chats)} would take (chat_template: true)"
            )
    write_json(args.out, dict(suite.config))
    print(f"suite {suite.name}: {len(suite.jobs)} runs")


def check_windows(suite: Suite, backbone: str, window: int) -> None:
    """Compare the lengths that a suite names with the window of a backbone.

    Raises:
        ValueError: A length is above the window; the message names its key.
    """
    length = suite.config["backbones"][backbone].get("max_length", window)
    if length > window:
        raise ValueError(
            f"suite config, backbones.{backbone}: max_length is {length}, "
            f"the backbone's window is {window} tokens"
        )
    cases = suite.config.get("timing", {})
    for key in (key for key in ("prefill", "decode", "training") if key in cases):
        check_length(f"suite config, timing.{key}:", cases[key], window)


def check_rows(suite: Suite) -> None:
    """Build all params of every row, and see that a row that trains has the texts for it.

    Raises:
        ValueError: A name, a value or the texts do not fit; the message names the row.
    """
    for job in {(job.row, json.dumps(job.params), job.match): job for job in suite.jobs}.values():
        if job.method.trained:
            check_trained(job, suite.config["data"])
        try:
            load_method(job.method.name, job.params)
        except ValueError as error:
            raise ValueError(f"suite config, '{job.row}': {error}") from error


def check_trained(job: Job, data: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare what a trained row reads with the suite's texts.

    Raises:
        ValueError: A part is not there, or knows no answers where the protocol needs them.
    """
    if "training" not in data:
        raise ValueError(f"suite config, data: '{job.row}' trains, so it needs data.training")
    if not job.method.is_matched(job.budget):
        return
    probe = next((part for part in ("probe", "validation") if part in data), None)
    if probe is None:
        raise ValueError(
            f"suite config, data: '{job.row}' meets budgets on data.probe or data.validation, and "
            "neither is there"
        )
    for part in ("training", probe):
        if job.match == "split" and data[part]["source"].endswith((".txt", ".npy")):
            raise ValueError(
                f"suite config, data.{part}: match 'split' needs texts with answers, which "
                f"{data[part]['source']} has not (.jsonl with prompt and completion, or messages)"
            )


if __name__ == "__main__":
    run(main)
