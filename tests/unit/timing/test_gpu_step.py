"""The command that does all a GPU is wanted for: parts on their own, nothing lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch

from tests import steps
from workflows.steps import gpu, time


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    """A step that runs in this process leaves nothing behind."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def test_how_a_part_ended_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "part.json"
    gpu.run_part(file, ["-c", "import sys; print('so far'); sys.exit(3)"], timeout=60)
    told = json.loads(file.read_text())
    assert (told["status"], told["said"]) == (3, "so far\n")
    assert file.with_suffix(".log").read_text() == "so far\n"


@pytest.mark.parametrize("heard", [True, False])
def test_time_that_is_up_ends_a_part_with_its_children(
    heard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is asked to stop and does not, among them; also behind a shell's ``&``."""
    file, started = tmp_path / "part.json", tmp_path / "child"
    stubborn = f"""
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
Path({str(started)!r}).write_text(str(os.getpid()))
time.sleep(60)
"""
    words = f"""
import subprocess, sys, time
print("begun")
subprocess.Popen([sys.executable, "-c", {stubborn!r}])
time.sleep(60)
"""
    plain = gpu.exit_status

    def once_begun(child: Any, timeout: float) -> int | None:
        """The clock starts when both interpreters have."""
        for _ in range(600):
            if not started.exists():
                sleep(0.1)
        return plain(child, timeout)

    monkeypatch.setattr(gpu, "exit_status", once_begun)
    before = signal.signal(signal.SIGINT, signal.default_int_handler if heard else signal.SIG_IGN)
    try:
        gpu.run_part(file, ["-c", words], timeout=1)
    finally:
        signal.signal(signal.SIGINT, before)
    told = json.loads(file.read_text())
    assert told["status"] is None
    assert told["said"].startswith("begun\n")
    assert told["said"].endswith("KeyboardInterrupt\n")
    status, waited = Path(f"/proc/{started.read_text()}/stat"), 0
    while status.exists() and status.read_text().split()[2] != "Z":
        assert waited < 100
        waited += 1
        sleep(0.1)


def test_every_part_is_a_valid_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the step gives them, on a CPU and a toy; what takes long is left out."""
    commands, limits = list[list[str]](), list[float]()

    def run_part(file: Path, command: list[str], timeout: float) -> int:
        commands.append(command)
        limits.append(timeout)
        return 0

    monkeypatch.setattr(gpu, "run_part", run_part)
    words = ["--device", "cpu", "--shape", "cpu_16", "--dtype", "float32", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", ["gpu", "--out", str(tmp_path), *words])
    gpu.main()
    assert sum(limits) <= 10 * 60
    tests, *timed = commands
    assert [Path(word) for word in tests if word.startswith("tests/")]
    assert all(Path(word).exists() for word in tests if word.startswith("tests/"))
    assert len(timed) == len(gpu.TIMED)
    for command in timed:
        monkeypatch.setattr("sys.argv", command[1:])
        args = time.arguments()
        assert set(args.modes.split(",")) <= set(time.MODES)
        assert time.cases(args.decode)
        assert time.cases(args.prefill)
        assert time.cases(args.training)


def test_a_part_that_fails_ends_the_step_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "run_part", lambda file, *_, **__: int(file.stem == "prefill.run"))
    monkeypatch.setattr("sys.argv", ["gpu", "--out", str(tmp_path), "--device", "cpu"])
    with pytest.raises(ValueError, match="^prefill failed; see the logs in "):
        gpu.main()


def test_time_that_is_up_begins_nothing(tmp_path: Path) -> None:
    out = tmp_path / "lines.json"
    words = ["--method", "hero", "--shape", "cpu_16", "--modes", "block", "--rounds", "1"]
    machine = ["--device", "cpu", "--threads", "1", "--out", out]
    for minutes, lines in (("0", 0), ("5", 4)):
        steps.call("time", *words, "--bypass", "0,1", "--minutes", minutes, *machine)
        report = json.loads(out.read_text())
        assert (len(report["lines"]), report["left"]) == (lines, 2 if lines == 0 else 0)


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_on_a_gpu_deterministic_forms_are_timed_in_training_alone(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[bool]()

    def piece() -> list[time.Timing]:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return []

    monkeypatch.setattr(time, "claim_device", lambda _: nullcontext(device))
    pieces = [time.Piece("a step", piece, trains=True), time.Piece("a prompt", piece)]
    monkeypatch.setattr(time, "of_shape", lambda *_: pieces)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    words = ["--method", "hero", "--shape", "cpu_16", "--out", str(tmp_path / "lines.json")]
    monkeypatch.setattr("sys.argv", ["time", *words])
    time.main()
    assert seen == [True, device == "cpu"]


@pytest.mark.usefixtures("torch_as_it_was")
def test_pieces_of_training_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--method", "hero", "--shape", "cpu_16", "--out", str(tmp_path / "lines.json")]
    modes = "block,prefill,training,training-ffn"
    monkeypatch.setattr("sys.argv", ["time", *words, "--bypass", "0.5", "--modes", modes])
    bench = time.Bench("cpu", 1, 0)
    found = {piece.name: piece.trains for piece in time.of_shape(time.arguments(), bench)}
    assert {name for name, trains in found.items() if trains} == {
        f"{mode} 2x512 bypass 0.5{again}"
        for mode in ("training", "training-ffn")
        for again in ("", " recomputed")
    }


def test_a_graph_is_captured_before_the_clock_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--method", "hero", "--shape", "cpu_16", "--out", str(tmp_path / "lines.json")]
    for modes in ("decode", "decode,static"):
        monkeypatch.setattr("sys.argv", ["time", *words, "--modes", modes, "--warmup", "0"])
        refused = pytest.raises(ValueError, match="^--warmup is 0, must be at least 1 for mode")
        with refused if "static" in modes else nullcontext():
            time.check(time.arguments())


@pytest.mark.usefixtures("torch_as_it_was")
def test_a_case_that_does_not_fit_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plain = tmp_path / "lines.json", time.time_training

    def full(*given: Any) -> time.Timing:
        recompute = given[3]
        if not recompute:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")
        return plain(*given)

    monkeypatch.setattr(time, "time_training", full)
    words = ["--method", "hero", "--shape", "cpu_16", "--modes", "training", "--bypass", "0.5"]
    short = ["--rounds", "1", "--training", "1x8", "--device", "cpu", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["time", *words, *short])
    time.main()
    report = json.loads(out.read_text())
    assert [line["case"] for line in report["lines"]] == ["1x8 recomputed"]
    assert report["left"] == 1
    told = capsys.readouterr().out
    assert "training 1x8 bypass 0.5: more than the memory of the GPU\n" in told

    def cast(model: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")

    # What follows a cast needs it.
    monkeypatch.setattr(time, "cast_alternatives", cast)
    with pytest.raises(torch.OutOfMemoryError):
        time.main()


@pytest.mark.usefixtures("torch_as_it_was")
def test_small_operations_are_compiled_behind_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all models, for inference alone."""
    seen = list[str]()
    monkeypatch.setattr(time, "show", lambda line: seen.append(line["mode"]))
    monkeypatch.setattr(time, "compile_pieces", lambda model: seen.append("compiled"))
    monkeypatch.setattr(time.shutil, "which", lambda name: name)
    words = ["--method", "hero", "--shape", "cpu_16", "--modes", "training,decode", "--compile"]
    short = ["--bypass", "0.5", "--rounds", "1", "--training", "1x8", "--decode", "1x8"]
    out = ["--device", "cpu", "--out", str(tmp_path / "lines.json")]
    monkeypatch.setattr("sys.argv", ["time", *words, *short, *out])
    time.main()
    assert seen == ["training", "training", *3 * ["compiled"], "decode"]


def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    words = ["--out", tmp_path / "out", "--parts", "decode,sleep"]
    done = steps.python("-m", "workflows.steps.gpu", *words)
    assert done.returncode != 0
    assert "'sleep' is unknown (allowed: tests, decode, prefill, training)" in done.stderr
    assert not (tmp_path / "out").exists()
