"""Files that appear whole, by an atomic rename, each written by one process at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary sibling that becomes ``folder`` when the block ends well, else vanishes.

    Raises:
        ValueError: ``folder`` exists already, another process writes it, or its parent is a file.
    """
    _check_new(folder)
    temporary = _sibling(folder)
    temporary.mkdir()
    with _held(temporary):
        try:
            yield temporary
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def kept_folder(folder: Path) -> Iterator[Path]:
    """The same, but what an interrupted block left stays for the next one to go on with.

    Raises:
        ValueError: ``folder`` exists already, or its parent is a file.
    """
    _check_new(folder)
    _check_parents(folder)
    temporary = folder.parent / f".{folder.name}.part"
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.rmdir()  # only where nothing came
    temporary.rename(folder)


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """A temporary sibling that replaces ``file`` when the block ends well, else vanishes.

    Raises:
        ValueError: ``file`` is a folder, another process writes it, or its parent is a file.
    """
    check_place(file)
    temporary = _sibling(file)
    temporary.touch()
    with _held(temporary):
        try:
            yield temporary
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_text(file: Path, text: str) -> None:
    """Replace a text file whole."""
    with whole_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_text(file: Path) -> str:
    """A text in UTF-8.

    Raises:
        ValueError: It is in something else.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text in UTF-8: {error}") from error


def check_place(file: Path, ending: str = "") -> None:
    """Refuse a place where no file can be written, before long work begins.

    Args:
        file: What is to be written.
        ending: Its name must end so; names of files beside it take another ending in its place.

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
    """A hidden name beside ``path``, in the same file system; the parent is made.

    The name is fixed: what a killed run left there is cleared by the next one. What a step still
    writes, one that outlived its Snakemake, is not.
    """
    _check_parents(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sibling = path.parent / f".{path.name}.part"
    if sibling.exists():
        with _held(sibling):
            shutil.rmtree(sibling) if sibling.is_dir() else sibling.unlink()
    return sibling


@contextmanager
def _held(temporary: Path) -> Iterator[None]:
    """Lock what is being written; a killed process lets go of it.

    Raises:
        ValueError: Another process holds it.
    """
    held = os.open(temporary, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        target = temporary.with_name(temporary.name.removeprefix(".").removesuffix(".part"))
        raise ValueError(
            f"{target} is being written by another process; wait for its end"
        ) from None
    except OSError:
        pass  # NFS locks no folder; there two processes are not told apart
    try:
        yield
    finally:
        os.close(held)
