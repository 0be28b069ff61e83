"""Wrong arguments of scoring and timing: one sentence, a failing status, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import steps


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tasks", "toy_choise"], "unknown task 'toy_choise' (tasks here: "),
        (["--tasks", ","], "--tasks names no task"),
        (["--tasks", "[1"], "--tasks is not valid JSON"),
        (["--tasks", '[{"task": "piqa", "shots": 1}]'], "keys are task, metric"),
        (["--tasks", "perplexity:gone.txt"], "text file gone.txt of task"),
        (["--tasks", "piqa", "--limit", "0"], "--limit is 0, must be at least 1"),
        (["--tasks", "piqa", "--batch-size", "0"], "--batch-size is 0, must be at least 1"),
        (["--tasks", "piqa", "--task-dir", "gone"], "--task-dir gone is no folder"),
        (["--tasks", "piqa", "--threads", "0"], "--threads is 0, must be at least 1"),
        (["--tasks", "piqa", "--device", "tpu"], "device 'tpu' is unknown"),
    ],
)
def test_wrong_scoring_arguments(
    more: list[str], said: str, refuse: steps.Refuse, llama: Path, tmp_path: Path
) -> None:
    assert said in refuse("score", "--model", llama, *more, "--out", tmp_path / "record.json")


def test_an_unknown_metric(
    refuse: steps.Refuse, llama: Path, task_folder: Path, tmp_path: Path
) -> None:
    tasks = '[{"task": "toy_choice", "metric": "f1", "limit": 2}]'
    command = ["--model", llama, "--tasks", tasks, "--task-dir", task_folder]
    said = refuse("score", *command, "--out", tmp_path / "record.json")
    assert said == "task 'toy_choice' has no metric 'f1' (it has: acc, acc_norm)"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--method hero --shape cpu_16 --bypass nan",
            "--bypass 'nan' must be rates from 0 to 1, such as 0.25",
        ),
        ("--method hero", "--method needs --shape"),
        (
            "--method hero --shape cpu_16 --modes static --decode 1x16385",
            "--decode 1x16385: the backbone's window is 16384 tokens",
        ),
        (
            "--method skipgpt-rt --shape cpu_16 --modes prefill,training",
            "--modes training: 'skipgpt-rt' routes more than one FFN per layer, whose bound is not",
        ),
        ("--method mod-d --shape cpu_16", "row 'mod-d' needs 'capacity' of a fit; measure it with"),
        ("--method dense --shape cpu_16", "row 'dense' is not routed; measure it with --model"),
        ("--method hero --shape cpu_16 --texts t.jsonl", "--texts is for --model; with --method"),
        (
            "--model m --texts t.jsonl --modes block",
            "--modes block: with --model they are prefill, ",
        ),
    ],
)
def test_what_cannot_be_timed(words: str, said: str, refuse: steps.Refuse, tmp_path: Path) -> None:
    out = ["--device", "cpu", "--out", tmp_path / "speed.json"]
    assert refuse("time", *words.split(), *out).startswith(said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--grid", "0.01,0"], "--grid '0.01,0' must be learning rates above 0"),
        (["--grid", "nan"], "--grid 'nan' must be learning rates above 0"),
        (
            ["--suite", "SECOND"],
            "--suite: rows are tuned on one backbone, and it has several (demo",
        ),
    ],
)
def test_wrong_tuning_arguments(
    more: list[str], said: str, refuse: steps.Refuse, tmp_path: Path
) -> None:
    second = tmp_path / "second.yaml"
    second.write_text("backbones: {other: {path: workflows/demo/backbone}}")
    words = [second if word == "SECOND" else word for word in more]
    place = ["--data", tmp_path, "--out", tmp_path / "out.yaml"]
    assert refuse("tune", "--suite", "demo", *words, *place).startswith(said)


def test_status_shows_a_line_at_least(refuse: steps.Refuse) -> None:
    assert refuse("status", "--suite", "demo", "--lines", "0").startswith("--lines is 0, must be")
