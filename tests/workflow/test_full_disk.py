"""A full disk ends a step in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import steps


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk(
    tiny_disk: Path,
    refuse: steps.Refuse,
    llama: Path,
    data_files: dict[str, Path],
    task_folder: Path,
    tmp_path: Path,
) -> None:
    command = ["--method", "shortgpt", "--backbone", llama, "--budget", "0.25"]
    command += ["--out", tiny_disk / "out", "--calibration", data_files["ids"]]
    assert "No space left on device" in refuse("fit", *command)
    (tiny_disk / "record.tasks").mkdir()
    with (tiny_disk / "filler").open("wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(bytes(1_000))
    tasks = ["--tasks", "toy_choice", "--task-dir", task_folder, "--limit", "2"]
    command = ["--model", llama, *tasks, "--out", tiny_disk / "record.json"]
    assert "No space left on device" in refuse("score", *command)
    rows = json.dumps({"source": str(tmp_path / "text.txt")})
    (tmp_path / "text.txt").write_text("w1 w2\n\n" * 2000)
    command = ["--part", "training", "--source", rows, "--out", tiny_disk / "rows.jsonl"]
    assert "No space left on device" in refuse("data", *command)
