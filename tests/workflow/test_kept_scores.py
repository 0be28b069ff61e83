"""Scores that are kept are given again only where all that they follow from holds the same."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from methods import load_model
from tests import steps
from tests.toys.models import make_backbone
from tests.toys.tasks import make_tasks
from tests.workflow.conftest import toy_checkout
from workflows.suite import commands
from workflows.suite.jobs import read_suite

Snakemake = Callable[..., tuple[int, str]]


def score(model: Path, out: Path, *more: Any) -> dict[str, float]:
    """Task and metric -> value of a record that the step writes, and how many tokens it counted."""
    steps.call("score", "--model", model, "--out", out, "--device", "cpu", *more)
    record = json.loads(out.read_text())
    found = {f"{score['task']} {score['metric']}": score["value"] for score in record["scores"]}
    return found | {"tokens": record["rates"]["all"]["tokens"]}


def rescored(model: Path, change: Callable[[], None], folder: Path, *more: Any) -> None:
    """The same command says something else after a change: what a first call says."""
    before = score(model, folder / "a.json", *more)
    change()
    after = score(model, folder / "a.json", *more)
    assert after == score(model, folder / "b.json", *more)
    assert after != before


def test_texts_and_data_that_were_edited_are_scored_again(llama: Path, tmp_path: Path) -> None:
    folder = make_tasks(tmp_path / "tasks", items=8)
    text, data = tmp_path / "text.txt", tmp_path / "two.jsonl"
    text.write_text("w1 w2 w3 w4 w5")
    rows = (folder / "choice.jsonl").read_text().splitlines(keepends=True)
    data.write_text("".join(rows[:2]))
    local = {"dataset_kwargs": {"data_files": {"test": str(data)}}}
    entries = [
        {"task": "perplexity:text", "file": str(text)},
        {"task": "toy_choice", "metric": "acc", "config": local},
    ]

    def edit() -> None:
        text.write_text("w9 w8 w7 w6 w5")
        data.write_text("".join(rows[:3]))

    given = ["--tasks", json.dumps(entries), "--task-dir", folder]
    rescored(llama, edit, tmp_path, *given)


def merge_into(model: Path) -> None:
    """Other weights under the card that the fit wrote, as of LoRA that was merged."""
    healed = load_model(model)
    healed.model.layers[0].mlp.down_proj.weight.data.mul_(-3.0)
    healed.save_pretrained(model)


def swap_words(folder: Path) -> None:
    """Each word has the id of another one."""
    file = folder / "tokenizer.json"
    told = json.loads(file.read_text())
    words = told["model"]["vocab"]
    told["model"]["vocab"] = {w: 59 - n if n < 60 else n for w, n in words.items()}
    file.write_text(json.dumps(told))


def stop_early(folder: Path) -> None:
    """Every word ends what is written."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(60))}))


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ("shortgpt", merge_into),
        ("shortgpt", swap_words),
        ("dense", swap_words),
        ("dense", stop_early),
        ("", swap_words),
    ],
)
def test_a_model_that_was_changed_is_scored_again(
    row: str, change: Callable[[Path], None], llama: Path, data_files: Any, tmp_path: Path
) -> None:
    """A row without weights of its own has the words and ends of its backbone."""
    folder, text = make_tasks(tmp_path / "tasks", items=2), tmp_path / "text.txt"
    text.write_text("w1 w2 w3 w4 w5")
    backbone = shutil.copytree(llama, tmp_path / "backbone")
    given = ["--budget", 0.25, "--calibration", data_files["ids"]]
    model = steps.fit(row, backbone, tmp_path / "model", *given) if row else backbone
    changed = model if row == "shortgpt" else backbone
    tasks = ["--tasks", f"toy_write,perplexity:{text}", "--task-dir", folder]
    rescored(model, lambda: change(changed), tmp_path, *tasks)


