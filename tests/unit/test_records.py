"""The record schema, and reading records back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from methods.core.jsonfile import read_json
from methods.core.model.card import BackboneCard, Card, FitCard
from tests.records import dense, distance, fidelity, score, typed
from workflows.records.card import new_record
from workflows.records.files import SCHEMAS, read_record, to_record
from workflows.records.parts import NotRun
from workflows.records.record import Record


def record() -> dict[str, Any]:
    return typed(dense(score("a", [1, 0])))[0].to_json()


def change(path: str, value: Any) -> dict[str, Any]:
    changed = record()
    *parents, last = path.split("/")
    inner: Any = changed
    for key in parents:
        inner = inner[int(key) if isinstance(inner, list) else key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return changed


def test_a_complete_record_passes_and_survives_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record()), encoding="utf-8")
    assert read_record(file).to_json() == record()


@pytest.mark.parametrize("field", sorted(set(record()) - {"scores", "rates"}))
def test_no_field_may_miss(field: str) -> None:
    with pytest.raises(ValueError, match=f"breaks the record schema at top level: '{field}'"):
        to_record(change(field, ...))


@pytest.mark.parametrize("field", ["scores", "rates", "skip_authors", "evaluation"])
def test_a_row_that_does_not_apply_has_no_scores_but_a_finished_one_must(field: str) -> None:
    without = change(field, ...)
    to_record(without | {"status": "not applicable", "reason": "because"})
    with pytest.raises(ValueError, match=f"'{field}' is a required property"):
        to_record(without)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status", "failed"), ("budget", 0), ("budget", 1), ("budget", "0.25"), ("kind", "other"),
        ("seed", 1.5), ("match", "both"), ("scores", []), ("scores/0/k", -1), ("scores/0/n", 0),
        ("scores/0/value", "0.5"), ("scores/0/extra", 1), ("scores/0/rates", {}),
        ("scores/0/split", "train"), ("rates/all/tokens", 0), ("rates/all/skip", 1.01),
        ("rates/all/skip_std", -0.1), ("backbone/hash", "xyz"), ("code", {}),
        ("fit_code", {"methods/core": 1}), ("layers/kept", 0), ("extra", 1),
        ("weights_hash", "xyz"), ("row", "x/../../README"), ("row", ".."), ("row", "hero\n"),
        ("method", "a b"), ("backbone/name", "../toy"), ("title", "a\n# b"), ("title", "a\x1b[2J"),
        ("title", "a\x9b2J"), ("title", "a\n"), ("reason", "a\rb"), ("scores/0/task", "a\nb"),
        ("evaluation/device", "a\nb"), ("hardware/processor", []), ("hardware/processor", "a\nb"),
        ("hardware/processor", ...), ("hardware/accelerator", []),
        ("not_run", [{"task": "code", "reason": "a\nb"}]),
    ],
)  # fmt: skip
def test_wrong_values_are_named_by_their_place(path: str, value: Any) -> None:
    place = "/".join(path.split("/")[:-1]) or "top level"
    with pytest.raises(ValueError, match="breaks the record schema") as caught:
        to_record(change(path, value))
    assert path in str(caught.value) or place in str(caught.value)
    schema = read_json(SCHEMAS / "record.schema.json")
    plain = next(Draft202012Validator(schema).iter_errors(change(path, value)))
    assert plain.message in str(caught.value)


def test_names_of_derived_rows_and_titles_of_all_alphabets_pass() -> None:
    names = {"row": "shortgpt+lora-2.5", "title": "HeRo (λ = 0,5) 模型"}
    assert to_record(record() | names).row == names["row"]
    assert to_record(change("backbone/name", "")).backbone.name == ""


def test_damaged_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{")
    with pytest.raises(ValueError, match=r"record.json is not valid JSON"):
        read_record(tmp_path / "record.json")


def test_format_1_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps(record() | {"format": 1}))
    with pytest.raises(ValueError, match="format 1, in which answer tokens are called") as caught:
        read_record(tmp_path / "record.json")
    assert str(caught.value).endswith("remove its folder, then fit and score the run again")


ROUTE = {"task": "a", "tokens": ["x", "y"], "first_answer": 1, "executed": ["01"]}
UNIT = {"layer": 0, "kind": "ffn", "parameters": 1, "executed": 0.5}
FIT = {
    "seconds": 1.0, "peak_memory_mb": 2.0, "device": "cpu", "threads": None,
    "trained_parameters": 3, "cpu_capability": "AVX2",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"units": [UNIT], "routes": [ROUTE]},
        {"fit": FIT},
        {"fit": FIT | {"trained_skip": {"pooled": 0.2}, "threshold": 0.5}},
        {"start": {"row": "shortgpt", "params": {"layers": 3}, "seed": 42}},
        {"not_run": [{"task": "code", "reason": "no sandbox"}]},
        {"fidelity": fidelity(0.3, 0.25)},
    ],
)
def test_a_typed_record_is_written_as_it_was_read(changes: dict[str, Any]) -> None:
    assert to_record(record() | changes).to_json() == record() | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"units": [UNIT | {"layer": 4}]}, "at layers: layer 4 of 4"),
        ({"layers": record()["layers"] | {"removed": [5]}}, "at layers: layer 5 of 4"),
        ({"units": [UNIT], "routes": [ROUTE | {"executed": ["011"]}]}, "has not a sign for each"),
        ({"units": [], "routes": [ROUTE]}, "at routes: 'a' has not a sign for each token and unit"),
    ],
)
def test_units_layers_and_routes_belong_to_one_model(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        to_record(record() | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kl": [0.1]}, "at fidelity: not a sum for each text, or no token"),
        ({"tokens": [0, 0], "agreement": [0, 0]}, "at fidelity: not a sum for each text, or no"),
        ({"tokens": [1, -2]}, "at fidelity/distances/all/tokens/1"),
        ({"kl": [0.1, "0.2"]}, "at fidelity/distances/all/kl/1"),
        ({"skip": 1.5}, "at fidelity/distances/all/skip"),
    ],
)
def test_distances_have_a_sum_for_each_text(changes: dict[str, Any], words: str) -> None:
    part = distance([1, 2], [0.1, 0.2], [1, 1]) | changes
    field = {"texts": "0" * 16, "seconds": 1.0, "distances": {"all": part}}
    with pytest.raises(ValueError, match=words):
        to_record(record() | {"fidelity": field})


MADE_BY = {name: record()[name] for name in ("versions", "commit", "dirty", "code", "hardware")}
LABELS = {"suite": "s", "backbone_name": "b", "row": None}


def backbone(path: str = "/p") -> BackboneCard:
    values = record()["backbone"]
    facts = {name: values[name] for name in ("revision", "hash", "parameters", "layers")}
    return BackboneCard(path=path, relative_path="p", dtype="float32", config={}, **facts)


def from_card(label: str | None = None, **changes: Any) -> Record:
    """The record of a changed card, under its own name or another."""
    card = Card(row="dense", params={}, budget=None, match=None, seed=1, backbone=backbone())
    return new_record(replace(card, **changes), LABELS | {"row": label}, MADE_BY)


def test_titles_name_the_params_of_a_row_and_derived_rows_their_own_name() -> None:
    card = {"row": "random-skip", "params": {"unit": "ffn", "candidates": "auto"}, "budget": 0.25}
    assert from_card(**card).title == "Random skip (ffn)"
    derived = from_card("mine", **card)
    assert (derived.title, derived.row, derived.method) == ("mine", "mine", "random-skip")


def test_a_record_names_the_code_and_the_weights_of_its_fit() -> None:
    record = from_card(provenance={"code": {"methods/core": "c"}}, weights_hash="f" * 16)
    assert (record.fit_code, record.weights_hash) == ({"methods/core": "c"}, "f" * 16)


def test_a_run_that_started_from_another_model_names_it_and_the_dense_backbone() -> None:
    start = FitCard(row="shortgpt", params={"layers": 3}, seed=42, backbone=backbone())
    own = replace(backbone("/shortgpt"), parameters=7, layers=9)
    entries = from_card(
        "shortgpt+lora", row="lora", budget=0.25, start=start, backbone=own
    ).to_json()
    assert entries["kind"] == "static"
    assert entries["start"] == {"row": "shortgpt", "params": {"layers": 3}, "seed": 42}
    assert entries["backbone"] == record()["backbone"] | {"name": "b", "path": "p"}


def test_reasons_become_one_line() -> None:
    """Those of a method and of a task's own error are not ours."""
    assert from_card(not_applicable="too\nsmall\x1b[2J").reason == "too small [2J"
    assert NotRun(task="code", reason="no\nsandbox").reason == "no sandbox"


def test_a_damaged_card_is_refused_before_it_is_scored() -> None:
    with pytest.raises(ValueError, match="the new record breaks the record schema at fit"):
        from_card(fit=[1])


def test_equal_runs_in_two_folders_leave_equal_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        for path in (Path("models/toy"), Path("../elsewhere/toy")):
            places.append(from_card(backbone=backbone(str(path.resolve()))).backbone.path)
    assert places == ["models/toy", "toy", "models/toy", "toy"]
