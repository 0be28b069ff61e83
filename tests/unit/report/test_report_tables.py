"""What people read, held against the frames it is made from."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
FRAMES = {"differences_dense": "differences", "differences_hero": "differences"}

HEADS = {
    "retain": {"Skip": "skip", "Net": "skip_net", "Retain": "retain", "left acc": "left:acc"},
    "ranks": {
        "Retain": "retain", "Rank": "rank", "Leads in (%)": "first", "Behind the best": "behind",
    },
    "budgets": {
        "Realised": "skip", "Net": "skip_net", "Authors' measure": "skip_authors",
        "Spread over tokens": "token_std", "Prompt": "skip_prompt", "Answer": "skip_answer",
        "Generated": "skip_generated",
    },
    "costs": {
        "Trained parameters": "trained_parameters", "Training tokens": "training_tokens",
        "Fit (s)": "fit_seconds", "Fit (MB)": "fit_memory_mb", "Scored tokens": "scored_tokens",
        "Scoring (s)": "scoring_seconds", "Scoring (MB)": "scoring_memory_mb",
    },
    "noise": {
        "Batch size": "batch_size", "Against": "against", "Items": "items", "Changed": "changed",
        "Retain": "retain", "Largest change of a task": "largest",
    },
    "training_noise": {
        "Threads": "threads", "Items": "items", "Changed": "changed", "Retain": "retain",
        "Again": "again", "Difference": "difference", "of skip": "skip_difference",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", [*HEADS, *FRAMES])
def test_what_people_read_is_the_frame_rounded(made: Path, name: str) -> None:
    frame = pd.read_csv(made / "report/tables" / f"{FRAMES.get(name, name)}.csv")
    known = frame.select_dtypes("number").to_numpy(dtype=float).ravel()
    known = np.append(known[~np.isnan(known)], 1.0)
    text = (made / "report/tables" / f"{name}.md").read_text().split("\n\n")[0]
    page, read = (made / "report/index.html").read_text(), 0
    for line in text.splitlines()[2:]:
        for cell in [part.strip() for part in line.strip("|").split(" | ")][1:]:
            bare = re.sub(r"</?u>|\*\*|\\\*| ≈", "", cell)
            if "budget" in bare:
                bare = ""
            for found in NUMBER.findall(bare):
                digits = len(found.partition(".")[2])
                value = float(found.replace(",", ""))
                near = np.abs(known - value).min()
                assert near <= 0.5 * 10**-digits + 1e-4, (line, found)
                read += 1
            assert bare in page
    assert read >= 2 * text.count("\n")


@pytest.mark.parametrize("name", HEADS)
def test_every_head_stands_over_its_own_numbers(made: Path, name: str) -> None:
    frame = pd.read_csv(made / "report/tables" / f"{name}.csv").to_dict("records")
    lines = (made / "report/tables" / f"{name}.md").read_text().split("\n\n")[0].splitlines()
    heads = [cell.strip() for cell in lines[0].split("|")]
    for told, line in zip(frame, lines[2:], strict=True):
        cells = [re.sub(r"\*\*|</?u>| ≈|,", "", cell).strip() for cell in line.split("|")]
        for head, column in HEADS[name].items():
            shown = cells[heads.index(head)].split(" ± ")[0]
            if math.isnan(told[column]):
                assert shown == "–"
            else:
                digits = len(shown.partition(".")[2])
                assert abs(float(shown) - told[column]) <= 0.5 * 10**-digits + 1e-9
