"""The records of a suite in one small file: a tar, compressed by xz, with the paths of its folder.

Unpacked it is a results folder, of which every table is made again. It lacks models, logs, texts of
items, hashes of single prompts (a record has one of all prompts of a task) and long decisions. The
same records make the same bytes.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from methods.core.jsonfile import read_json
from workflows.records import DECISIONS, SAMPLE
from workflows.runtime.files import whole_file

ARCHIVE = "records.tar.xz"
ITEMS, SPEED = "items.parquet", "speed.json"
# Columns of items that no table reads.
LEFT_OUT = (SAMPLE, "doc_hash", "prompt_hash")
# Decisions stay if figures are drawn from them, or if their JSON is at most so long.
DRAWN, LONG = "training", 1000
# Bytes that an archive may unpack to; a suite of a thousand runs needs a tenth.
MOST = 2**30


def run_files(record: Path) -> Iterator[Path]:
    """The files of a run that tables, figures and pages are made of.

    Args:
        record: Its record.json; items, decisions, speeds and noise records lie beside it.
    """
    beside = (record.with_suffix(f".{end}") for end in (ITEMS, DECISIONS))
    noise = sorted(record.parent.glob("noise/batch*.*"))
    for file in (record, *beside, record.with_name(SPEED), *noise):
        if file.is_file() and not (file in noise and file.name.endswith(DECISIONS)):
            yield file


def write_archive(file: Path, folder: Path, files: Iterable[Path]) -> None:
    """Write an archive.

    Args:
        file: Of the archive.
        folder: The results folder.
        files: Of that folder, the ones to keep.
    """
    # Files of one name lie side by side, as they have most in common.
    order = sorted(files, key=lambda one: (one.name, one.as_posix()))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for one in order:
            content = _content(one)
            # Its defaults name no user and no time.
            entry = tarfile.TarInfo(one.relative_to(folder).as_posix())
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    with whole_file(file) as temporary:
        temporary.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def _content(file: Path) -> bytes:
    """What an archive keeps of a file."""
    if file.name.endswith(ITEMS):
        return _short_items(file)
    if file.name.endswith(DECISIONS):
        entries = read_json(file).items()
        short = {k: v for k, v in entries if k == DRAWN or len(json.dumps(v)) <= LONG}
        return json.dumps(short).encode()
    return file.read_bytes()


def _short_items(file: Path) -> bytes:
    """A frame of items without :data:`LEFT_OUT`, as Parquet.

    Parquet compresses nothing, so that xz sees which columns all runs have in common.
    """
    with pq.ParquetFile(file) as items:
        names = [name for name in items.schema_arrow.names if name not in LEFT_OUT]
        table = items.read(columns=names)
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(None), sink, compression="none")
    return bytes(sink.getvalue())


def unpack(file: Path, folder: Path) -> None:
    """Unpack an archive into a folder.

    Raises:
        ValueError: It is damaged, larger than :data:`MOST`, or has an entry that is no file of the
            folder.
    """
    try:
        reader = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        content = reader.decompress(file.read_bytes(), max_length=MOST)
        if not reader.eof:
            cut = reader.needs_input
            raise ValueError("it is cut" if cut else f"it does not end within {MOST:,} bytes")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for entry in tar:
                _unpack_entry(tar, entry, folder)
    except (lzma.LZMAError, tarfile.TarError, ValueError) as error:
        raise ValueError(f"{file} is no whole archive of records: {error}") from error


def _unpack_entry(tar: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    """Write one file; refuse links, devices, files with holes and paths outside the folder."""
    # The holes of a sparse file take memory that no limit on the archive counts.
    plain = entry.isfile() and not entry.issparse()
    content = tar.extractfile(entry) if plain else None
    path = Path(entry.name)
    if content is None or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"'{entry.name}' is no file of a results folder")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content.read())
