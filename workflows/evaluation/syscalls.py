"""A filter of system calls for the sandbox: a program of classic BPF for ``bwrap --seccomp``.

It refuses calls that a computation does not need and that namespaces and limits do not restrict:

- a new process or thread (the limit of their number does not hold for root),
- memory that no limit of a process counts,
- another process's memory, other namespaces,
- sockets (no namespace holds those of AF_VSOCK),
- parts of the kernel that had most of its holes.

All other calls are allowed. A refused call fails with EPERM; a call of another architecture kills
the process.

Source: numbers from the kernel's ``asm/unistd_64.h`` and ``asm-generic/unistd.h``; form from
``linux/filter.h``, ``linux/seccomp.h`` and ``linux/audit.h``.
"""

from __future__ import annotations

import errno
import struct

# Machine -> its number in a filter (AUDIT_ARCH_*).
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Name -> number on x86_64 and on aarch64; None: there is no such call.
REFUSED: dict[str, tuple[int, int | None]] = {
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435),
    "unshare": (272, 97), "setns": (308, 268),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "socket": (41, 198), "socketpair": (53, 199),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "mount": (165, 40), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
}  # fmt: skip
PRCTL, SET_DEATH_SIGNAL = (157, 167), 1
# Calls of x86_64's x32 form have this bit.
X32 = 0x40000000
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
KILL, REFUSE, ALLOW = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000
# Offsets of the number of a call, the architecture, and the lower half of the first argument.
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16


def program(machine: str) -> bytes:
    """The filter of a machine.

    Args:
        machine: One of ``ARCHITECTURES``, as ``platform.machine()`` says it.

    Returns:
        Instructions of 8 bytes each.
    """
    column = list(ARCHITECTURES).index(machine)
    numbers = [pair[column] for pair in REFUSED.values()]
    refused = [number for number in numbers if number is not None]
    last = [
        (EQUAL, 0, 2, PRCTL[column]), (LOAD, 0, 0, ARGUMENT), (EQUAL, 1, 0, SET_DEATH_SIGNAL),
        (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE),
    ]  # fmt: skip
    # Number of steps from the first comparison of a number to REFUSE.
    away = len(refused) + len(last) - 1
    steps = [
        (LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, ARCHITECTURES[machine]), (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER), (AT_LEAST, away, 0, X32),
        *((EQUAL, away - 1 - at, 0, number) for at, number in enumerate(refused)), *last,
    ]  # fmt: skip
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
