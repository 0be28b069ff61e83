"""The prepare steps against a hub on the loopback: what they fetch, and how they refuse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from methods.core.model.folder import hash_folder
from tests.hub import Hub, Repository
from tests.rehearsal_world import make_hub
from tests.steps import sentence
from tests.toys.models import make_backbone
from workflows import ROOT

# Every call is a fresh process that imports the hub's libraries: seconds each.
pytestmark = pytest.mark.rehearsal

TULU = {"source": "hub:allenai/tulu-3-sft-mixture", "split": "train", "seed": 0, "rows": 4}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    made = make_hub(tmp_path_factory.mktemp("hub"))
    folder = make_backbone(tmp_path_factory.mktemp("toy") / "model")
    made.models |= {"own/toy": Repository(folder), "own/gated": Repository(folder, gated=True)}
    with made.serve() as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def process(
    hub: Hub, home: Path, name: str, *words: Any, **more: str
) -> subprocess.CompletedProcess[str]:
    """A step in a process that knows this hub alone."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    told = {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", f"workflows.steps.{name}", *map(str, words)],
        env=kept | told | more,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def step(hub: Hub, home: Path, name: str, *words: Any, **more: str) -> tuple[int, str]:
    """Exit status, and the sentence of a refusal or else what was printed."""
    done = process(hub, home, name, *words, **more)
    return done.returncode, sentence(done.stderr) if done.returncode else done.stdout


def backbone(hub: Hub, home: Path, out: Path, **source: str) -> tuple[int, str]:
    return step(hub, home, "fetch", "--source", json.dumps(source), "--out", out)


def data(hub: Hub, home: Path, out: Path, **source: Any) -> tuple[int, str]:
    words = ["--part", "training", "--source", json.dumps(TULU | source), "--out", out]
    return step(hub, home, "data", *words)


def test_a_download_that_broke_goes_on_where_it_stopped(
    hub: Hub, home: Path, tmp_path: Path
) -> None:
    weights = hub.models["own/toy"].folder / "model.safetensors"
    hub.cut[weights.name] = 30_000
    hub.requests.clear()
    status, said = backbone(hub, home, tmp_path / "got", path="hub:own/toy")
    assert (status, hub.models["own/toy"].commit in said) == (0, True)
    assert (tmp_path / "got" / weights.name).read_bytes() == weights.read_bytes()
    told = json.loads((tmp_path / "got/fetched.json").read_text())
    assert told["commit"] == hub.models["own/toy"].commit
    assert told["files"][weights.name]["sha256"] == hub.models["own/toy"].files[weights.name]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["got"]
    # The facts stand in for the weights; a changed file is read again.
    known = hash_folder(tmp_path / "got")
    assert known == hash_folder(weights.parent)
    (tmp_path / "got" / weights.name).write_bytes(b"other")
    assert hash_folder(tmp_path / "got") != known


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            {"path": "hub:own/gated"},
            "own/gated is gated: accept its licence on its page of the hub, "
            "then give a token (hf auth login, or HF_TOKEN)",
        ),
        (
            {"path": "hub:own/none"},
            "own/none is not on the hub, or is private and needs a token (HF_TOKEN)",
        ),
        ({"path": "hub:own/toy", "revision": "v9"}, "own/toy has no such revision on the hub"),
    ],
)
def test_a_backbone_that_cannot_be_had(
    source: dict[str, str], said: str, hub: Hub, home: Path, tmp_path: Path
) -> None:
    assert backbone(hub, home, tmp_path / "got", **source) == (2, said)
    assert list(tmp_path.iterdir()) == []


def test_names_of_a_repository_stay_in_the_folder(hub: Hub, home: Path, tmp_path: Path) -> None:
    folder = make_backbone(tmp_path / "served/model")
    shutil.copyfile(folder / "model.safetensors", tmp_path / "served/evil.safetensors")
    hub.models["own/evil"] = Repository(folder)
    hub.models["own/evil"].files["../evil.safetensors"] = "0" * 64
    status, said = backbone(hub, home, tmp_path / "got", path="hub:own/evil")
    assert (status, "../evil.safetensors" in said) == (2, True)
    assert list(tmp_path.rglob("evil*")) == [tmp_path / "served/evil.safetensors"]
    assert not (tmp_path / "got").exists()


