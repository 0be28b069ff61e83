"""A step as a program: errors as one sentence, arguments that all share, threads, memory."""

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

from methods.core.jsonfile import parse_json
from workflows.runtime.errors import sentence
from workflows.runtime.heartbeat import own_log, watched


def run(main: Callable[[], None]) -> None:
    """Run a step; bad input ends in one sentence and exit status 2.

    ``SKIPBENCH_DEBUG=1`` shows the traceback as well.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    try:
        with line_by_line(), watched(own_log()):
            main()
    except (ValueError, OSError, SafetensorError) as error:
        # safetensors reports a full disk as an error of its own.
        if os.environ.get("SKIPBENCH_DEBUG"):
            traceback.print_exc()
        print(f"error: {sentence(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as stop:
        # A training that can be continued says so, and which signal it followed.
        print(str(stop) or "interrupted; nothing half-written is left", file=sys.stderr)
        raise SystemExit(getattr(stop, "status", 130)) from None
    finally:
        # The interpreter would look for garbage once more before it goes.
        gc.freeze()


class Lines:
    """A stream that is no terminal: each state of a progress bar becomes a line of its own.

    Bars return to the start of their line and move the cursor up; neither reaches the stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.rest = stream, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Pass on the lines that are whole."""
        *lines, self.rest = (self.rest + text.replace("\x1b[A", "")).replace("\r", "\n").split("\n")
        self.stream.writelines(f"{line.rstrip()}\n" for line in lines if line.strip())
        return len(text)

    def flush(self) -> None:
        """Pass on what was drawn last: a bar ends its line when it is drawn again."""
        self.write("\n")
        self.stream.flush()


@contextmanager
def line_by_line() -> Iterator[None]:
    """Errors and bars as lines for the length of the block, unless a terminal shows them."""
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
    """Every option says what it is when left out, or that it must be given."""

    def _get_help_string(self, action: argparse.Action) -> str:
        told = action.help or ""
        if action.required and action.option_strings:
            return f"{told} (required)"
        if action.default is False:
            return f"{told} (default: off)"
        if action.default in (None, "", argparse.SUPPRESS):
            return told
        return f"{told} (default: %(default)s)"


def step_parser(description: str | None) -> argparse.ArgumentParser:
    """The command line of a step; what a default of None or "" means stands in the help."""
    return argparse.ArgumentParser(description=description, formatter_class=Help)


def json_argument(text: str, name: str) -> Any:
    """A command line value as JSON.

    Raises:
        ValueError: It is not JSON.
    """
    return parse_json(text, name)


def check_positive(args: argparse.Namespace, *names: str) -> None:
    """Refuse numbers below 1.

    Raises:
        ValueError: The first such option.
    """
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}, must be at least 1")


def add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that choose hardware and never change what is computed."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")


def set_up_torch(threads: int) -> None:
    """Make numbers repeat: on a GPU, and whatever number of cores Snakemake gives."""
    import torch

    if threads < 1:
        raise ValueError(f"--threads is {threads}, must be at least 1")
    # cuBLAS reads it before its first product, and without it sums may differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # No code here reads memory before it is written; filling it first is time alone.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def reset_peak_memory() -> None:
    """Let :func:`peak_memory_mb` look back no further than now, where the kernel allows it."""
    import torch

    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory_mb() -> float:
    """Peak memory of this process in MB: resident set, plus CUDA allocations."""
    import torch

    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cuda = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    return round(resident + cuda, 1)
