"""Run all that needs a GPU, the most important first: `python -m workflows.steps.gpu --out DIR`.

    tests      tests/gpu, with the kernels' own, in several processes: most of it is compiling
    decode     batch 1, 8, 32 at forced bypass rates, as CUDA graphs and without
    prefill    prompts at the same rates; like decode with small operations compiled
    training   one step over LoRA on every linear layer, or on the FFNs of the routed layers alone,
               with and without recomputation

Each part is a process that writes DIR/PART.json, again after every line, and a log. If one fails or
runs out of time, the others still run; all limits together are ten minutes.
`--device cpu --shape cpu_16` rehearses all of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic

from workflows import ROOT
from workflows.runtime.files import write_json
from workflows.runtime.program import run, step_parser

TESTS = (
    "tests/gpu", "tests/unit/kernels", "tests/unit/methods/test_hero_kernels.py",
    "tests/unit/methods/test_hero_kernels_streams.py",
    # Compiling for other GPUs takes minutes and needs no GPU.
    "--ignore-glob=*_compiled.py",
)  # fmt: skip
TEST_SECONDS = 130
# Part -> seconds, arguments of the time step.
TIMED = {
    "decode": (
        130,
        "--modes static,decode --compile --bypass 0.765,0.5,0,0.25,1 "
        "--decode 1x1024,8x1024,32x1024",
    ),
    "prefill": (
        100,
        "--modes prefill --compile --bypass 0.765,0.5,0,0.25,1 "
        "--prefill 8x2048,1x2048,1x8192,1x512",
    ),
    "training": (120, "--modes training,training-ffn --bypass 0.765,0.5 --training 2x2048"),
}
# Seconds: a part that begins nothing new still ends what it began.
GRACE = 30
# Each process holds a context on the GPU.
MOST_PROCESSES = 12


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="for results")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, cpu")
    parser.add_argument(
        "--shape", default="llama31_8b", help="a name of methods/core/model/shapes.py"
    )
    parser.add_argument("--dtype", default="bfloat16", help="of the weights")
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of each model")
    parser.add_argument("--parts", default=",".join(("tests", *TIMED)), help="parts to run: a,b,c")
    return parser.parse_args()


def main() -> None:
    """Run the parts."""
    args = arguments()
    parts = args.parts.split(",")
    unknown = sorted(set(parts) - {"tests", *TIMED})
    if unknown:
        raise ValueError(
            f"--parts: '{unknown[0]}' is unknown (allowed: {', '.join(('tests', *TIMED))})"
        )
    if "tests" in parts and not (ROOT / TESTS[0]).is_dir():
        raise ValueError(f"--parts tests: {ROOT} has no tests; call this from a checkout")
    # The commands below run in the checkout.
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    ends = {}
    if "tests" in parts:
        processes = min(MOST_PROCESSES, os.cpu_count() or 1)
        words = "--dist load -v --tb=short --maxfail=10 -p no:cacheprovider -rs"
        command = ["-m", "pytest", "-n", str(processes), *words.split(), *TESTS]
        ends["tests"] = run_part(args.out / "tests.json", command, timeout=TEST_SECONDS + GRACE)
    for part in (part for part in TIMED if part in parts):
        seconds, words = TIMED[part]
        out = args.out / f"{part}.json"
        machine = ["--device", args.device, "--shape", args.shape, "--dtype", args.dtype]
        limits = ["--rounds", str(args.rounds), "--minutes", str(seconds / 60), "--out", str(out)]
        command = ["-m", "workflows.steps.time", "--method", "hero", *words.split()]
        ends[part] = run_part(
            args.out / f"{part}.run.json", [*command, *machine, *limits],
            timeout=seconds + GRACE,
        )  # fmt: skip
    if failed := [part for part, status in ends.items() if status != 0]:
        raise ValueError(f"{', '.join(failed)} failed; see the logs in {args.out}")


def run_part(file: Path, command: list[str], timeout: float) -> int | None:
    """Run Python with a command from the root; write its outcome to ``file``, its output to a log.

    Returns:
        How it ended, see :func:`exit_status`.

    Processes that it started are killed when it ends.
    """
    start, log = monotonic(), file.with_suffix(".log")
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-u", *command], cwd=ROOT, start_new_session=True,
            stdout=output, stderr=subprocess.STDOUT, preexec_fn=heed_interrupts,
        )  # fmt: skip
        try:
            status = exit_status(child, timeout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    outcome = {
        "command": " ".join(command),
        "status": status,
        "seconds": round(monotonic() - start, 1),
        "said": text[-4000:],
    }
    write_json(file, outcome)
    print(f"{file.stem}: status {status}, {outcome['seconds']} s\n{text[-1500:]}", flush=True)
    return status


def heed_interrupts() -> None:
    """Heed interrupts: children of a shell's background job inherit that it ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def exit_status(child: subprocess.Popen[bytes], timeout: float) -> int | None:
    """The exit status; None if time ran out."""
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        # Interrupted, not killed: then pytest still shows its failures.
        os.killpg(child.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(10)
        return None


if __name__ == "__main__":
    run(main)