def test_a_model_that_only_moved_is_not(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("w1 w2 w3 w4 w5")
    given = ["--tasks", f"perplexity:{tmp_path / 'text.txt'}"]
    model = shutil.copytree(llama, tmp_path / "model")
    score(model, tmp_path / "a.json", *given)
    (kept,) = (tmp_path / "a.tasks").glob("perplexity*.json")
    before = kept.stat().st_ino, kept.stat().st_mtime_ns
    moved = shutil.copytree(model, tmp_path / "moved", copy_function=shutil.copyfile)
    score(moved, tmp_path / "a.json", *given)
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("step", "ending"), [("score", ".json"), ("probe", ".jsonl"), ("data", ".jsonl")]
)
def test_names_of_two_records_share_no_file_beside_them(
    step: str, ending: str, refuse: steps.Refuse, llama: Path, tmp_path: Path
) -> None:
    given = {
        "score": ["--model", llama, "--tasks", "demo_facts"],
        "probe": ["--tasks", "demo_facts", "--rows", 1],
        "data": ["--part", "probe", "--source", '{"source": "demo", "rows": 2}'],
    }[step]
    out = tmp_path / "run-0.25"
    assert refuse(step, *given, "--out", out) == f"--out {out} must end in {ending}"


RECORD = "results/toy/small/random-skip/b25/s42/record.json"


def run(copy: Path, run_snakemake: Snakemake) -> tuple[Any, str]:
    """Scores of the record, and what was printed."""
    status, said = run_snakemake(copy, RECORD, "--configfile", "toy.yaml", "--cores", "2")
    assert status == 0, said
    return told(copy / RECORD), said


def told(record: Path) -> Any:
    held = json.loads(record.read_text())
    return held["scores"], held["rates"], held["units"]


def fresh(copy: Path, folder: Path) -> Any:
    """The same of a first run, step by step."""
    suite = read_suite(yaml.safe_load((copy / "toy.yaml").read_text()), copy)
    job, probe, model = suite.find(*RECORD.split("/")[2:6]), folder / "p.jsonl", folder / "model"
    steps.call("data", "--part", "probe", "--source", suite.data_source("probe"), "--out", probe)
    fit = [*shlex.split(commands.fit(suite, job)), "--device", "cpu", "--probe", probe]
    steps.call("fit", *fit, "--backbone", "toy/backbone", "--out", model)
    steps.call("score", "--model", model, *given_of(copy), "--out", folder / "record.json")
    return told(folder / "record.json")


def given_of(copy: Path) -> list[str]:
    """What the suite gives the score step beside a model."""
    suite = read_suite(yaml.safe_load((copy / "toy.yaml").read_text()), copy)
    words = shlex.split(commands.score(suite, suite.find(*RECORD.split("/")[2:6])))
    return ["--tasks", suite.tasks_json, *words, "--device", "cpu"]


def replace(file: Path, text: str) -> None:
    """Put another, older file in the place of one."""
    file.write_text(text)
    os.utime(file, (10**9, 10**9))


