"""The console command: `skipbench fit ...` is `python -m workflows.steps.fit ...`.

Each command runs one step with its arguments.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

COMMANDS = (
    "rows", "fetch", "task_data", "fit", "score", "fidelity", "texts", "report", "site", "explain",
    "compare", "time", "cost", "plan", "status", "tune", "stock", "publish", "gpu", "lm_eval",
)  # fmt: skip


def main() -> None:
    """Run the step of a command; without a command, or with an unknown one, list them."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        print(usage())
        return
    if command in ("-V", "--version"):
        print(version())
        return
    if command not in COMMANDS:
        print(f"error: there is no command '{command}' ({', '.join(COMMANDS)})", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = [f"skipbench {command}", *sys.argv[2:]]
    # A step's package sets what libraries read when they are imported.
    step = import_module(f"workflows.steps.{command}")
    step.run(step.main)


def version() -> str:
    """The version of the package and the commit of the checkout."""
    # Not at the top: no command but this one needs them.
    from importlib import metadata

    from workflows.runtime.provenance import git

    try:
        number = metadata.version("skipbench")
    except metadata.PackageNotFoundError:
        number = "(not installed)"
    return f"skipbench {number}, commit {git('rev-parse', 'HEAD') or 'unknown'}"


def usage() -> str:
    """The commands with the first sentence of their steps."""
    lines = [f"  {command:<9} {_sentence(command)}" for command in COMMANDS]
    hint = "`skipbench COMMAND --help` lists a command's options, `skipbench --version` the commit."
    return "\n".join(["usage: skipbench COMMAND ...", "", *lines, "", hint])


def _sentence(step: str) -> str:
    """The first sentence of a step's docstring, read without importing the step."""
    source = Path(__file__).parent / "steps" / f"{step}.py"
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return docstring.splitlines()[0].split(": `")[0].rstrip(".:") + "."


if __name__ == "__main__":
    main()
