"""The lowest versions that pyproject.toml allows, as pins: `python -m tests.lowest`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest() -> list[str]:
    """A pin of each package that the suite and its tests need."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    ranges = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    matches = [re.match(r"([\w.-]+)>=([^,]+)", line) for line in ranges]
    return [f"{match[1]}=={match[2]}" for match in matches if match]


if __name__ == "__main__":
    print("\n".join(lowest()))
