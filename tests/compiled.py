"""Compile kernels ahead of time, for GPUs that this machine lacks.

A launch is compiled as on the device: pointers are aligned to 16 bytes, and the compiler learns
which integers are 1 or divisible by 16. The binary shows registers, shared memory, spills, the
width of loads and the use of tensor cores.

Each module of ``tests/kernel_cases`` gives its launches as ``cases()``. The table of all:

    python -m tests.compiled --out reports/reference/kernels.csv

Under ``TRITON_INTERPRET=1`` (``tests/conftest.py``) nothing can be compiled, so tests take the
table from another process: ``compile_cases(["decode"])``.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from methods.kernels.launch import Launch

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "kernel_cases"
TARGETS = (80, 89, 90, 100)
COLUMNS = (
    "kernel", "shape", "target", "registers", "shared", "local",
    "loads_128", "tensor_core", "warps", "barriers", "waits", "early",
)  # fmt: skip
# Registers and bytes of shared memory of one multiprocessor; programs also reserve 1 KiB each.
REGISTERS = 65536
SHARED = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
# Of an argument; of a part of a tuple, the tuple's place and its own.
Place = tuple[int, ...]


class Case(NamedTuple):
    """One launch over meta tensors; ``shape`` names the sizes.

    ``targets``: devices of this launch; some launches depend on the device.
    """

    kernel: str
    shape: str
    launch: Launch
    targets: Sequence[int] = TARGETS


class Binary(NamedTuple):
    """What a compiled kernel needs and holds.

    ``target`` is the compute capability times ten, ``registers`` are per thread, ``shared`` bytes
    per program, ``local`` bytes per thread, stack included. Instructions: ``loads_128``, global
    loads of 128 bits (also straight to shared memory), ``tensor_core``, matrix products,
    ``spills``, accesses of local memory, and ``barriers`` of a whole program. ``waits`` counts the
    runs of global loads that barriers part: what is in one run is on its way at the same time.
    ``early`` counts the global loads before a dependent launch waits for the one before it.
    """

    kernel: str
    shape: str
    target: int
    registers: int
    shared: int
    local: int
    loads_128: int
    tensor_core: int
    warps: int
    spills: int
    barriers: int
    waits: int
    early: int

    @property
    def resident(self) -> int:
        """How many programs one multiprocessor holds at a time."""
        # Registers are handed out to warps in units of 256.
        per_warp = -(-self.registers * 32 // 256) * 256
        by_shared = SHARED[self.target] // (self.shared + 1024)
        return min(REGISTERS // (per_warp * self.warps), by_shared)


def compile_launch(launch: Launch, capability: int) -> tuple[Any, dict[Place, Any]]:
    """A launch as compiled, and its arguments that are constants then."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    signature, constants, attributes = _specialise(launch.kernel, launch.arguments)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options), constants


def compile_case(case: Case, capability: int) -> Binary:
    """Compile a launch for ``cuda`` devices of ``capability`` (80, 89, 90 or 100)."""
    kernel, _ = compile_launch(case.launch, capability)
    usage, code = _disassemble(kernel.asm["cubin"])
    return Binary(
        kernel=case.kernel,
        shape=case.shape,
        target=capability,
        registers=int(re.findall(r"REG:(\d+)", usage)[0]),
        shared=kernel.metadata.shared,
        local=sum(map(int, re.findall(r"\b(?:LOCAL|STACK):(\d+)", usage))),
        loads_128=len(re.findall(r"\bLDG(?:STS)?\.E(?:\.\w+)*\.128\b", code)),
        tensor_core=len(re.findall(r"\b(?:HMMA|QGMMA|HGMMA|UTC\w*MMA)\b", code)),
        warps=kernel.metadata.num_warps,
        spills=len(re.findall(r"\b(?:STL|LDL)\b", code)),
        barriers=len(re.findall(r"\bBAR\.", code)),
        early=len(re.findall(r"\bLDG", code.partition("ACQBULK")[0])) if "ACQBULK" in code else 0,
        waits=len(re.findall(r"(?:LDG )+", " ".join([*re.findall(r"\b(?:LDG|BAR)", code), ""]))),
    )


def _specialise(
    function: Any, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[Place, Any], dict[Place, Any]]:
    """Types, constants and divisibility of a launch's arguments, by Triton's launcher."""
    from triton._C.libtriton import native_specialize_impl
    from triton._utils import find_paths_if, get_iterable_path
    from triton.backends.nvidia.compiler import CUDABackend

    values = [arguments[parameter.name] for parameter in function.params]
    types, keys = [], []
    for parameter, value in zip(function.params, values, strict=True):
        kind, key = "constexpr", None
        if not parameter.is_constexpr:
            special = not parameter.do_not_specialize
            kind, key = native_specialize_impl(CUDABackend, value, False, special, True)
        types.append(kind)
        keys.append(key)
    constants = find_paths_if(types, lambda _, kind: kind == "constexpr")
    aligned = find_paths_if(keys, lambda _, key: isinstance(key, str))
    return (
        dict(zip(function.arg_names, types, strict=True)),
        {path: get_iterable_path(values, path) for path in constants},
        {path: CUDABackend.parse_attr(get_iterable_path(keys, path)) for path in aligned},
    )


def _disassemble(cubin: bytes) -> tuple[str, str]:
    """Resource usage and machine code, by tools that come with Triton."""
    from triton.backends import nvidia

    tools = Path(nvidia.__path__[0]) / "bin"
    with tempfile.TemporaryDirectory(prefix="skipbench-cubin-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        commands = ([tools / "cuobjdump", "-res-usage", file], [tools / "nvdisasm", "-c", file])
        usage, code = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for command in commands
        )
    return usage, code


def cases(names: Sequence[str]) -> Iterator[Case]:
    """The launches of the modules ``names`` of ``tests/kernel_cases``; of all if there is none."""
    for name in names or sorted(file.stem for file in CASES.glob("[a-z]*.py")):
        yield from importlib.import_module(f"tests.kernel_cases.{name}").cases()


def compile_cases(names: Sequence[str], targets: Sequence[int] = TARGETS) -> list[Binary]:
    """Compile every launch of the modules ``names`` for every target, in another process."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.compiled", "--json", *names]
    command += ["--targets", *map(str, targets)]
    with tempfile.TemporaryDirectory(prefix="skipbench-triton-") as cache:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment | {"TRITON_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [Binary(**json.loads(line)) for line in done.stdout.splitlines()]


def main() -> None:
    """Write the table as CSV, or every row as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="of tests/kernel_cases; default: all")
    parser.add_argument("--targets", nargs="+", type=int, default=TARGETS)
    parser.add_argument("--out", type=Path, help="CSV file; default: standard output")
    parser.add_argument("--json", action="store_true", help="lines of JSON")
    args = parser.parse_args()
    rows = (
        compile_case(case, target)._asdict()
        for case in cases(args.modules)
        for target in args.targets
        if target in case.targets
    )
    if args.json:
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    text = args.out.open("w", newline="", encoding="utf-8") if args.out else sys.stdout
    with text:
        writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
