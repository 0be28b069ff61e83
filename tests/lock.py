"""Write requirements.lock: every package with its version and hash.

    make lock

A dry run of pip, which installs nothing, asks the package index for what the pins need. Versions
are those of this environment, in which the tests ran. The file is for this Python and platform.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

from workflows import ROOT
from workflows.runtime.files import write_text

LOCK = ROOT / "requirements.lock"
HEAD = """# Every package of the environment with its hash, from requirements.txt by `make lock`,
# for Python {python} on {machine} with the CPU build of torch, from an index that has it:
#   pip install --no-deps --require-hashes -r requirements.lock
"""


def main() -> None:
    """Write the file."""
    lines = sorted(resolve(), key=str.lower)
    python = ".".join(platform.python_version_tuple()[:2])
    head = HEAD.format(python=python, machine=f"{platform.system()} {platform.machine()}")
    write_text(LOCK, head + "".join(f"{line}\n" for line in lines))
    print(f"wrote {LOCK}: {len(lines)} packages")


def resolve() -> list[str]:
    """A line per package: name, version without a build label, hash of the file."""
    with TemporaryDirectory() as folder:
        installed = Path(folder, "installed.txt")
        pins = [f"{one.metadata['Name']}=={one.version}" for one in distributions()]
        pins = [pin for pin in pins if not pin.startswith(("skipbench=", "pip="))]
        installed.write_text("".join(f"{pin}\n" for pin in pins))
        report = Path(folder, "report.json")
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        inputs = ["--constraint", str(installed), "--requirement", str(ROOT / "requirements.txt")]
        command = [sys.executable, "-m", "pip", "install", *options, *inputs]
        subprocess.run(command, check=True)
        packages = json.loads(report.read_text())["install"]
    return [
        f"{one['metadata']['name']}=={one['metadata']['version'].partition('+')[0]}"
        f" --hash=sha256:{one['download_info']['archive_info']['hashes']['sha256']}"
        for one in packages
    ]


if __name__ == "__main__":
    main()
