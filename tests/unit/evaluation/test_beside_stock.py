"""Our harness beside lm-eval's own class: equal on one model, apart on two."""

from __future__ import annotations

import inspect
from pathlib import Path

from lm_eval.models.huggingface import HFLM

from tests.toys.models import make_model
from tests.toys.sharing import WINDOW, make_lm
from tests.toys.tasks import make_tasks
from tests.toys.texts import make_tokenizer
from workflows.evaluation.beside_stock import Difference, differences
from workflows.evaluation.loading import task_manager
from workflows.evaluation.tasklist import TaskEntry
from workflows.steps import stock

ENTRIES = [TaskEntry("toy_choice", limit=8), TaskEntry("toy_write", limit=4)]


def beside(folder: Path, seed: int) -> list[Difference]:
    make_tasks(folder, items=8)
    stock = HFLM(
        pretrained=make_model(seed=seed), tokenizer=make_tokenizer(), batch_size=4,
        max_length=WINDOW,
    )  # fmt: skip
    ours = make_lm(make_model(), 4, share=True)
    return list(differences(ours, stock, ENTRIES, task_manager(ENTRIES, [folder])))


def test_one_model_is_scored_alike(tmp_path: Path) -> None:
    choice, write = beside(tmp_path, seed=0)
    assert (choice.task, choice.items, choice.answers) == ("toy_choice", 8, 0)
    assert choice.log_likelihood < 1e-4
    assert write == ("toy_write", 4, 0.0, 0)


def test_another_model_is_not(tmp_path: Path) -> None:
    choice, _ = beside(tmp_path, seed=1)
    assert choice.log_likelihood > 0.1
    assert choice.answers > 0


def test_no_program_in_a_folder_runs() -> None:
    source = inspect.getsource(stock.compare)
    assert source.count("from_pretrained(") == source.count("trust_remote_code=False") == 2
