"""A step as a program: errors as one sentence, common arguments, threads, memory."""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from safetensors import SafetensorError

from workflows.runtime.devices import device_name
from workflows.runtime.errors import sentence
from workflows.runtime.heartbeat import own_log, status_file


def run(main: Callable[[], None]) -> None:
    """Run a step; on a wrong input print one sentence and exit with status 2.

    With ``SKIPBENCH_DEBUG=1`` the traceback is printed too.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    try:
        with line_by_line(), status_file(own_log()):
            main()
    except (ValueError, OSError, SafetensorError) as error:
        # With a full disk safetensors raises an error of its own.
        if os.environ.get("SKIPBENCH_DEBUG"):
            traceback.print_exc()
        print(f"error: {sentence(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except RuntimeError as error:
        # torch's, whose import costs a second.
        if type(error).__name__ != "OutOfMemoryError":
            raise
        print(
            "error: the GPU's memory is full; an evaluation takes less with a smaller batch_size, "
            "training with micro_tokens or checkpointing under `params` of this row alone",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt as stop:
        # A training that can be continued raises this with a message and the signal's status.
        print(
            str(stop) or "interrupted; nothing half-written is left under its final name",
            file=sys.stderr,
        )
        raise SystemExit(getattr(stop, "status", 130)) from None
    finally:
        # Saves time: the interpreter collects garbage once more at its end.
        gc.freeze()


class Lines:
    """A stream without a terminal, in which each state of a progress bar is a line of its own.

    A bar returns to the start of its line and moves the cursor up. Here the first ends the line,
    and the second is dropped.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.rest = stream, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Pass on all complete lines."""
        *lines, self.rest = (self.rest + text.replace("\x1b[A", "")).replace("\r", "\n").split("\n")
        self.stream.writelines(f"{line.rstrip()}\n" for line in lines if line.strip())
        return len(text)

    def flush(self) -> None:
        """Pass on the last state of a bar, whose line ends only when it is drawn again."""
        self.write("\n")
        self.stream.flush()


@contextmanager
def line_by_line() -> Iterator[None]:
    """Write standard error as lines for the length of the block, unless it is a terminal."""
    if sys.stderr.isatty():
        yield
        return
    lines = Lines(sys.stderr)
    with redirect_stderr(cast(TextIO, lines)):
        try:
            yield
        finally:
            lines.flush()


class Help(argparse.RawDescriptionHelpFormatter):
    """Help in which every option has its default, or the word required."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.required and action.option_strings:
            return f"{text} (required)"
        if action.default is False:
            return f"{text} (default: off)"
        if action.default in (None, "", argparse.SUPPRESS):
            return text
        return f"{text} (default: %(default)s)"


def step_parser(description: str | None) -> argparse.ArgumentParser:
    """The command line of a step; the help of an option says what a default of None or "" means."""
    return argparse.ArgumentParser(description=description, formatter_class=Help)


def add_suite_argument(parser: argparse.ArgumentParser) -> None:
    """The option ``--suite``: a suite file and overlays, in the order in which they merge."""
    parser.add_argument(
        "--suite", required=True, nargs="+", action="extend", metavar="FILE.yaml",
        help="a suite, then overlays",
    )  # fmt: skip


def check_positive(args: argparse.Namespace, *names: str) -> None:
    """Refuse numbers below 1.

    Raises:
        ValueError: With the name of the first such option.
    """
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}, must be at least 1")


def command_of(args: argparse.Namespace) -> dict[str, str]:
    """The options that were given, for a report; without the file that it is written to."""
    return {key: str(v) for key, v in vars(args).items() if v is not None and key != "out"}


def add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose hardware and threads; they change last bits, so a trained router
    may end elsewhere.
    """
    parser.add_argument(
        "--device", default="auto", type=device_name,
        help="auto, gpu (a free one, never the CPU), cpu, cuda or cuda:N",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")


def set_up_torch(threads: int) -> None:
    """Set torch so that results repeat, on a GPU and with any number of Snakemake's cores.

    Raises:
        ValueError: The number of threads is below 1.
    """
    import torch

    if threads < 1:
        raise ValueError(f"--threads is {threads}, must be at least 1")
    # Without it, sums of cuBLAS may differ from run to run. cuBLAS reads it at its first product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # No code here reads memory that was not written, so to fill it first only costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def reset_peak_memory() -> None:
    """Let :func:`peak_memory_mb` measure from now on, if the kernel allows that."""
    import torch

    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def peak_memory_mb() -> float:
    """Peak memory of this process in MB (2^20 bytes): resident set, plus CUDA allocations."""
    import torch

    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cuda = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_initialized() else 0.0
    return round(resident + cuda, 1)