def test_a_token_is_in_nothing_that_is_written(hub: Hub, home: Path, tmp_path: Path) -> None:
    secret = "hf_" + "SecretSecretSecret" * 2
    more = {"HF_TOKEN": secret, "SKIPBENCH_DEBUG": "1", "HF_DEBUG": "1"}
    for name, ended in (("gated", 0), ("none", 2)):
        words = ["--source", json.dumps({"path": f"hub:own/{name}"}), "--out", tmp_path / name]
        done = process(hub, home, "fetch", *words, **more)
        assert done.returncode == ended
        assert secret not in done.stdout + done.stderr
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert written
    assert not any(secret.encode() in file.read_bytes() for file in written)


def test_without_a_hub_the_sentence_says_so(home: Path, tmp_path: Path) -> None:
    dead = Hub(address="http://127.0.0.1:9")
    said = "cannot be fetched, the hub does not answer; what came is kept for the next try"
    assert backbone(dead, home, tmp_path / "got", path="hub:own/toy") == (2, f"own/toy {said}")
    status, sentence = data(dead, tmp_path / "empty", tmp_path / "rows.jsonl", column="messages")
    assert (status, sentence) == (2, f"allenai/tulu-3-sft-mixture {said}")


def test_only_the_files_of_the_split_are_fetched(hub: Hub, home: Path, tmp_path: Path) -> None:
    hub.requests.clear()
    source = {"source": "hub:emozilla/pg19", "split": "validation", "column": "text"}
    status, _ = data(hub, home, tmp_path / "books.jsonl", **source)
    assert status == 0
    parquet = [path for path in hub.downloads() if path.endswith(".parquet")]
    assert parquet == ["emozilla/pg19/default/validation-00000-of-00001.parquet"]
    assert len((tmp_path / "books.jsonl").read_text().splitlines()) == 4
    told = json.loads((tmp_path / "books.source.json").read_text())["files"]
    assert [file["commit"] for file in told] == [hub.datasets["emozilla/pg19"].commit]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            {"column": "message"},
            "allenai/tulu-3-sft-mixture has no column 'message' (it has: id, messages, source)",
        ),
        (
            {"column": "messages", "split": "dev"},
            "allenai/tulu-3-sft-mixture has no split 'dev' (it has: train)",
        ),
        (
            {"source": "hub:allenai/none", "column": "messages"},
            "allenai/none is not on the hub, or is private and needs a token (HF_TOKEN)",
        ),
    ],
)
def test_data_that_cannot_be_had(
    source: dict[str, str], said: str, hub: Hub, home: Path, tmp_path: Path
) -> None:
    assert data(hub, home, tmp_path / "rows.jsonl", **source) == (2, said)
    assert not (tmp_path / "rows.jsonl").exists()


def test_the_data_of_a_task_are_fetched_and_named(hub: Hub, home: Path, tmp_path: Path) -> None:
    status, _ = step(hub, home, "task_data", "--task", '"openbookqa"', "--out", tmp_path / "t.json")
    assert status == 0
    told = json.loads((tmp_path / "t.json").read_text())
    known = hub.datasets["allenai/openbookqa"]
    assert {file["commit"] for file in told["files"]} == {known.commit}
    assert {file["path"]: file["sha256"] for file in told["files"]} == {
        path: digest for path, digest in known.files.items() if path.startswith("main/")
    }
    asked = len(hub.requests)
    status, said = step(
        hub, home, "task_data", "--task", '"openbookqa"', "--out", tmp_path / "again.json",
        HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
    )  # fmt: skip
    assert (status, len(hub.requests)) == (0, asked), said
