"""Wrong inputs on the real command lines: one sentence, a failing status, nothing half-written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests import steps
from tests.toys.texts import make_tokenizer


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return shutil.copytree(llama, tmp_path / "backbone")


@pytest.fixture
def ids(data_files: dict[str, Path]) -> Path:
    return data_files["ids"]


def checking(backbone: Path, folder: Path, **changes: Any) -> list[Any]:
    """What the check step is given for a suite of one backbone."""
    config = {
        "suite": "tiny", "backbones": {"toy": {}}, "rows": ["dense"], "budgets": [0.25],
        "seeds": [1], "tasks": ["piqa"],
    } | changes  # fmt: skip
    config["backbones"]["toy"]["path"] = str(backbone)
    return ["--config", json.dumps(config), "--out", folder / "suite.json"]


def fit(backbone: Path, out: Path, row: str = "shortgpt", budget: str = "0.25") -> list[Any]:
    return ["--method", row, "--backbone", backbone, "--budget", budget, "--out", out]


def test_an_unknown_row_is_named_with_the_rows(
    refuse: steps.Refuse, copy: Path, tmp_path: Path
) -> None:
    said = refuse("fit", *fit(copy, tmp_path / "out", "shortgtp"))
    assert said.startswith("unknown row 'shortgtp' (rows: dense, ")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("{layers: 3}", "--params is not valid JSON"),
        ("[3]", "--params must be a JSON object"),
        ('{"layers": 6}', "param 'layers' is 6, must be from 0 to 5"),
    ],
)
def test_wrong_params(
    params: str, said: str, refuse: steps.Refuse, copy: Path, ids: Path, tmp_path: Path
) -> None:
    command = [*fit(copy, tmp_path / "out"), "--params", params, "--calibration", ids]
    assert said in refuse("fit", *command)


def damage_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def damage_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def set_vocabulary(folder: Path, size: int) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": size}))


def raise_vocabulary(folder: Path) -> None:
    set_vocabulary(folder, 80)


def lower_vocabulary(folder: Path) -> None:
    set_vocabulary(folder, 50)


def enlarge_tokenizer(folder: Path) -> None:
    make_tokenizer(extra=6).save_pretrained(folder)


def damage_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("{")


DAMAGED = [
    (damage_weights, "model.safetensors is damaged or incomplete"),
    (damage_config, "config.json is not valid JSON"),
    (raise_vocabulary, "has shape [64, 32], but config.json asks for [80, 32]"),
    # The pad token's id, 63, lies outside.
    (lower_vocabulary, " fits no model: "),
    (enlarge_tokenizer, "has 70 tokens, the model only 64 embeddings"),
    (damage_index, "model.safetensors.index.json is not valid JSON"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGED)
def test_a_damaged_backbone(
    damage: Any, said: str, refuse: steps.Refuse, copy: Path, ids: Path, tmp_path: Path
) -> None:
    damage(copy)
    assert said in refuse("fit", *fit(copy, tmp_path / "out"), "--calibration", ids)
    scoring = ["--model", copy, "--tasks", "piqa", "--out", tmp_path / "record.json"]
    assert said in refuse("score", *scoring)
    assert said in refuse("check", *checking(copy, tmp_path))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array([[0, 64]]), "ids reach from 0 to 64, the vocabulary is 0 to 63"),
        (np.zeros((2, 257), int), "documents of 257 tokens are longer than the backbone's window"),
    ],
)
def test_wrong_calibration_ids(
    values: np.ndarray, said: str, refuse: steps.Refuse, copy: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "ids.npy", values)
    command = [*fit(copy, tmp_path / "out"), "--calibration", tmp_path / "ids.npy"]
    assert said in refuse("fit", *command)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"backbones": {"toy": {"path": "toy", "max_length": 257}}},
            "suite config, backbones.toy: max_length is 257, the backbone's window is 256 tokens",
        ),
        (
            {"timing": {"decode": "1x64,2x512"}, "data": {"probe": {"source": "demo"}}},
            "suite config, timing.decode: 1x64,2x512: the backbone's window is 256 tokens",
        ),
    ],
)
def test_lengths_that_a_backbone_does_not_take(
    changes: dict[str, Any], said: str, refuse: steps.Refuse, copy: Path, tmp_path: Path
) -> None:
    assert refuse("check", *checking(copy, tmp_path, **changes)) == said
    length = ["--max-length", "257", "--out", tmp_path / "record.json"]
    told = refuse("score", "--model", copy, "--tasks", "piqa", *length)
    assert told == "max_length is 257, the model's window is 256 tokens"


def test_a_row_that_trains_without_texts(refuse: steps.Refuse, copy: Path, tmp_path: Path) -> None:
    said = refuse("check", *checking(copy, tmp_path, rows=["dense", "lora"]))
    assert said == "suite config, data: 'lora' trains, so it needs data.training"
    data, rows = {"training": {"source": "demo", "rows": 9}}, ["dense", "hero"]
    said = refuse("check", *checking(copy, tmp_path, rows=rows, data=data))
    assert said.startswith("suite config, data: 'hero' meets budgets on data.probe or data.valida")
    (tmp_path / "plain.txt").write_text("w1 w2")
    data["probe"] = {"source": str(tmp_path / "plain.txt")}
    said = refuse("check", *checking(copy, tmp_path, rows=rows, data=data, match="split"))
    assert said.startswith(
        "suite config, data.probe: match 'split' needs texts with answers, which"
    )


def test_a_param_that_is_wrong_for_one_budget_alone(
    refuse: steps.Refuse, copy: Path, tmp_path: Path
) -> None:
    chosen = [{"budget": 0.25, "params": {"maks": 1}}, {"params": {}}]
    tuned = tmp_path / "tuned.yaml"
    tuned.write_text(json.dumps({"params": {"random-skip": chosen}}))
    rows = {"rows": ["dense", "random-skip"], "budgets": [0.25, 0.4], "tuned": str(tuned)}
    said = refuse("check", *checking(copy, tmp_path, **rows))
    assert said.startswith("suite config, 'random-skip': ")
    assert "maks" in said


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_weight_that_is_no_number(
    value: float, refuse: steps.Refuse, copy: Path, ids: Path, tmp_path: Path
) -> None:
    file = copy / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.3.mlp.up_proj.weight"][5, 7] = value
    save_file(tensors, file, metadata={"format": "pt"})
    said = refuse("fit", *fit(copy, tmp_path / "out"), "--calibration", ids)
    assert said == f"{copy}: tensor 'model.layers.3.mlp.up_proj.weight' holds NaN or infinity"


@pytest.mark.parametrize("layers", [0, -2, 2.5])
def test_a_config_of_no_size(
    layers: float, refuse: steps.Refuse, copy: Path, ids: Path, tmp_path: Path
) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    said = refuse("fit", *fit(copy, tmp_path / "out"), "--calibration", ids)
    assert said.startswith(f"{copy}/config.json")
    assert "num_hidden_layers" in said


def test_documents_too_short_to_read(
    refuse: steps.Refuse, copy: Path, ids: Path, tmp_path: Path
) -> None:
    base = [*fit(copy, tmp_path / "out"), "--calibration"]
    said = refuse("fit", *base, ids, "--max-length", "1")
    assert said == "max_length is 1, must be at least 2"
    (tmp_path / "rows.jsonl").write_text('{"fed": "w1"}\n{"fed": "w2"}\n')
    said = refuse("fit", *base, tmp_path / "rows.jsonl")
    assert said.endswith("rows.jsonl holds no document of two tokens or more")


@pytest.mark.parametrize("row", ["shortgpt", "laco"])
def test_a_budget_that_no_number_of_layers_meets(
    row: str, copy: Path, ids: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    steps.call("fit", *fit(copy, out, row, "0.999"), "--calibration", ids)
    reason = json.loads((out / "skipbench.json").read_text())["not_applicable"]
    assert reason.startswith("its layers but one hold ")


def test_wrong_calibration_files(refuse: steps.Refuse, copy: Path, tmp_path: Path) -> None:
    base = fit(copy, tmp_path / "out")
    assert refuse("fit", *base) == "no calibration file was given, and this row needs one"
    gone = refuse("fit", *base, "--calibration", tmp_path / "gone.npy")
    assert gone == f"calibration file {tmp_path}/gone.npy does not exist"
    (tmp_path / "rows.jsonl").write_text('{"text": "w1"}\n{"text": w2}\n')
    said = refuse("fit", *base, "--calibration", tmp_path / "rows.jsonl")
    assert f"{tmp_path}/rows.jsonl, line 2 is not valid JSON" in said
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "\xff\xfe"}\n')
    said = refuse("fit", *base, "--calibration", tmp_path / "rows.jsonl")
    assert f"{tmp_path}/rows.jsonl, line 1 is not valid JSON" in said


def test_text_without_a_tokenizer(
    refuse: steps.Refuse, copy: Path, data_files: dict[str, Path], tmp_path: Path
) -> None:
    for file in copy.glob("tokenizer*"):
        file.unlink()
    command = [*fit(copy, tmp_path / "out"), "--calibration", data_files["calibration"]]
    assert "the backbone has no tokenizer, give ids (.npy) instead" in refuse("fit", *command)
    scoring = ["--model", copy, "--tasks", "piqa", "--out", tmp_path / "record.json"]
    assert "has no tokenizer" in refuse("score", *scoring)


def test_an_existing_result_is_not_overwritten(
    refuse: steps.Refuse, copy: Path, ids: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    command = [*fit(copy, tmp_path / "out"), "--calibration", ids]
    assert "exists already" in refuse("fit", *command)
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep"


def test_a_file_where_a_folder_should_be(
    refuse: steps.Refuse, copy: Path, ids: Path, tmp_path: Path
) -> None:
    (tmp_path / "results").write_text("")
    said = f"{tmp_path}/results is a file, a folder is needed there"
    inside = tmp_path / "results" / "deep" / "out"
    assert refuse("fit", *fit(copy, inside), "--calibration", ids) == said
    scoring = ["--model", copy, "--tasks", f"perplexity:{tmp_path}/results"]
    assert refuse("score", *scoring, "--out", inside / "record.json") == said
    assert "holds no record.json" in refuse("report", "--results", inside, "--out", inside)


def test_wrong_models(refuse: steps.Refuse, copy: Path, tmp_path: Path) -> None:
    scoring = ["--tasks", "piqa", "--out", tmp_path / "record.json"]
    assert "gone does not exist" in refuse("score", "--model", tmp_path / "gone", *scoring)
    (copy / "skipbench.json").write_text("{")
    assert "skipbench.json is not valid JSON" in refuse("score", "--model", copy, *scoring)
    (copy / "skipbench.json").write_text('{"format": 9}')
    assert "has format 9" in refuse("score", "--model", copy, *scoring)


def test_wrong_data_sources(refuse: steps.Refuse, tmp_path: Path) -> None:
    def prepare(source: str) -> str:
        out = tmp_path / "rows.jsonl"
        return refuse("data", "--part", "training", "--source", source, "--out", out)

    (tmp_path / "text.txt").write_text("\n\n")
    (tmp_path / "bad.jsonl").write_text("{\n")
    assert "holds no document" in prepare(json.dumps({"source": str(tmp_path / "text.txt")}))
    assert "--source is not valid JSON" in prepare("{")
    assert "1 is not valid JSON" in prepare(json.dumps({"source": str(tmp_path / "bad.jsonl")}))
    (tmp_path / "odd.jsonl").write_text('{"text": "a"}\n{"conversations": []}\n')
    said = prepare(json.dumps({"source": str(tmp_path / "odd.jsonl")}))
    assert "document 2: expected an object with text, completion, messages or fed" in said
    assert prepare(json.dumps({"source": str(tmp_path / "odd.jsonl"), "skip": 1})) == said
    assert "1.0" in prepare(json.dumps({"source": str(tmp_path / "odd.jsonl"), "rows": 1.0}))


def test_a_fresh_process_says_the_same(copy: Path, tmp_path: Path) -> None:
    command = fit(copy, tmp_path / "out", budget="1.5")
    done = steps.python("-m", "workflows.steps.fit", *command)
    assert done.returncode == 2
    assert steps.sentence(done.stderr).startswith("budget '1.5' must be a number")
    assert not (tmp_path / "out").exists()
