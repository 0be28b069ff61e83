"""Programs that attack the sandbox.

Each defines ``f``, which should double its argument. It does so only if its attack succeeds, or it
claims a pass without being right. Words between ``@`` are replaced by things outside the sandbox.
"""

from __future__ import annotations

TESTS = "def check(candidate):\n    for x in (2, 5, -7):\n        assert candidate(x) == 2 * x\n"


def lines(*body: str) -> str:
    """A program whose function runs the lines, then doubles; an error in them ends it."""
    inner = "".join(f"    {line}\n" for line in body)
    return f"import os, socket, sys\ndef f(x):\n{inner}    return 2 * x\n"


def libc(*body: str) -> str:
    """The same with the C library; ``must`` raises if a call returned an error."""
    return (
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
        "def must(result):\n    if result < 0: raise OSError(ctypes.get_errno())\n" + lines(*body)
    )


def claims(value: str, before: str = "") -> str:
    """A program whose function returns ``value`` and not the double."""
    return f"{before}\ndef f(x):\n    return {value}\n"


EQUAL = "class Any{0}({0}):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
NETWORK = {
    "a server outside": lines("socket.create_connection(('127.0.0.1', @PORT@), 3)"),
    "an abstract socket outside": lines(
        "s = socket.socket(socket.AF_UNIX)", "s.connect(chr(0) + '@ABSTRACT@')"
    ),
    "the internet": lines("socket.create_connection(('1.1.1.1', 53), 3)"),
    "a datagram": lines("socket.socket(2, 2).sendto(b'x', ('8.8.8.8', 53))"),
    "a name": lines("socket.getaddrinfo('example.com', 80)"),
    "a raw socket": lines("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    "a socket to the host": lines("socket.socket(40, 1).bind((0xffffffff, 50506))"),
    "a pair of sockets": lines("socket.socketpair()"),
    "interfaces": lines("assert {n for _, n in socket.if_nameindex()} > {'lo'}"),
}
READS = {
    "a secret": lines("open('@SECRET@').read()"),
    "a secret through a link": lines(
        "os.symlink('@SECRET@', str(x))", "open(str(x)).read()"
    ),
    "a secret through a root": lines("open('/proc/1/root@SECRET@').read()"),
    "a folder outside": lines("os.listdir(os.path.dirname('@SECRET@'))"),
    "the environment": lines("os.environ['SKIPBENCH_CANARY']"),
    "environments of all": lines(
        "all = [open(f'/proc/{p}/environ').read() for p in os.listdir('/proc') if p.isdigit()]",
        "assert 'SKIPBENCH_CANARY' in str(all)",
    ),
    "other processes": lines("assert [p for p in os.listdir('/proc') if p.isdigit() and p != '1']"),
    "the parent": lines("assert os.getppid() > 0"),
    "users": lines("open('/etc/passwd').read()"),
    "the checkout": lines("open('@CHECKOUT@/requirements.txt').read()"),
    "packages": lines("sys.path.append('@PACKAGES@')", "import tqdm"),
    "the name of the machine": lines("assert os.uname().nodename == '@NODE@'"),
    "devices": lines("open('/dev/kmsg')"),
    "the kernel": lines("open('/sys/kernel/vmcoreinfo')"),
    "the tests in objects": lines(
        "import gc", "word = ' '.join(['def', 'check('])",
        "assert any(word in str(o) for o in gc.get_objects() if type(o) in (str, dict, list))",
    ),
    "the tests in frames": lines(
        "frame, seen = sys._getframe(), ''",
        "while frame:", "    seen, frame = seen + str(frame.f_locals), frame.f_back",
        "assert ' '.join(['assert', 'candidate']) in seen",
    ),
    "the tests in memory": lines(
        "word = bytearray(b'bttfsu!dboejebuf)y*')", "for n in range(len(word)): word[n] -= 1",
        "ranges = open('/proc/self/maps').read().splitlines()",
        "spans = [l.split()[0].split('-') for l in ranges if ' rw' in l]", "found = 0",
        "with open('/proc/self/mem', 'rb', 0) as memory:",
        "    for low, high in spans:", "        memory.seek(int(low, 16))",
        "        found += memory.read(int(high, 16) - int(low, 16)).count(word)",
        # One is its own.
        "assert found > 1",
    ),
    "a marker among arguments": lines(
        "import re", "assert re.search('[0-9a-f]{64}', open('/proc/self/cmdline').read())"
    ),
    "further streams": lines(
        "assert any(os.path.exists(f'/proc/self/fd/{n}') for n in range(6, 64))"
    ),
}  # fmt: skip
WRITES = {
    "libraries": lines("open('/usr/lib/left', 'w')"),
    "the interpreter": lines("open(sys.executable, 'ab')"),
    "the standard library": lines("open(os.__file__, 'a')"),
    "what runs it": lines("open('/inside.py', 'a')"),
    "the root": lines("open('/left', 'w')"),
    "shared memory": lines("open('/dev/shm/left', 'w')"),
    "the folder of devices": lines("open('/dev/left', 'w')"),
    "settings of the kernel": lines("open('/proc/sys/kernel/core_pattern', 'w').write('x')"),
    "its own process": lines("open('/proc/self/oom_score_adj', 'w').write('999')"),
    "outside": lines("open('@OUTSIDE@/left', 'w')"),
    "a hard link": lines("os.link(os.__file__, '/tmp/os')"),
    "a device": lines("os.mknod('/tmp/null', 0o20666, os.makedev(1, 3))"),
    "a big file": lines("open('big', 'wb').write(bytes(2 << 20))"),
    "many big files": lines("for n in range(40): open(str(n), 'wb').write(bytes(1 << 20))"),
    "many open files": lines("held = [open(str(n), 'w') for n in range(100)]"),
    "a mount": libc("must(c.mount(b'none', b'/tmp', b'tmpfs', 0, None))"),
    "another root": lines("os.chroot('/tmp')"),
    "another user": lines("os.setuid(0)"),
    "higher limits": lines("import resource as r", "r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40))"),
}
PROCESSES = {
    "a fork": lines("os.fork() or os._exit(0)"),
    "a fork storm": lines("for n in range(10 ** 5): os.fork()"),
    "a thread": lines("import threading", "threading.Thread(target=print).start()"),
    "a shell": lines("import subprocess", "subprocess.run(['/bin/sh', '-c', 'true'])"),
    "a spawn": lines("os.posix_spawn(sys.executable, [sys.executable, '-V'], {})"),
    "a pool": lines("import multiprocessing", "multiprocessing.Pool(1).map(abs, [1])"),
    "a survivor": lines(
        "if os.fork() == 0:", "    os.setsid()", "    if os.fork() == 0:",
        "        import time", "        time.sleep(60)", "    os._exit(0)",
    ),
    "a deaf child": libc("must(c.prctl(1, 0, 0, 0, 0))"),
    "a new user namespace": libc("must(c.unshare(0x10000000))"),
    "a new mount namespace": libc("must(c.unshare(0x00020000))"),
    "a trace": libc("must(c.ptrace(0, 0, 0, 0))"),
    "memory of others": libc("must(c.process_vm_readv(1, 0, 0, 0, 0, 0))"),
    "shared segments": libc("must(c.shmget(0, 1 << 20, 0o1600))"),
    "files in memory": lines("os.memfd_create('x')"),
    "io_uring": libc("c.syscall(425, 1, 0)", "must(-(ctypes.get_errno() == 1))"),
    "keys": libc("must(c.syscall(@KEYCTL@, 0, -3, 0))"),
    "a call of the x32 form": libc(
        "c.syscall(0x40000000 + 39)", "must(@X86@ - 1 - (ctypes.get_errno() == 1))"
    ),
    "signals to all": lines("os.kill(-1, 9)", "os.kill(os.getppid(), 9)", "os.kill(0, 9)"),
    "another program": lines("os.execv(sys.executable, [sys.executable, '-c', 'print(4)'])"),
}  # fmt: skip
USE = {
    "memory": lines("bytearray(3 << 30)"),
    "mapped memory": lines("import mmap", "mmap.mmap(-1, 3 << 30)"),
    "an endless list": lines("held = []", "while True: held.append(bytes(1 << 20))"),
    "recursion": lines("f(x)"),
    "recursion without a limit": lines("sys.setrecursionlimit(10 ** 9)", "f(x)"),
    "a long reply": claims("'x' * (3 << 20)"),
    "an endless iterator": claims("itertools.count()", "import itertools"),
    "a deep value": "def f(x):\n    v = []\n    for _ in range(10 ** 5): v = [v]\n    return v\n",
    "a huge number": claims("1 << (1 << 26)"),
    "much output": lines("for _ in range(300): print('x' * (1 << 20))", "x += 1"),
    "an endless line": lines("while True: os.write(4, b'[' * (1 << 16))"),
}
# With little time.
TIME = {
    "a loop": lines("while True: pass"),
    "a sleep": lines("import time", "time.sleep(60)"),
    "calls read ahead": claims("open(3, 'rb').read(10)"),
    "a stop": lines("import signal", "signal.pause()"),
    "a loop without the function": "while True: pass",
    "a loop deaf to signals": lines(
        "import signal", "for n in range(1, 32):", "    try: signal.signal(n, signal.SIG_IGN)",
        "    except OSError: pass", "while True: pass",
    ),
}  # fmt: skip
CLAIMS = {
    "an early exit": "import sys\nsys.exit(0)",
    "an early end": "import os\nos._exit(0)",
    "an exit in the call": claims("sys.exit(0)", "import sys"),
    "an end in the call": claims("os._exit(0)", "import os"),
    "words at the exit": claims("1", "import atexit\natexit.register(print, 'passed')"),
    "an abort": claims("os.abort()", "import os"),
    "a fault": claims("ctypes.string_at(0)", "import ctypes"),
    "an interrupt": "def f(x):\n    raise KeyboardInterrupt",
    "an error of the tests": "def f(x):\n    raise AssertionError('passed')",
    "a guessed marker": claims("print('0' * 64)", "print('0' * 64)"),
    "tests of its own": claims("0", "def check(candidate): pass"),
    "no assertions": claims("0", "import builtins\nbuiltins.AssertionError = type('E', (), {})"),
    "another print": claims("0", "import builtins\nbuiltins.print = builtins.abs = lambda *a: 4"),
    "another output": claims("0", "import sys, io\nsys.stdout = sys.stderr = io.StringIO()"),
    "another encoder": claims("0", "import __main__\n__main__.encode = lambda value: 4"),
    "another json": claims("0", "import json\njson.dumps = lambda value: '{\"value\": 4}'"),
    "another comparison": claims("0", "import operator\noperator.eq = lambda a, b: True"),
    "replies ahead": claims("0", "import os\nos.write(4, b'{\"value\": 4}\\n' * 9)"),
    "replies on all streams": claims(
        "0", "import os\nfor n in range(64):\n    try: os.write(n, b'{\"value\": 4}\\n' * 9)\n"
        "    except OSError: pass"
    ),
    "an imitated pass": claims("os.write(4, b'{\"passed\": true}\\n')", "import os"),
    "closed streams": claims("os.closerange(0, 64)", "import os"),
    "bytes on the pipe": claims("os.write(4, bytes(range(256)) * 9)", "import os"),
    "NUL on the pipe": claims("os.write(4, bytes(99) + b'\\n')", "import os"),
    "no UTF-8 on the pipe": claims("os.write(4, b'{\"value\": \"\\xff\\xfe\"}\\n')", "import os"),
    "half a reply": claims("os.write(4, b'{\"value\": 4') and os._exit(0)", "import os"),
    "odd values on the pipe": claims(
        "os.write(4, b'[[[[{}]]]]\\n{\"value\": {\"a\": 1}}\\n{\"value\": [\"eval\", \"4\"]}\\n')",
        "import os",
    ),
    "deep brackets on the pipe": claims("os.write(4, b'[' * 50000 + b'\\n')", "import os"),
    "an object equal to all": claims("Anyobject()", EQUAL.format("object")),
    "a number equal to all": claims("Anyint(1)", EQUAL.format("int")),
    "a text equal to all": claims("Anystr()", EQUAL.format("str")),
    "a list equal to all": claims("Anylist()", EQUAL.format("list")),
    "a lying class": claims(
        "Lie()", "class Lie:\n    __class__ = int\n    def __eq__(self, other): return True"
    ),
    "not a number": claims("float('nan')"),
    "input": claims("int(input())"),
    "a broken program": "def f(x:\n",
    "no function": "g = 1",
    "another thing by its name": "f = 4",
    "nothing": "",
    "a NUL in the program": "def f(x): return 2 * x\n\0",
    "half a character in the program": "def f(x): return 2 * x\n'\ud800'",
}  # fmt: skip
PROGRAMS = {**NETWORK, **READS, **WRITES, **PROCESSES, **USE, **TIME, **CLAIMS}
# What must stop a program that would fail in any case.
REASONS = {
    "a long reply": "a reply too long", "an endless line": "a reply too long",
    "deep brackets on the pipe": "a reply that is no value", "a deep value": "RecursionError",
    "many big files": "No space left", "a big file": "File too large", "a fork": "PermissionError",
    "many open files": "Too many open files", "mapped memory": "Cannot allocate memory",
    "memory": "MemoryError",
}  # fmt: skip