@pytest.mark.long
def test_a_suite_whose_files_were_edited_ends_as_a_fresh_run(
    tmp_path: Path, run_snakemake: Snakemake, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = toy_checkout(tmp_path / "checkout")
    suite = yaml.safe_load((copy / "toy.yaml").read_text())
    suite |= {"rows": ["dense", "random-skip"], "data": {"probe": suite["data"]["probe"]}}
    suite = {key: value for key, value in suite.items() if key not in ("timing",)}
    (copy / "toy.yaml").write_text(yaml.safe_dump(suite))
    tasks, task = copy / "toy/tasks", copy / "toy/tasks/toy_write.yaml"
    base = yaml.safe_load(task.read_text())
    task.write_text("include: base\ntask: toy_write\n")
    (tasks / "base").write_text(yaml.safe_dump({k: v for k, v in base.items() if k != "task"}))
    monkeypatch.chdir(copy)
    first, _ = run(copy, run_snakemake)

    # What is scored: no fit follows from it.
    replace(copy / "toy/text.txt", "w8 w7 w6 w5 w4 w3 w2 w1")
    rows = (tasks / "choice.jsonl").read_text().splitlines(keepends=True)
    replace(tasks / "choice.jsonl", "".join(rows[:5]))
    replace(tasks / "base", (tasks / "base").read_text().replace("{{question}}", "{{answer}}"))
    second, said = run(copy, run_snakemake)
    assert "rule fit" not in said
    (tmp_path / "second").mkdir()
    assert second == fresh(copy, tmp_path / "second")
    for before, after in zip(first[0], second[0], strict=True):
        assert before["prompt_hash"] != after["prompt_hash"]

    # What is fitted, on what.
    make_backbone(copy / "toy/backbone", seed=1)
    probe = (copy / "toy/data/probe.jsonl").read_text().splitlines(keepends=True)
    (copy / "toy/data/probe.jsonl").write_text("".join(probe[::2]))
    third, said = run(copy, run_snakemake)
    (tmp_path / "third").mkdir()
    assert third == fresh(copy, tmp_path / "third")
    made = (copy / "results/toy/data/probe.jsonl").read_text()
    assert len(made.splitlines()) == len(probe[::2])

    # A fitted model: what was changed by hand is scored, and stays.
    model = copy / RECORD.replace("record.json", "model")
    healed = load_model(model)
    healed.model.layers[0].mlp.down_proj.weight.data.mul_(-3.0)
    healed.save_pretrained(model)
    fourth, said = run(copy, run_snakemake)
    assert "rule fit" not in said
    assert [score["value"] for score in fourth[0]] != [score["value"] for score in third[0]]
    steps.call("score", "--model", model, *given_of(copy), "--out", tmp_path / "record.json")
    assert fourth == told(tmp_path / "record.json")


def test_what_is_scored_again_under_other_settings_follows_from_the_same_files(
    plain_copy: Path, run_snakemake: Snakemake, tmp_path: Path
) -> None:
    """Results are made up: times alone say what a dry run would do."""
    text, task = tmp_path / "text.txt", tmp_path / "tasks/theirs.yaml"
    text.write_text("one")
    task.parent.mkdir()
    task.write_text("task: theirs\ndataset_path: owner/set\n")
    suite = {
        "suite": "edited",
        "backbones": {"demo": {"path": "workflows/demo/backbone"}},
        "rows": ["dense"],
        "budgets": [0.25],
        "seeds": [42],
        "tasks": ["demo_facts", "theirs", {"task": "perplexity:text", "file": str(text)}],
        "task_folder": str(task.parent),
        "noise_batch_sizes": [3],
    }
    file = tmp_path / "edited.yaml"
    file.write_text(yaml.safe_dump(suite))
    dense = "results/edited/demo/dense/b0/s42"
    records = [f"{dense}/noise/batch3.json", f"{dense}/record.json"]
    for folder in ("model", "noise"):
        (plain_copy / dense / folder).mkdir(parents=True)
    (plain_copy / "results/edited/tasks").mkdir()
    for made in ("results/edited/suite.json", "results/edited/tasks/theirs.json", *records):
        (plain_copy / made).write_text("{}")

    def wanted() -> list[str]:
        given = ["-n", *records, "--configfile", str(file)]
        status, said = run_snakemake(plain_copy, *given)
        assert status == 0, said
        rules = ("task_data", "score", "noise")
        return [rule for rule in rules if f"\n{rule} " in said]

    assert wanted() == []
    text.write_text("two")
    assert wanted() == ["score", "noise"]
    text.write_text("one")
    os.utime(text, (10**9, 10**9))
    task.write_text("task: theirs\ndataset_path: owner/other\n")
    assert wanted() == ["task_data", "score", "noise"]
    shutil.rmtree(plain_copy / "results/edited")
