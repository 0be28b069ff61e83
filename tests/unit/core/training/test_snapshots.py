"""Files of snapshots: how they reach the disk, and those of other code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from methods.core.training.snapshots import NAME, tell_other_code, write_snapshot


def write(folder: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    write_snapshot(folder, {"one": parameter}, optimizer, {"identity": "x"})


def test_a_snapshot_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync = list[int](), os.fsync

    def note(number: int) -> None:
        assert not (tmp_path / NAME).exists()
        synced.append(os.fstat(number).st_ino)
        sync(number)

    monkeypatch.setattr(os, "fsync", note)
    write(tmp_path)
    assert synced == [(tmp_path / NAME).stat().st_ino]


def test_a_snapshot_of_other_code_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    tell_other_code(own)
    assert capsys.readouterr().out == ""
    write(other)
    tell_other_code(own)
    said = f"a snapshot of other code lies in {other}: training starts anew\n"
    assert capsys.readouterr().out == said
    write(own)
    tell_other_code(own)
    assert capsys.readouterr().out == ""
