"""The console command, and what all steps share on the command line: help, order of refusals."""

from __future__ import annotations

import argparse
import importlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from methods import discover, load_method
from tests import steps
from workflows import ROOT, console
from workflows.runtime.provenance import git

# lm-eval has a command line of its own.
STEPS = sorted({file.stem for file in (ROOT / "workflows/steps").glob("[a-z]*.py")} - {"lm_eval"})


class Caught(Exception):
    """Holds the parser of a step."""


def parser_of(step: str, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    def parse_args(parser: argparse.ArgumentParser) -> None:
        raise Caught(parser)

    module = importlib.import_module(f"workflows.steps.{step}")
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    with pytest.raises(Caught) as caught:
        module.arguments()
    return caught.value.args[0]


@pytest.mark.parametrize("step", STEPS)
def test_every_option_has_help_with_its_default(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = parser_of(step, monkeypatch)
    formatter = parser._get_formatter()
    assert len(parser._actions) > 1
    for action in parser._actions[1:]:
        assert action.help, action.dest
        told = formatter._expand_help(action)
        if action.required:
            assert told.endswith("(required)") or not action.option_strings
        elif action.default in (None, ""):
            assert "default: " in action.help, action.dest
        else:
            shown = "off" if action.default is False else str(action.default)
            assert told.endswith(f"(default: {shown})")
            assert "default" not in action.help, action.dest


def test_the_command_lists_its_commands_and_refuses_others() -> None:
    said = steps.python("-m", "workflows.console")
    assert said.returncode == 0
    assert [line.split()[0] for line in said.stdout.splitlines()[2:-2]] == list(console.COMMANDS)
    version = steps.python("-m", "workflows.console", "--version").stdout.split()
    assert version == [
        "skipbench",
        f"{metadata.version('skipbench')},",
        "commit",
        git("rev-parse", "HEAD") or "unknown",
    ]
    wrong = steps.python("-m", "workflows.console", "fti")
    assert wrong.returncode == 2
    assert steps.sentence(wrong.stderr).startswith(
        "there is no command 'fti' (rows, fetch, task_data, fit, "
    )


@pytest.mark.parametrize("command", sorted({*console.COMMANDS} - {"lm_eval"}))
def test_a_command_is_its_step(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["skipbench", command, "--help"])
    with pytest.raises(SystemExit) as ended:
        console.main()
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: skipbench {command} ")
    parser = parser_of(command, monkeypatch)
    assert said.partition("\n\n")[2] == parser.format_help().partition("\n\n")[2]


def test_rows_are_listed_with_all_that_makes_them() -> None:
    said = steps.python("-m", "workflows.console", "rows")
    assert said.returncode == 0, said.stderr
    blocks = {block.splitlines()[0]: " ".join(block.split()) for block in said.stdout.split("\n\n")}
    assert list(blocks) == list(discover())
    for name, row in discover().items():
        assert f"kind {row.kind}, {'' if row.trained else 'not '}trained" in blocks[name]
        assert f"source {' '.join(row.source.split())} params" in blocks[name]
        params = [f"{key}={value!r}" for key, value in vars(load_method(name).params).items()]
        told = blocks[name].partition(" params ")[2]
        assert told == " ".join(", ".join(params or ["none"]).split())


def test_rows_takes_names() -> None:
    said = steps.python("-m", "workflows.steps.rows", "laco", "dense")
    assert [block.split()[0] for block in said.stdout.split("\n\n")] == ["laco", "dense"]


def test_a_model_of_the_hub_is_to_be_fetched_first(
    refuse: steps.Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "HuggingFaceTB/SmolLM2-135M"
    told = (
        f"backbone folder {name} does not exist or is no folder; a model of the hub is fetched "
        "first: python -m workflows.steps.fetch "
        f"""--source '{{"path": "hub:{name}"}}' --out SmolLM2-135M"""
    )
    fit = ["--method", "random-skip", "--budget", "0.25", "--out", tmp_path / "out"]
    assert refuse("fit", "--backbone", name, *fit) == told
    scoring = ["--tasks", "piqa", "--out", tmp_path / "record.json"]
    assert refuse("score", "--model", name, *scoring) == told
    for path in ("gone", "a/b/c", "/gone/model", "../model"):
        assert "fetch" not in refuse("fit", "--backbone", path, *fit)


FIT = ["fit", "--method", "hero", "--backbone", "BACKBONE", "--budget", "0.25", "--out", "OUT"]
TIMES = ["time", "--method", "hero", "--shape", "cpu_512", "--out", "OUT.json"]
TUNE = ["tune", "--suite", "demo", "--data", "DATA", "--out", "OUT.yaml"]
COST = ["cost", "--shape", "cpu_512", "--rows", "shortgpt", "--out", "OUT.json"]
CARD = ["model_card", "--model", "BACKBONE", "--data", "DATA", "--out", "OUT.md"]
EARLY = [
    (FIT, "no training file was given (--train), and 'hero' needs one"),
    ([*FIT, "--train", "gone.jsonl"], "training file gone.jsonl does not exist"),
    ([*FIT, "--train", "gone.tokens"], "gone.tokens is no whole folder of tokens"),
    ([*FIT, "--probe", "README.md"], "probe file README.md must end in .jsonl, .tokens or .npy"),
    ([*FIT, "--max-length", "0"], "--max-length is 0, must be at least 1"),
    ([*FIT, "--device", "tpu", "--train", "DATA/training.jsonl"], "device 'tpu' is unknown"),
    ([*TIMES, "--bypass", "0.2,x"], "--bypass '0.2,x' must be rates from 0 to 1"),
    ([*TIMES, "--bypass", "1.5"], "--bypass '1.5' must be rates from 0 to 1"),
    ([*TIMES, "--decode", "1x"], "'1x' must look like 1x512,8x2048"),
    ([*TIMES, "--prefill", "0x8"], "'0x8' must look like 1x512,8x2048"),
    ([*TIMES, "--budget", "2"], "budget 2.0 must be a number between 0 and 1"),
    ([*TIMES, "--rounds", "0"], "--rounds is 0, must be at least 1"),
    ([*TIMES, "--modes", "sleep"], "--modes: 'sleep' is unknown"),
    (
        ["time", "--model", "BACKBONE", "--texts", "gone.jsonl", "--out", "OUT.json"],
        "texts file gone.jsonl does not exist",
    ),
    ([*TIMES, "--method", "shortgpt"], "row 'shortgpt' is not routed; measure it with --model"),
    ([*TIMES, "--out", "DATA"], "is a folder, a file is to be written there"),
    ([*TUNE, "--grid", "1e-3,x"], "--grid '1e-3,x' must be learning rates"),
    ([*TUNE, "--updates", "0"], "--updates is 0, must be at least 1"),
    ([*TUNE, "--data", "gone"], "training file gone/training.jsonl does not exist"),
    ([*TUNE, "--suite", "gone.yaml"], "suite 'gone.yaml' is no file"),
    ([*TUNE, "--rows", "shortgpt"], "'shortgpt' is not a trained row of the suite"),
    ([*TUNE, "--out", "DATA"], "is a folder, a file is to be written there"),
    ([*COST, "--budget", "1"], "budget 1.0 must be a number between 0 and 1"),
    ([*COST, "--length", "0"], "--length is 0, must be at least 1"),
    ([*COST, "--rows", "hero"], "--rows: 'hero' trains; the time step times training"),
    ([*CARD, "--params", "{"], "--params is not valid JSON"),
    ([*CARD, "--data", "gone"], "training file gone/training.jsonl does not exist"),
]


@pytest.mark.parametrize(("command", "said"), EARLY, ids=lambda value: str(value)[:60])
def test_arguments_are_refused_before_weights_are_read(
    command: list[str],
    said: str,
    refuse: steps.Refuse,
    llama: Path,
    data_files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*arguments: Any, **options: Any) -> None:
        raise AssertionError("weights are read or made")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", load)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_config", load)
    places = {"BACKBONE": str(llama), "DATA": str(data_files["training"].parent)}
    places |= {f"OUT{end}": str(tmp_path / f"out{end}") for end in ("", ".json", ".yaml", ".md")}
    words = [places.get(word, word.replace("DATA/", f"{places['DATA']}/")) for word in command]
    assert said in refuse(*words)


@pytest.mark.parametrize(("command", "offline"), [("fetch", "None"), ("fit", "1")])
def test_a_command_that_brings_models_may_ask_the_hub(
    command: str, offline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    code = (
        "import os, runpy, sys\n"
        f"sys.argv = ['skipbench', {command!r}, '--help']\n"
        "try: runpy.run_module('workflows.console', run_name='__main__')\n"
        "except SystemExit: print(os.environ.get('HF_HUB_OFFLINE'))"
    )
    assert steps.python("-c", code).stdout.splitlines()[-1] == offline
