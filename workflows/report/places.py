"""Places that hold records, results folders and archives, as one results folder."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from methods.core.jsonfile import read_json, write_json
from workflows.records.archive import ARCHIVE, run_files, unpack
from workflows.records.files import read_record
from workflows.records.record import Record

SUITE = "suite.json"
# In a folder that was joined: the configs of the suites that made the runs of earlier places.
EARLIER = "earlier"


def as_folder(places: Sequence[Path]) -> Path:
    """One results folder with the runs of all places.

    A run that several places have is the last one's, with its noise records and speeds. The config
    of the suite is the last place's that has one; those of the others are kept in :data:`EARLIER`.

    Args:
        places: Results folders, archives, and folders that hold an archive, all of one suite.

    Returns:
        The place itself if it is one results folder; else a temporary folder, which is deleted when
        the process ends.

    Raises:
        ValueError: An archive is damaged, a record breaks the schema, a place has no record, or
            places are of several suites.
    """
    folders = [_unpacked(place) for place in places]
    return folders[0] if len(folders) == 1 else _joined(places, folders)


def _unpacked(place: Path) -> Path:
    """The results folder of a place."""
    archive = place / ARCHIVE if place.is_dir() else place
    if not archive.is_file():
        return place
    folder = _temporary()
    unpack(archive, folder)
    return folder


def _temporary() -> Path:
    """A folder that is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="skipbench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _joined(places: Sequence[Path], folders: Sequence[Path]) -> Path:
    """A folder with links to the runs of all folders."""
    runs: dict[tuple[Any, ...], list[tuple[Path, Path]]] = {}
    suites: dict[Any, Path] = {}
    configs: list[dict[str, Any]] = []
    for place, folder in zip(places, folders, strict=True):
        own: dict[tuple[Any, ...], list[tuple[Path, Path]]] = {}
        for file in sorted(folder.rglob("record.json")):
            record = read_record(file)
            own.setdefault(_run(record), []).append((folder, file))
        if not own:
            raise ValueError(f"{place} holds no record.json")
        runs |= own
        new = read_suites(folder)
        suites.setdefault(new[-1].get("suite") if new else record.suite, place)
        configs = [config for config in configs if config not in new] + new
    if len(suites) > 1:
        of = ", ".join(f"{place} of '{name}'" for name, place in suites.items())
        raise ValueError(f"one table has the records of one suite, not {of}")
    out = _temporary()
    _write_suites(out, configs)
    for folder, file in (pair for pairs in runs.values() for pair in pairs):
        for one in run_files(file):
            _link(out / one.relative_to(folder), one)
    for folder in folders:
        for status in folder.glob("logs/**/*.status"):
            _link(out / status.relative_to(folder), status)
    return out


def _run(record: Record) -> tuple[Any, ...]:
    """What a later record replaces: of a row that is not stochastic, also one of another seed."""
    return record.key if record.stochastic else record.key[:-1]


def _link(link: Path, file: Path) -> None:
    """A link to a file; a later one replaces it."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(file.absolute())


def read_suite_file(folder: Path) -> dict[str, Any]:
    """The complete config of the suite that made a folder; empty without one.

    Raises:
        ValueError: It is not JSON.
    """
    file = folder / SUITE
    return read_json(file) if file.is_file() else {}


def read_suites(folder: Path) -> list[dict[str, Any]]:
    """The configs of all suites that made a folder, its own the last; empty without one.

    Raises:
        ValueError: One is not JSON.
    """
    return [read_json(file) for file in suite_files(folder)]


def suite_files(folder: Path) -> list[Path]:
    """The files of :func:`read_suites`."""
    own = folder / SUITE
    return [*sorted((folder / EARLIER).glob("*.json")), *([own] if own.is_file() else [])]


def _write_suites(folder: Path, configs: Sequence[dict[str, Any]]) -> None:
    """Write what :func:`read_suites` reads."""
    names = [f"{EARLIER}/{number:03}.json" for number in range(len(configs) - 1)]
    for name, config in zip([*names, SUITE], configs, strict=False):
        (folder / name).parent.mkdir(exist_ok=True)
        write_json(folder / name, config)
