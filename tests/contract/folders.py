"""Folders of every row, fitted with hardly any training, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from methods import load_model
from tests import steps
from tests.contract.fits import ROWS, budget_of
from tests.toys.models import make_backbone, untie
from tests.toys.texts import EOS

SHORT = {"updates": 2, "batch_tokens": 256, "row_length": 64}
QUICK: dict[str, dict[str, Any]] = {row: SHORT for row in ROWS if ROWS[row].trained}
QUICK["slicegpt"] = {"round_to": 1}
# What a backbone may ship: a temperature without sampling is a mistake that published ones make.
SHIPPED = {"repetition_penalty": 1.3, "temperature": 0.6, "eos_token_id": [EOS, 3, 9, 44]}


class Folders:
    """Fits a row once, with hardly any training, and keeps what ``save_pretrained`` makes of it."""

    def __init__(self, home: Path, data: dict[str, Path]) -> None:
        self.home = home
        self.data = data | {"calibration": data["ids"]}
        for kind in ("llama", "tied"):
            file = make_backbone(home / kind, kind) / "generation_config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | SHIPPED))
        untie(make_backbone(home / "own", "tied"))

    def fit(self, row: str, kind: str = "llama", **params: Any) -> Path:
        out = self.home / f"{kind}-{row}-{len(params)}"
        if not out.exists():
            given = json.dumps(QUICK.get(row, {}) | params)
            budget = budget_of(row)
            asked = ["--params", given, *([] if budget is None else ["--budget", budget])]
            fixed = [*asked, "--seed", 3, "--max-length", 64]
            parts = {"calibration": "calibration", "train": "training", "validation": "validation"}
            files = [
                word for flag, part in parts.items() for word in (f"--{flag}", self.data[part])
            ]
            steps.fit(row, self.home / kind, out, *fixed, *files)
        return out

    def save(self, row: str, kind: str = "llama") -> Path:
        folder = self.fit(row, kind)
        saved = folder.with_name(f"{folder.name}-saved")
        if not saved.exists():
            load_model(folder).save_pretrained(saved)
        return saved
