"""Which device a step takes, on machines with and without GPUs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from workflows.runtime import devices
from workflows.runtime.devices import claim_device, claim_gpus
from workflows.runtime.processes import process_group
from workflows.runtime.program import add_machine_arguments, step_parser


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int | str]:
    """A machine that seems to have two; returns what became torch's current device."""
    current = list[int | str]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda n: SimpleNamespace(uuid=f"u{n}")
    )
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return current


def test_without_a_gpu_auto_is_the_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with claim_device("auto") as device:
        assert device == "cpu"
    with (
        pytest.raises(ValueError, match="device 'cuda' was asked for, but torch sees no GPU"),
        claim_device("cuda"),
    ):
        pass


def test_what_asks_for_a_gpu_is_refused_without_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a suite's name for it, and where torchrun has started the processes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = (
        r"device 'gpu' was asked for, but torch sees no GPU.*; SKIPBENCH_CPU=1 runs it on the CPU"
    )
    with pytest.raises(ValueError, match=said), claim_device("gpu"):
        pass
    for processes in ("1", "2"):
        monkeypatch.setenv("WORLD_SIZE", processes)
        with pytest.raises(ValueError, match=said), process_group("gpu", tmp_path / "out"):
            pass
    assert not list(tmp_path.iterdir())


def test_the_environment_may_ask_for_the_cpu_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = step_parser("")
    add_machine_arguments(parser)
    assert parser.parse_args(["--device", "gpu"]).device == "gpu"
    monkeypatch.setenv("SKIPBENCH_CPU", "1")
    assert parser.parse_args(["--device", "gpu"]).device == "cpu"
    assert parser.parse_args(["--device", "cuda"]).device == "cuda"


def test_a_fit_says_first_on_what_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with process_group("cpu", tmp_path / "out"):
        assert capsys.readouterr().out == "device cpu\n"


def test_each_step_takes_a_free_gpu_and_waits_for_one(
    two_gpus: list[int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            second.__exit__(None, None, None)

    monkeypatch.setattr(devices, "sleep", wait)
    first, second = claim_device("auto"), claim_device("auto")
    assert (first.__enter__(), second.__enter__()) == ("cuda:0", "cuda:1")
    waits.clear()
    with claim_device("auto") as device:
        assert device == "cuda:1"
    assert len(waits) == 3
    assert two_gpus == [0, 1, 1]
    first.__exit__(None, None, None)


def test_a_named_device_is_taken_as_it_is(two_gpus: list[int | str]) -> None:
    with claim_device("cuda:1") as device:
        assert device == "cuda:1"
    with claim_device("cpu") as device:
        assert device == "cpu"
    with claim_device("gpu") as device:
        assert device == "cuda:0"
    with claim_device("cuda") as device:
        assert device == "cuda"
    assert two_gpus == ["cuda:1", 0, 1]
    with (
        pytest.raises(ValueError, match="device 'cuda:2' is unknown"),
        claim_device("cuda:2"),
    ):
        pass


def test_jobs_that_are_shown_one_gpu_each_do_not_wait_for_each_other(
    two_gpus: list[int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(devices, "sleep", lambda seconds: pytest.fail("waited"))
    with claim_device("auto") as first:
        shown = SimpleNamespace(uuid="u1")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: shown)
        with claim_device("auto") as second:
            assert (first, second) == ("cuda:0", "cuda:0")


def test_several_gpus_are_taken_at_once_or_none(
    two_gpus: list[int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = claim_gpus(1)
    assert one.__enter__() == [0]

    def wait(seconds: float) -> None:
        # While two are waited for, the free one can be had.
        with claim_gpus(1) as free:
            assert free == [1]
        one.__exit__(None, None, None)

    monkeypatch.setattr(devices, "sleep", wait)
    with claim_gpus(2) as both:
        assert both == [0, 1]
    with pytest.raises(ValueError, match="3 GPUs are asked for, torch sees 2"), claim_gpus(3):
        pass


@pytest.mark.parametrize("kind", ["folder of another", "link", "file"])
def test_locks_lie_in_a_folder_of_the_users_own(
    kind: str, two_gpus: list[int | str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared place another user may have made it first, with a link to a file of ours."""
    owner = os.getuid()
    folder, mine = tmp_path / f"skipbench-gpus-{owner}", tmp_path / "mine"
    mine.mkdir()
    if kind == "link":
        folder.symlink_to(mine)
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
        folder.rename(tmp_path / f"skipbench-gpus-{os.getuid()}")
    refused = pytest.raises((ValueError, FileExistsError), match="skipbench-gpus-")
    with refused, claim_gpus(1):
        pass
    assert not list(mine.iterdir())


def test_a_lock_empties_no_file_through_a_link(two_gpus: list[int | str], tmp_path: Path) -> None:
    folder, mine = tmp_path / f"skipbench-gpus-{os.getuid()}", tmp_path / "mine.txt"
    folder.mkdir()
    mine.write_text("mine")
    (folder / "u0.lock").symlink_to(mine)
    with pytest.raises(OSError, match=r"u0\.lock"), claim_gpus(1):
        pass
    assert mine.read_text() == "mine"


def test_only_the_user_reads_the_locks(two_gpus: list[int | str], tmp_path: Path) -> None:
    with claim_gpus(1):
        folder = tmp_path / f"skipbench-gpus-{os.getuid()}"
        assert folder.stat().st_mode & 0o077 == 0
        assert (folder / "u0.lock").stat().st_mode & 0o077 == 0
