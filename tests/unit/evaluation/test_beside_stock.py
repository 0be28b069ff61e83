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

NAMES = {"toy_choice": 8, "toy_write": 4, "toy_text": 4, "toy_filters": 4}
ENTRIES = [TaskEntry(name, limit=limit) for name, limit in NAMES.items()]
TEXT = """
include: toy_write.yaml
task: toy_text
output_type: loglikelihood_rolling
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}]
"""
FILTERS = """
include: toy_write.yaml
task: toy_filters
filter_list:
  - {name: none, filter: [{function: take_first}]}
  - {name: small, filter: [{function: lowercase}, {function: take_first}]}
"""


def beside(folder: Path, seed: int) -> list[Difference]:
    make_tasks(folder, items=8)
    (folder / "toy_text.yaml").write_text(TEXT)
    (folder / "toy_filters.yaml").write_text(FILTERS)
    stock = HFLM(
        pretrained=make_model(seed=seed), tokenizer=make_tokenizer(), batch_size=4,
        max_length=WINDOW,
    )  # fmt: skip
    ours = make_lm(make_model(), 4, share=True)
    return list(differences(ours, stock, ENTRIES, task_manager(ENTRIES, [folder])))


def test_one_model_is_scored_alike(tmp_path: Path) -> None:
    choice, write, text, filters = beside(tmp_path, seed=0)
    assert (choice.task, choice.items, choice.answers) == ("toy_choice", 8, 0)
    assert max(choice.log_likelihood, text.log_likelihood) < 1e-4
    assert write == ("toy_write", 4, 0.0, 0)
    assert filters == ("toy_filters", 4, 0.0, 0)


def test_another_model_is_not(tmp_path: Path) -> None:
    choice, _, text, _ = beside(tmp_path, seed=1)
    assert min(choice.log_likelihood, text.log_likelihood) > 0.1
    assert choice.answers > 0
    assert text.answers == 0


def test_no_program_in_a_folder_runs() -> None:
    source = inspect.getsource(stock.score_twice)
    assert source.count("from_pretrained(") == source.count("trust_remote_code=False") == 2
