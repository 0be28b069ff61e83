"""Each class of input: a good example, the files to damage, and a reader.

A reader raises ValueError with a sentence, or its result is right, which it asserts.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from contextlib import chdir, redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from methods import load_method
from methods.core.data import Data
from methods.core.model.backbone import load_backbone
from methods.core.model.checkpoint import load
from methods.core.model.folder import read_config, read_tokenizer
from methods.core.model.ledger import Ledger
from methods.hero.controls import fitted_rates
from tests import records, steps
from tests.toys import models, tasks, texts
from workflows.evaluation.harness import CountingLM
from workflows.evaluation.score import score
from workflows.evaluation.tasklist import parse_tasks
from workflows.evaluation.tasknames import OWN_TASKS, check_names
from workflows.report.figures.data import run_frames
from workflows.report.page import page, source
from workflows.report.results import read_results
from workflows.report.tables import make_frames, make_tables
from workflows.steps.data import read_source
from workflows.suite import commands
from workflows.suite.config import read_configs
from workflows.suite.jobs import read_suite

SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 24}
LONGEST = 32
SCRIPTS = 2


@dataclass(frozen=True)
class Owner:
    """A class of input.

    Args:
        make: Writes a good input into an empty folder.
        files: The files to damage.
        read: Reads the input as the program does, and asserts that the result is right.
        names: A refusal contains one of these words, so that it names what is wrong.
    """

    make: Callable[[Path], Any]
    files: tuple[str, ...]
    read: Callable[[Path], None]
    names: tuple[str, ...] = ()


def make_backbone(folder: Path) -> None:
    models.make_backbone(folder, **SMALL)


def make_shards(folder: Path) -> None:
    """The same weights in two files under an index."""
    model = models.make_model(**SMALL)
    model.save_pretrained(folder, max_shard_size="12KB")
    assert (folder / "model.safetensors.index.json").is_file()


def read_backbone(folder: Path) -> None:
    """A model that computes with every weight of the folder."""
    backbone = load_backbone(folder)
    with torch.no_grad():
        logits = backbone.model(torch.tensor([[1, 2, 3, 4]])).logits
    assert logits.shape == (1, 4, backbone.config.vocab_size)
    assert logits.isfinite().all()
    assert backbone.layer_count == SMALL["num_hidden_layers"]


def read_words(folder: Path) -> None:
    """A tokenizer whose ids all have an embedding."""
    config = read_config(folder)
    tokenizer = read_tokenizer(folder, config)
    data = Data(tokenizer, config.vocab_size, LONGEST, calibration_file=folder / "rows.jsonl")
    check_batches(data)
    assert tokenizer is not None
    assert isinstance(tokenizer.decode([1, 2, 3]), str)


def make_words(folder: Path) -> None:
    make_backbone(folder)
    (folder / "model.safetensors").unlink()
    texts.write_jsonl(folder / "rows.jsonl", [{"text": "w1 w2 w3 other"}])


def make_documents(folder: Path) -> None:
    rows: list[Any] = [
        {"text": "w1 w2 w3 w4"}, {"prompt": "w1 w2", "completion": "w3", "task": "a"},
        {"messages": [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}]},
        {"fed": "w1 w2 w3", "prompt": "w1"},
    ]  # fmt: skip
    texts.write_jsonl(folder / "rows.jsonl", rows)
    np.save(folder / "ids.npy", np.arange(24).reshape(4, 6))
    (folder / "text.txt").write_text("w1 w2\n\nw3 w4\n", encoding="utf-8")


def read_documents(folder: Path) -> None:
    """All ids are in the vocabulary and no document is empty."""
    for name in ("rows.jsonl", "ids.npy"):
        file = folder / name
        check_batches(
            Data(texts.make_tokenizer(), texts.VOCABULARY, LONGEST, calibration_file=file)
        )
    source = {"source": str(folder / "text.txt")}
    for row in read_source(source, "calibration", folder / "told.json"):
        assert row["text"].strip()


def check_batches(data: Data) -> None:
    batches = list(data.calibration())
    assert batches
    for batch in batches:
        assert batch.valid.any(1).all()
        assert batch.ids.shape[1] <= data.max_length
        assert 0 <= int(batch.ids.min()) <= int(batch.ids.max()) < data.vocab_size


def make_suite(folder: Path) -> None:
    make_backbone(folder / "toy")
    make_documents(folder)
    suite = {
        "suite": "tiny", "backbones": {"toy": {"path": "toy", "dtype": "float32"}},
        "rows": ["dense", "shortgpt", "hero"], "budgets": [0.25, 0.4], "seeds": [1, 2],
        "tasks": ["piqa", {"task": "boolq", "limit": 4}], "retain_tasks": ["piqa"],
        "derive": {"mine": {"from": "hero", "params": {"alpha": 0.5}, "budgets": [None]}},
        "data": {"calibration": {"source": "ids.npy"}, "training": {"source": "rows.jsonl"}},
        "timing": {"prefill": "1x8", "rounds": 2}, "params": {"shortgpt": {"layers": 1}},
        "row_seeds": {"hero": [1]}, "first": ["hero"],
    }  # fmt: skip
    overlay = {"budgets": [0.25], "resources": {"gpu": 0}, "data": {"probe": {"source": "tasks"}}}
    for name, content in (("suite", suite), ("overlay", overlay)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def read_jobs(folder: Path) -> None:
    """Jobs with paths and arguments that rules can use."""
    names = [str(folder / f"{name}.yaml") for name in ("suite", "overlay")]
    suite = read_suite(read_configs(names), folder)
    assert suite.jobs
    assert len({job.folder for job in suite.jobs}) == len(suite.jobs)
    for job in suite.jobs:
        load_method(job.method.name, job.params)
        assert commands.fit(suite, job).isprintable()
        assert commands.score(suite, job).startswith("--suite")
        assert ".." not in Path(job.folder).parts
    assert json.loads(suite.as_json) == suite.config
    assert suite.prepared_files() is not None


def make_tasks(folder: Path) -> None:
    make_backbone(folder / "toy")
    tasks.make_tasks(folder / "tasks", items=3)


def read_tasks(folder: Path) -> None:
    """Every task has a finite score, or a reason why it was not run."""
    entries = parse_tasks("toy_choice,toy_write")
    check_names(entries, [OWN_TASKS, folder / "tasks"])
    backbone = load_backbone(folder / "toy")
    ledger = Ledger.of(backbone.model, backbone.parameters, backbone.layer_count)
    lm = CountingLM(backbone.model, backbone.tokenizer, ledger, 4, None, batchable=True)
    scored = score(lm, entries, [folder / "tasks"])
    assert len(scored.scores) + len(scored.not_run) >= 2
    for line in scored.scores:
        assert np.isfinite(line["value"])
        assert line["n"] >= 1


def make_results(folder: Path) -> None:
    """Results of dense and HeRo with texts, routes and decisions, as a suite writes them."""
    rng = np.random.default_rng(3)
    for run in (records.dense(*records.half()), records.record("hero", 0.25, *records.half())):
        file = records.write_run(folder, run)
        records.add_texts(file)
    record = json.loads(file.read_text())
    records.add_routes(record, rng)
    (folder / "toy/hero/b25/s42/model").mkdir()
    records.write_decisions(file)
    decisions = file.with_suffix(".decisions.json")
    shutil.copyfile(decisions, file.parent / "model/decisions.json")
    file.write_text(json.dumps(record))
    (folder / "suite.json").write_text(json.dumps({"suite": "made", "retain_tasks": ["left"]}))
    line = {"mode": "prefill", "case": "1x8", "bypass": 0.5, "over_dense": 0.8, "bound": 0.5}
    line |= {"timed_bound": None, "interval": [0.7, 0.9], "realised_share": 0.4}
    (file.parent / "speed.json").write_text(json.dumps({"lines": [line]}))


def read_page(folder: Path) -> None:
    """Tables and page have finite numbers and no script of the input."""
    results = read_results(folder)
    frames = make_frames(results)
    tables = make_tables(results, frames)
    text = page(frames, tables, source(results, []), results)
    assert text.count("<script") == SCRIPTS
    run_frames(results.records, results.files)
    for column in ("skip", "retain"):
        assert np.isfinite(frames["retain"][column].dropna()).all()


def make_model(folder: Path) -> None:
    """A fitted row beside its backbone."""
    make_backbone(folder / "backbone")
    words = ["--params", '{"layers": 1}', "--budget", "0.25"]
    np.save(folder / "ids.npy", np.arange(24).reshape(4, 6))
    model = steps.fit("shortgpt", folder / "backbone", folder / "model",
                          "--calibration", folder / "ids.npy", *words)  # fmt: skip
    (model / "decisions.json").write_text(json.dumps({"bypass_rates": [0.0, 0.5]}))


def read_model(folder: Path) -> None:
    """The model has its layers and finite logits, and a control can read its rates."""
    loaded = load(folder / "model")
    with torch.no_grad():
        logits = loaded.model(torch.tensor([[1, 2, 3]])).logits
    assert logits.isfinite().all()
    assert loaded.ledger.layers == 1
    fitted_rates(folder / "model", 2)


COMMANDS = {
    "fit": "--method shortgpt --backbone toy --budget 0.5 --seed 1 --params {} "
    "--max-length 16 --calibration ids.npy --match pooled --dtype float32",
    "score": "--model toy --tasks toy_choice --task-dir tasks --limit 1 --batch-size 2 "
    "--max-length 32 --suite s --row r",
    "data": '--part calibration --source {"source":"rows.jsonl","rows":2}',
}


def make_command(step: str, folder: Path) -> None:
    make_backbone(folder / "toy")
    make_documents(folder)
    tasks.make_tasks(folder / "tasks", items=3)
    (folder / "command.json").write_text(json.dumps(COMMANDS[step].split()))


def read_command(step: str, folder: Path) -> None:
    """The step writes its output, or ends with status 2 and a sentence."""
    words = json.loads((folder / "command.json").read_text())
    out = folder / {"fit": "out", "data": "out.jsonl"}.get(step, "out.json")
    said = io.StringIO()
    try:
        with chdir(folder), redirect_stderr(said):
            steps.call(step, *words, "--out", out, *["--device", "cpu"] * (step != "data"))
        status: object = 0
    except SystemExit as end:
        status = end.code
    assert (status == 0) == out.exists()
    if status != 0:
        assert status == 2
        raise ValueError(said.getvalue().strip().splitlines()[-1])


OWNERS = {
    "configs": Owner(make_backbone, ("config.json", "generation_config.json"), read_backbone),
    "tokenizers": Owner(make_words, ("tokenizer.json", "tokenizer_config.json"), read_words),
    "weights": Owner(make_backbone, ("model.safetensors",), read_backbone),
    "shards": Owner(make_shards, ("model.safetensors.index.json",), read_backbone),
    "documents": Owner(make_documents, ("rows.jsonl", "ids.npy", "text.txt"), read_documents),
    "suites": Owner(
        make_suite, ("suite.yaml", "overlay.yaml"), read_jobs, ("suite config", "row", "task"),
    ),
    "tasks": Owner(
        make_tasks, ("tasks/toy_choice.yaml", "tasks/toy_write.yaml", "tasks/choice.jsonl"),
        read_tasks, ("task",),
    ),
    "records": Owner(
        make_results, ("toy/hero/b25/s42/record.json", "suite.json"), read_page, ("task", "row"),
    ),
    "decisions": Owner(
        make_results,
        ("toy/hero/b25/s42/record.decisions.json", "toy/hero/b25/s42/model/decisions.json"),
        read_page,
    ),
    **{
        f"command {step}": Owner(
            partial(make_command, step), ("command.json",), partial(read_command, step),
            ("error: ",),
        )
        for step in COMMANDS
    },
    "models": Owner(
        make_model, ("model/skipbench.json", "model/decisions.json"), read_model, ("row", "param"),
    ),
}  # fmt: skip
