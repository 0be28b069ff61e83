"""What people read of the tables is what the frames hold, rounded."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import steps

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
MATCHED = ["retain", "ranks", "differences_dense", "differences_hero", "budgets", "costs"]


def frame_of(site: Path, name: str) -> pd.DataFrame:
    """The lines of the CSV file that a table shows: all, or those of its protocol."""
    stem = name.removesuffix("_split")
    file = "differences" if stem.startswith("differences_") else stem
    frame = pd.read_csv(site / "report/tables" / f"{file}.csv")
    if stem not in MATCHED:
        return frame
    return frame[frame["match"] == ("split" if name.endswith("_split") else "pooled")]


@pytest.mark.parametrize("name", [*MATCHED, *(f"{name}_split" for name in MATCHED), "noise"])
def test_what_people_read_is_the_frame_rounded(site: Path, name: str) -> None:
    frame = frame_of(site, name)
    numbers = frame.select_dtypes("number").to_numpy(dtype=float).ravel()
    numbers = np.append(numbers[~np.isnan(numbers)], 1.0)
    text = (site / "report/tables" / f"{name}.md").read_text().split("\n\n")[0]
    page, cells_read = (site / "report/index.html").read_text(), 0
    for line in text.splitlines()[2:]:
        for cell in [part.strip() for part in line.strip("|").split(" | ")][1:]:
            bare = re.sub(r"</?u>|\*\*|\\\*| ≈", "", cell)
            if "budget" in bare or "threshold" in bare:
                bare = ""
            for matches in NUMBER.findall(bare):
                digits = len(matches.partition(".")[2])
                value = float(matches.replace(",", ""))
                near = np.abs(numbers - value).min()
                assert near <= 0.5 * 10**-digits + 1e-4, (line, matches)
                cells_read += 1
            assert bare in page
    assert cells_read >= 2 * text.count("\n")


HEADS = {
    "retain": {
        "Skip": "skip", "On prompts": "skip_prompt", "On answers": "skip_answer",
        "Net": "skip_net", "Retain": "retain", "left acc": "left:acc", "KL": "kl",
        "Agreement": "agreement", "KL on answers": "kl_answer",
        "Agreement on answers": "agreement_answer",
    },
    "ranks": {
        "Retain": "retain", "Rank": "rank", "Is first (%)": "first", "Behind the best": "behind",
        "Above chance": "above_chance", "Rank above chance": "above_rank",
        "Is first above chance (%)": "above_first",
        "Behind the best above chance": "above_behind",
    },
    "budgets": {
        "Realised": "skip", "Net": "skip_net", "Authors' measure": "skip_authors",
        "Spread over tokens": "token_std", "On prompts": "skip_prompt", "On answers": "skip_answer",
        "Likelihood": "skip_likelihood", "Generated": "skip_generated", "On texts": "skip_texts",
        "On their answers": "skip_texts_answer",
    },
    "costs": {
        "Trained parameters": "trained_parameters", "Training tokens": "training_tokens",
        "Fit (s)": "fit_seconds", "Fit (MB)": "fit_memory_mb", "Scored tokens": "scored_tokens",
        "Scoring (s)": "scoring_seconds", "Scoring (MB)": "scoring_memory_mb",
        "KL (s)": "fidelity_seconds",
    },
    "noise": {
        "Batch size": "batch_size", "Against": "against", "Items": "items", "Changed": "changed",
        "Retain": "retain", "Largest change of a task": "largest",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", [*HEADS, *(f"{name}_split" for name in HEADS if name in MATCHED)])
def test_every_head_stands_over_its_own_numbers(site: Path, name: str) -> None:
    frame = frame_of(site, name).to_dict("records")
    lines = (site / "report/tables" / f"{name}.md").read_text().split("\n\n")[0].splitlines()
    heads = [cell.strip() for cell in lines[0].split("|")]
    for entry, line in zip(frame, lines[2:], strict=True):
        cells = [re.sub(r"\*\*|</?u>| ≈|,", "", cell).strip() for cell in line.split("|")]
        for head, column in HEADS[name.removesuffix("_split")].items():
            text = cells[heads.index(head)].split(" ± ")[0]
            if math.isnan(entry[column]):
                assert text == "–"
            else:
                digits = len(text.partition(".")[2])
                assert abs(float(text) - entry[column]) <= 0.5 * 10**-digits + 1e-9


def test_every_table_of_a_protocol_says_which(site: Path) -> None:
    page = (site / "report/index.html").read_text()
    for name in MATCHED:
        for end, words in (("", "Match pooled: "), ("_split", "Match split: ")):
            assert words in (site / "report/tables" / f"{name}{end}.md").read_text()
            assert f"tables/{name}{end}.md" in page
    for match in ("pooled", "split"):
        assert page.count(f'<p class="match">Match {match}</p>') == len(MATCHED)


def test_the_report_is_the_same_bytes_again(site: Path, tmp_path: Path) -> None:
    seeds = ["--between-seeds", site / "several"]
    steps.call("report", "--results", site / "results", "--out", tmp_path, *seeds)
    files = [file for file in (site / "report").rglob("*") if file.is_file()]
    assert len(files) > 25
    for file in files:
        assert (tmp_path / file.relative_to(site / "report")).read_bytes() == file.read_bytes()
