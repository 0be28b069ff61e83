"""Files and folders that appear complete, by an atomic rename, with one writer at a time."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from methods.core import jsonfile
from methods.core.jsonfile import read_json

# In a folder that a report writes: names of the files that it wrote there.
WRITTEN = ".written.json"


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside ``folder``; renamed to it after the block, deleted after an error.

    Raises:
        ValueError: ``folder`` exists already, another process writes it, or its parent is a file.
    """
    _check_new(folder)
    temporary = _sibling(folder)
    temporary.mkdir()
    with _lock(temporary, folder):
        try:
            yield temporary
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def resumable_folder(folder: Path, origin: str) -> Iterator[Path]:
    """As :func:`whole_folder`, but after an error the files stay, and the next call continues.

    Args:
        folder: To be written.
        origin: What it is made from; files of another origin are deleted.

    Raises:
        ValueError: ``folder`` exists already, another process writes it, or its parent is a file.
    """
    _check_new(folder)
    _check_parents(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(origin.encode()).hexdigest()[:8]
    temporary = folder.parent / f".{folder.name}.{digest}.part"
    for other in folder.parent.glob(f".{glob.escape(folder.name)}.{'[0-9a-f]' * 8}.part"):
        if other != temporary:
            with _lock(other, folder):
                shutil.rmtree(other)
    temporary.mkdir(exist_ok=True)
    with _lock(temporary, folder):
        try:
            yield temporary
        finally:
            with suppress(OSError):
                temporary.rmdir()  # fails unless it is empty
        temporary.rename(folder)


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """A temporary file beside ``file``; replaces it after the block, deleted after an error.

    Raises:
        ValueError: ``file`` is a folder, another process writes it, or its parent is a file.
    """
    check_place(file)
    temporary = _sibling(file)
    temporary.touch()
    with _lock(temporary, file):
        try:
            yield temporary
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_text(file: Path, text: str) -> None:
    """Write a text file, through :func:`whole_file`."""
    with whole_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file, through :func:`whole_file`; NaN is refused."""
    with whole_file(file) as temporary:
        jsonfile.write_json(temporary, value)


def read_text(file: Path) -> str:
    """The text of a file in UTF-8.

    Raises:
        ValueError: It has another encoding.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text in UTF-8: {error}") from error


def delete_earlier(folder: Path, names: Collection[str]) -> None:
    """Delete the files of a folder that an earlier call names in :data:`WRITTEN` and this does not.

    Files that no call named stay: they are not ours.

    Raises:
        ValueError: The list is not JSON.
    """
    listed = folder / WRITTEN
    before = read_json(listed).get("files") if listed.is_file() else None
    for name in before if isinstance(before, list) else []:
        # The list may be of a stranger: it reaches no other folder.
        own = isinstance(name, str) and Path(name).name == name and (folder / name).is_file()
        if own and name not in names:
            (folder / name).unlink()
    write_json(listed, {"files": sorted(names)})


def delete_others(folder: Path, patterns: Iterable[str], names: Container[str]) -> None:
    """Delete the files of a folder that match a pattern and have none of the names."""
    for file in (file for pattern in patterns for file in folder.glob(pattern)):
        if file.name not in names:
            file.unlink()


def check_place(file: Path, ending: str = "") -> None:
    """Refuse a path where no file can be written, before long work begins.

    Args:
        file: The path.
        ending: Required ending of its name; other files get this name with another ending.

    Raises:
        ValueError: ``file`` is a folder, has another ending, or one of its parents is a file.
    """
    if file.suffix != ending and ending:
        raise ValueError(f"--out {file} must end in {ending}")
    if file.is_dir():
        raise ValueError(f"{file} is a folder, a file is to be written there")
    _check_parents(file)


def _check_new(folder: Path) -> None:
    if folder.exists():
        raise ValueError(f"{folder} exists already; remove it or name another folder")


def _check_parents(path: Path) -> None:
    for parent in reversed(path.absolute().parents):
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"{parent} is a file, a folder is needed there")


def _sibling(path: Path) -> Path:
    """A hidden path beside ``path``, in the same file system; makes the parent folder.

    The name is always the same, so that the next run deletes what a killed run has left there. A
    step may outlive its Snakemake: what it still writes is locked, and is not deleted.
    """
    _check_parents(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sibling = path.parent / f".{path.name}.part"
    if sibling.exists():
        with _lock(sibling, path):
            shutil.rmtree(sibling) if sibling.is_dir() else sibling.unlink()
    return sibling


@contextmanager
def _lock(temporary: Path, target: Path) -> Iterator[None]:
    """Lock what becomes ``target`` for the block; the lock of a killed process is free.

    Raises:
        ValueError: Another process has locked it.
    """
    # NFS locks only what can be written.
    lock = os.open(temporary, os.O_RDONLY if temporary.is_dir() else os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ValueError(
            f"{target} is being written by another process; wait for its end"
        ) from None
    except OSError:
        pass  # NFS cannot lock folders; there a second writer is not noticed
    try:
        yield
    finally:
        os.close(lock)
