"""The score step holds a row against the dense model as `skipbench fidelity` does, and keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import steps
from tests.toys.texts import write_jsonl
from tests.workflow.conftest import toy_checkout
from workflows.evaluation.fidelity import reference_of
from workflows.evaluation.store import FIDELITY_FILE
from workflows.records.parts import Distance, Fidelity

SHORT = {"updates": 2, "batch_tokens": 256, "row_length": 64}
TEXTS = [
    {"prompt": "w1 w2 w3", "completion": "w4 w5"}, {"text": "w6 w7 w8"},
    {"prompt": "w9", "completion": "w10 w11 w12 w13"}, {"fed": "w4 w5 w6 w7", "prompt": "w4 w5"},
]  # fmt: skip


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "texts.jsonl", TEXTS)


def score(model: Path, texts: Path, out: Path, *more: Any) -> Fidelity:
    """The field of the record."""
    text = texts.with_name("one.txt")
    text.write_text("w1 w2 w3 w4 w5")
    fixed = ["--batch-size", 2, "--device", "cpu", "--threads", 1, "--tasks", f"perplexity:{text}"]
    steps.call("score", "--model", model, *fixed, "--fidelity", texts, "--out", out, *more)
    return Fidelity.of(json.loads(out.read_text())["fidelity"])


def fit(name: str, backbone: Path, data: dict[str, Path], folder: Path) -> Path:
    """The model of a row, with very little work."""
    given: list[Any] = ["--budget", 0.25, "--calibration", data["calibration"]]
    given += ["--probe", data["probe"], "--validation", data["validation"]]
    trained = [*given, "--train", data["training"], "--params"]
    if name == "dense":
        return backbone
    if name == "shortgpt+lora":
        start = fit("shortgpt", backbone, data, folder)
        healed = ["--train", data["training"], "--params", json.dumps(SHORT)]
        return steps.fit("lora", start, folder / name, *healed)
    if name == "hero-by-kind":
        lender = steps.fit("hero", backbone, folder / "hero", *trained, json.dumps(SHORT))
        params = json.dumps(SHORT | {"variant": "by-kind"})
        return steps.fit("hero", backbone, folder / name, *trained, params, "--lender", lender)
    if name == "mod-d-topk":
        params = json.dumps(SHORT | {"inference": "topk"})
        return steps.fit("mod-d", backbone, folder / name, *trained, params)
    return steps.fit(name, backbone, folder / name, *given)


@pytest.mark.parametrize(
    "row", ["dense", "shortgpt", "random-skip", "shortgpt+lora", "hero-by-kind", "mod-d-topk"]
)
def test_the_record_has_what_the_command_prints(
    row: str, llama: Path, data_files: dict[str, Path], texts: Path, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model, reference = fit(row, llama, data_files, tmp_path), ["--reference", llama]
    fidelity = score(model, texts, tmp_path / "record.json", *reference)
    fixed = ["--texts", texts, "--batch-size", 2, "--device", "cpu", "--threads", 1, *reference]
    capfd.readouterr()
    steps.call("fidelity", "--model", model, *fixed, "--out", tmp_path / "fidelity.json")
    printed = capfd.readouterr().out.splitlines()[:2]
    means = json.loads((tmp_path / "fidelity.json").read_text())
    for kind, line in zip(("all", "answer"), printed, strict=True):
        own = fidelity.distances[kind]
        assert own.mean_kl == pytest.approx(means[kind]["kl"], rel=1e-12, abs=0)
        assert own.mean_agreement == means[kind]["agreement"]
        assert own.skip == means[kind]["skip"]
        assert line.startswith(
            f"KL {own.mean_kl:.4f} nats, top-1 agreement {100 * own.mean_agreement:.2f} %, skip "
            f"{100 * own.skip:.2f} % over {sum(own.tokens)} "
        )
    if row == "dense":
        assert (own.mean_kl, own.mean_agreement, own.skip) == (0, 1, 0)
    else:
        assert own.mean_kl > 0


def test_it_is_measured_again_only_if_something_that_it_follows_from_changed(
    llama: Path, texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "record.json"
    first = score(llama, texts, out, "--reference", llama)
    kept = out.with_suffix(".tasks") / FIDELITY_FILE
    before = kept.stat().st_mtime_ns
    other = texts.with_name("other.txt")
    other.write_text("w9 w8 w7")
    tasks = ["--tasks", f"perplexity:{other}", "--reference", llama]
    assert score(llama, texts, out, *tasks) == first
    assert kept.stat().st_mtime_ns == before
    # Fewer texts, shorter ones, another dense model.
    write_jsonl(texts, TEXTS[:3])
    second = score(llama, texts, out, "--reference", llama)
    assert len(second.distances["all"].tokens) == 3
    assert second.texts != first.texts
    short = score(llama, texts, out, "--reference", llama, "--fidelity-length", 3)
    assert max(short.distances["all"].tokens) == 2


def test_without_texts_a_record_has_no_such_field(llama: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "one.txt", tmp_path / "record.json"
    text.write_text("w1 w2 w3 w4 w5")
    steps.call("score", "--model", llama, "--tasks", f"perplexity:{text}", "--out", out)
    assert "fidelity" not in json.loads(out.read_text())


def test_what_is_missing_is_named(
    refuse: steps.Refuse, llama: Path, texts: Path, tmp_path: Path
) -> None:
    given = ["--model", llama, "--tasks", "demo_facts", "--out", tmp_path / "record.json"]
    assert refuse("score", *given, "--fidelity", texts) == (
        f"{llama} is a plain model: say with --reference which one is dense"
    )
    assert refuse("score", *given, "--reference", llama) == (
        "--reference needs --fidelity, the texts to compare on"
    )
    missing = tmp_path / "none.jsonl"
    assert "none.jsonl does not exist" in refuse(
        "score", *given, "--fidelity", missing, "--reference", llama
    )


def test_a_mean_is_over_all_tokens() -> None:
    distance = Distance(skip=0.1, tokens=[3, 1], kl=[0.6, 1.0], agreement=[3, 0])
    assert distance.mean_kl == pytest.approx(0.4)
    assert distance.mean_agreement == 0.75


RECORD = "results/toy/small/random-skip/b25/s42/record.json"


@pytest.mark.long
def test_a_suite_measures_on_its_texts_and_again_when_they_change(
    tmp_path: Path, run_snakemake: Callable[..., tuple[int, str]]
) -> None:
    copy = toy_checkout(tmp_path / "checkout")
    suite = yaml.safe_load((copy / "toy.yaml").read_text())
    rows = (copy / "toy/data/validation.jsonl").read_text().splitlines(keepends=True)
    texts = copy / "toy/fidelity.jsonl"
    texts.write_text("".join(rows[:6]))
    data = {"probe": suite["data"]["probe"], "fidelity": {"source": "toy/fidelity.jsonl"}}
    parts = {"rows": ["dense", "random-skip"], "noise_batch_sizes": [], "data": data}
    del suite["timing"]
    (copy / "toy.yaml").write_text(yaml.safe_dump(suite | parts))

    def run() -> tuple[Fidelity, str]:
        status, said = run_snakemake(copy, RECORD, "--configfile", "toy.yaml", "--cores", "1")
        assert status == 0, said
        return Fidelity.of(json.loads((copy / RECORD).read_text())["fidelity"]), said

    first, _ = run()
    assert len(first.distances["all"].tokens) == 6
    assert first.distances["all"].mean_kl > 0
    texts.write_text("".join(rows[:4]))
    second, said = run()
    assert "rule fit" not in said
    assert len(second.distances["all"].tokens) == 4


def test_the_reference_of_a_pruned_model_is_its_dense_one(llama: Path, tmp_path: Path) -> None:
    """A healed row that is scored with its pruned start at hand is still compared with dense."""
    pruned = steps.fit("random-skip", llama, tmp_path / "pruned", "--budget", 0.25)
    for model, named in ((pruned, None), (tmp_path / "healed", pruned), (pruned, llama)):
        assert reference_of(model, named).resolve() == llama.resolve()
