"""Scores of single tasks on disk: taken again only for the very same evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.router import Unit
from workflows.evaluation.store import ScoreStore, TaskScores
from workflows.evaluation.tasklist import TaskEntry

ENTRY = TaskEntry("toy_choice", metric="acc", limit=2)


@pytest.fixture
def ledger() -> Ledger:
    units = [Unit(1, "ffn", 30), Unit(2, "ffn", 30)]
    return Ledger(100, 100, units, always=2, instead=(1, 1), layers=3, dense_layers=3)


def result(ledger: Ledger) -> TaskScores:
    tally = Tally(ledger)
    tally.add(torch.rand(2, 7, generator=torch.Generator().manual_seed(0)) < 0.5, 7)
    items = pd.DataFrame({"task": ["toy_choice"] * 2, "item": [0, 1], "value": [1.0, 0.0]})
    return TaskScores([{"task": "toy_choice", "value": 1 / 3}], items, {"prompt": tally})


def test_what_was_stored_is_read_back_to_the_bit(ledger: Ledger, tmp_path: Path) -> None:
    store = ScoreStore(tmp_path / "tasks", ledger, {"batch_size": 4})
    assert store.read(ENTRY) is None
    written = result(ledger)
    store.write(ENTRY, written)
    back = store.read(ENTRY)
    assert back is not None
    assert back.scores == written.scores
    pd.testing.assert_frame_equal(back.items, written.items)
    assert store.earlier[ENTRY.task] > 0
    assert back.tallies["prompt"].tokens == 7
    assert back.tallies["prompt"].rates() == written.tallies["prompt"].rates()


def test_items_of_a_run_that_was_killed_are_not_taken_for_those_of_another(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the items and the file that says that they are complete."""
    before, after = (ScoreStore(tmp_path, ledger, {"batch_size": n}) for n in (4, 8))
    before.write(ENTRY, result(ledger))
    after.read(ENTRY)
    with monkeypatch.context() as patch:
        patch.setattr("workflows.evaluation.store.write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            after.write(ENTRY, result(ledger))
    assert before.read(ENTRY) is None


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
    ScoreStore(tmp_path, ledger, {"batch_size": 4}).write(ENTRY, result(ledger))
    assert ScoreStore(tmp_path, ledger, identity).read(entry) is None


def test_the_probe_of_a_task_changes_no_score(ledger: Ledger, tmp_path: Path) -> None:
    ScoreStore(tmp_path, ledger, {}).write(ENTRY, result(ledger))
    unprobed = replace(ENTRY, probe=False)
    assert ScoreStore(tmp_path, ledger, {}).read(unprobed) is not None


TASK = {
    "mine.yaml": "include: base\ntask: mine\nprocess_docs: !function code.docs\n",
    "base": "dataset_path: json\ndataset_kwargs: {data_files: {test: DATA/*.jsonl}}\n",
    "code.py": "import helpers\n\ndef docs(rows): open(f'facts/{rows}.csv')\n",
    "helpers.py": "WORDS = 1\n",
    "data/one.jsonl": '{"a": 1}\n',
    "facts/one.csv": "a\n1\n",
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
    "name",
    [
        "mine.yaml", "base", "code.py", "helpers.py", "data/one.jsonl", "data/two.jsonl",
        "facts/one.csv", "facts/two.csv",
    ],
)  # fmt: skip
def test_what_a_task_is_made_of_counts_by_what_it_holds(
    name: str, task: Path, ledger: Ledger, tmp_path: Path
) -> None:
    entry = TaskEntry("mine")
    ScoreStore(tmp_path / "scores", ledger, {}, [task]).write(entry, result(ledger))
    edit(task / "theirs.yaml")
    edit(task / "text.txt")
    assert ScoreStore(tmp_path / "scores", ledger, {}, [task]).read(entry) is not None
    edit(task / name)
    assert ScoreStore(tmp_path / "scores", ledger, {}, [task]).read(entry) is None


def test_texts_and_data_that_an_entry_names_count_by_what_they_hold(
    task: Path, ledger: Ledger, tmp_path: Path
) -> None:
    folder = {"data_dir": str(task / "data")}
    for entry, name in (
        (TaskEntry("perplexity:t", file=str(task / "text.txt")), "text.txt"),
        (TaskEntry("piqa", config={"dataset_kwargs": folder}), "data/one.jsonl"),
        (TaskEntry("boolq", config={"dataset_path": str(task / "data")}), "data/one.jsonl"),
    ):
        ScoreStore(tmp_path / "scores", ledger, {}).write(entry, result(ledger))
        assert ScoreStore(tmp_path / "scores", ledger, {}).read(entry) is not None
        edit(task / name)
        assert ScoreStore(tmp_path / "scores", ledger, {}).read(entry) is None


def test_data_of_the_hub_count_by_what_was_fetched(ledger: Ledger, tmp_path: Path) -> None:
    facts = tmp_path / "prepared/toy_choice.json"
    facts.parent.mkdir()
    facts.write_text('{"files": [{"path": "a.parquet", "sha256": "0"}]}')
    store = ScoreStore(tmp_path / "scores", ledger, {}, data_folder=facts.parent)
    store.write(ENTRY, result(ledger))
    assert store.read(ENTRY) is not None
    facts.write_text('{"files": [{"path": "a.parquet", "sha256": "1"}]}')
    assert store.read(ENTRY) is None


def test_what_changes_while_it_is_scored_is_not_stored(
    task: Path, ledger: Ledger, tmp_path: Path
) -> None:
    entry = TaskEntry("perplexity:t", file=str(task / "text.txt"))
    store = ScoreStore(tmp_path / "scores", ledger, {})
    assert store.read(entry) is None
    edit(task / "text.txt")
    with pytest.raises(ValueError, match="a file of task 'perplexity:t' changed while it was scor"):
        store.write(entry, result(ledger))
    assert not (tmp_path / "scores").exists()


def test_names_that_look_alike_have_files_of_their_own(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("w1 w2")
    names = ("perplexity:a/b", "perplexity:a_b", "perplexity:a%2Fb")
    entries = [TaskEntry(name, file=str(tmp_path / "text.txt")) for name in names]
    store = ScoreStore(tmp_path / "scores", ledger, {})
    for entry in entries:
        store.write(entry, result(ledger))
    assert all(store.read(entry) is not None for entry in entries)


def test_without_its_items_a_task_is_scored_again(ledger: Ledger, tmp_path: Path) -> None:
    store = ScoreStore(tmp_path, ledger, {})
    store.write(ENTRY, result(ledger))
    (tmp_path / "toy_choice.parquet").unlink()
    assert store.read(ENTRY) is None
