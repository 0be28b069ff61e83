"""Scores of single tasks on disk: taken again only for the very same evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.router import Unit
from workflows.evaluation.kept import KeptTasks
from workflows.evaluation.tasklist import TaskEntry

ENTRY = TaskEntry("toy_choice", metric="acc", limit=2)


@pytest.fixture
def ledger() -> Ledger:
    units = [Unit(1, "ffn", 30), Unit(2, "ffn", 30)]
    return Ledger(100, 100, units, always=2, instead=(1, 1), layers=3, dense_layers=3)


def scored(ledger: Ledger) -> tuple[list[dict[str, Any]], pd.DataFrame, dict[str, Tally]]:
    tally = Tally(ledger)
    tally.add(torch.rand(2, 7, generator=torch.Generator().manual_seed(0)) < 0.5, 7)
    items = pd.DataFrame({"task": ["toy_choice"] * 2, "item": [0, 1], "value": [1.0, 0.0]})
    return [{"task": "toy_choice", "value": 1 / 3}], items, {"prompt": tally}


def test_what_was_kept_is_read_back_to_the_bit(ledger: Ledger, tmp_path: Path) -> None:
    kept = KeptTasks(tmp_path / "tasks", ledger, {"batch_size": 4})
    assert kept.read(ENTRY) is None
    scores, items, tallies = scored(ledger)
    kept.write(ENTRY, scores, items, tallies)
    found = kept.read(ENTRY)
    assert found is not None
    assert found[0] == scores
    pd.testing.assert_frame_equal(found[1], items)
    assert found[2]["prompt"].tokens == 7
    assert found[2]["prompt"].rates() == tallies["prompt"].rates()


@pytest.mark.parametrize(
    ("identity", "entry"),
    [
        ({"batch_size": 8}, ENTRY),
        ({"batch_size": 4}, TaskEntry("toy_choice", metric="acc", limit=3)),
        ({"batch_size": 4}, TaskEntry("toy_choice", metric="acc", limit=2, num_fewshot=1)),
    ],
)
def test_another_evaluation_is_not_taken_for_it(
    identity: dict[str, Any], entry: TaskEntry, ledger: Ledger, tmp_path: Path
) -> None:
    KeptTasks(tmp_path, ledger, {"batch_size": 4}).write(ENTRY, *scored(ledger))
    assert KeptTasks(tmp_path, ledger, identity).read(entry) is None


TASK = {
    "mine.yaml": "include: base\ntask: mine\nprocess_docs: !function code.docs\n",
    "base": "dataset_path: json\ndataset_kwargs: {data_files: {test: DATA/*.jsonl}}\n",
    "code.py": "import helpers\n\ndef docs(rows): return rows\n",
    "helpers.py": "WORDS = 1\n",
    "data/one.jsonl": '{"a": 1}\n',
    "theirs.yaml": "task: theirs\n",
    "text.txt": "w1 w2",
}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A folder with all that ``mine`` is made of, a text, and a task beside it."""
    for name, text in TASK.items():
        file = tmp_path / "tasks" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("DATA", str(tmp_path / "tasks/data")))
    return tmp_path / "tasks"


def edit(file: Path) -> None:
    """One line more, in a new file where there is none."""
    with file.open("a") as stream:
        stream.write("\n# more")


@pytest.mark.parametrize(
    "name", ["mine.yaml", "base", "code.py", "helpers.py", "data/one.jsonl", "data/two.jsonl"]
)
def test_what_a_task_is_made_of_counts_by_what_it_holds(
    name: str, task: Path, ledger: Ledger, tmp_path: Path
) -> None:
    entry = TaskEntry("mine")
    KeptTasks(tmp_path / "kept", ledger, {}, [task]).write(entry, *scored(ledger))
    edit(task / "theirs.yaml")
    assert KeptTasks(tmp_path / "kept", ledger, {}, [task]).read(entry) is not None
    edit(task / name)
    assert KeptTasks(tmp_path / "kept", ledger, {}, [task]).read(entry) is None


def test_texts_and_data_that_an_entry_names_count_by_what_they_hold(
    task: Path, ledger: Ledger, tmp_path: Path
) -> None:
    folder = {"data_dir": str(task / "data")}
    for entry, name in (
        (TaskEntry("perplexity:t", file=str(task / "text.txt")), "text.txt"),
        (TaskEntry("piqa", config={"dataset_kwargs": folder}), "data/one.jsonl"),
        (TaskEntry("boolq", config={"dataset_path": str(task / "data")}), "data/one.jsonl"),
    ):
        KeptTasks(tmp_path / "kept", ledger, {}).write(entry, *scored(ledger))
        assert KeptTasks(tmp_path / "kept", ledger, {}).read(entry) is not None
        edit(task / name)
        assert KeptTasks(tmp_path / "kept", ledger, {}).read(entry) is None


def test_data_of_the_hub_count_by_what_was_fetched(ledger: Ledger, tmp_path: Path) -> None:
    told = tmp_path / "prepared/toy_choice.json"
    told.parent.mkdir()
    told.write_text('{"files": [{"path": "a.parquet", "sha256": "0"}]}')
    kept = KeptTasks(tmp_path / "kept", ledger, {}, task_data=told.parent)
    kept.write(ENTRY, *scored(ledger))
    assert kept.read(ENTRY) is not None
    told.write_text('{"files": [{"path": "a.parquet", "sha256": "1"}]}')
    assert kept.read(ENTRY) is None


def test_what_changes_while_it_is_scored_is_not_kept(
    task: Path, ledger: Ledger, tmp_path: Path
) -> None:
    entry = TaskEntry("perplexity:t", file=str(task / "text.txt"))
    kept = KeptTasks(tmp_path / "kept", ledger, {})
    assert kept.read(entry) is None
    edit(task / "text.txt")
    with pytest.raises(ValueError, match="a file of task 'perplexity:t' changed while it was scor"):
        kept.write(entry, *scored(ledger))
    assert not (tmp_path / "kept").exists()


def test_names_that_look_alike_are_kept_apart(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("w1 w2")
    names = ("perplexity:a/b", "perplexity:a_b", "perplexity:a%2Fb")
    entries = [TaskEntry(name, file=str(tmp_path / "text.txt")) for name in names]
    kept = KeptTasks(tmp_path / "kept", ledger, {})
    for entry in entries:
        kept.write(entry, *scored(ledger))
    assert all(kept.read(entry) is not None for entry in entries)


def test_without_its_items_a_task_is_scored_again(ledger: Ledger, tmp_path: Path) -> None:
    kept = KeptTasks(tmp_path, ledger, {})
    kept.write(ENTRY, *scored(ledger))
    (tmp_path / "toy_choice.parquet").unlink()
    assert kept.read(ENTRY) is None
