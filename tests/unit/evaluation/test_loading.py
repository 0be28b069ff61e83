"""Groups, likelihoods of whole texts, and tasks that lack something on this machine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from methods.core.model.ledger import Ledger
from tests.toys.models import make_model
from tests.toys.tasks import make_tasks
from tests.toys.texts import BOS, make_tokenizer, sentence, write_jsonl
from workflows.evaluation.harness import CountingLM, simple_evaluate
from workflows.evaluation.loading import CannotRun, explained, reasons_not_to_run
from workflows.evaluation.score import score
from workflows.evaluation.tasklist import TaskEntry, parse_tasks
from workflows.evaluation.tasknames import check_names

PAGES = [{"page": sentence(np.random.default_rng(n), 7 + 12 * n)} for n in range(3)]
UTILS = """
def likelihoods(doc, results):
    words = len(doc["page"].split())
    return {"word_perplexity": (results[0], words), "bits_per_byte": (results[0], 3 * words)}
"""


def harness(model: Any, share_prefix: bool = False) -> CountingLM:
    ledger = Ledger.of(model, 1, 6)
    return CountingLM(model, make_tokenizer(), ledger, 4, 8, share_prefix=share_prefix)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``toy_choice``, ``toy_write``, the group ``toys`` of two choice tasks, and odd ones."""
    made = make_tasks(tmp_path)
    choice = yaml.safe_load((made / "toy_choice.yaml").read_text())
    pages = {"test": str(write_jsonl(made / "pages.jsonl", PAGES))}
    text = choice | {
        "task": "toy_text",
        "dataset_kwargs": {"data_files": pages},
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{page}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    }
    mcc = {"metric": "mcc", "higher_is_better": True}
    files = {
        "toy_other": choice | {"task": "toy_other"},
        "toys": {
            "group": "toys",
            "task": ["toy_choice", "toy_other"],
            "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}],
            "metadata": {"version": 3.0},
        },
        "toy_mcc": choice | {"task": "toy_mcc", "metric_list": [mcc, *choice["metric_list"]]},
        "toy_unsafe": choice | {"task": "toy_unsafe", "unsafe_code": True},
    }
    for name, told in files.items():
        (made / f"{name}.yaml").write_text(yaml.safe_dump(told))
    (made / "utils.py").write_text(UTILS)
    (made / "lacking.py").write_text("import no_such_package.inner\nscore = None\n")
    calls = {"toy_text": (text, "utils.likelihoods"), "toy_lacks": (choice, "lacking.score")}
    for name, (told, function) in calls.items():
        kept = {k: v for k, v in told.items() if k != "doc_to_choice" or name != "toy_text"}
        body = yaml.safe_dump(kept | {"task": name})
        (made / f"{name}.yaml").write_text(f"{body}process_results: !function {function}\n")
    return made


def test_a_group_is_scored_as_one_with_the_items_of_its_tasks(folder: Path) -> None:
    entry = TaskEntry("toys", limit=5, num_fewshot=0)
    found = score(harness(make_model(seed=0)), [entry], [folder])
    (told,) = found.scores
    (frame,) = found.items
    assert (told["task"], told["metric"], told["n"], told["shots"]) == ("toys", "acc", 10, 0)
    assert told["version"] == "3.0"
    assert frame["subtask"].tolist() == ["toy_choice"] * 5 + ["toy_other"] * 5
    assert frame["item"].tolist() == list(range(10))
    assert told["value"] == pytest.approx(frame["value"].mean())
    alone = score(harness(make_model(seed=0)), [TaskEntry("toy_choice", limit=5)], [folder])
    accuracy = alone.items[0].query("metric == 'acc'")["value"].tolist()
    assert frame["value"].tolist() == accuracy * 2
    assert "subtask" not in alone.items[0]


def test_an_own_group_holds_tasks_that_it_defines_itself(folder: Path) -> None:
    inline = yaml.safe_load((folder / "toy_other.yaml").read_text()) | {"task": "inside"}
    told = {
        "group": "own",
        "task": [{"task": "toy_choice", "num_fewshot": 1, "fewshot_split": "test"}, inline],
        "aggregate_metric_list": [{"metric": "acc"}],
    }
    (folder / "own.yaml").write_text(yaml.safe_dump(told))
    check_names(parse_tasks("own"), [folder])
    lm = harness(make_model(seed=0))
    found = score(lm, [TaskEntry("own", limit=3)], [folder])
    (frame,) = found.items
    assert frame["subtask"].tolist() == ["own::inside"] * 3 + ["toy_choice"] * 3
    assert [(s["task"], s["metric"], s["n"], s["shots"]) for s in found.scores] == [
        ("own", "acc", 6, 1)
    ]


@pytest.mark.parametrize("share_prefix", [False, True])
def test_a_whole_text_is_counted_once_and_scored_as_a_loop_does(
    share_prefix: bool, folder: Path
) -> None:
    model = make_model(seed=0)
    found = score(harness(model, share_prefix), parse_tasks("toy_text"), [folder])
    nats, words, predicted, fed = [], [], 0, 0
    for page in (row["page"] for row in PAGES):
        ids = [BOS, *(int(word[1:]) for word in page.split())]
        total = 0.0
        # Windows of 8; the last begins as early as the others are long.
        for start in range(1, len(ids), 8):
            end = min(start + 8, len(ids))
            first = max(0, min(start - 1, end - 9))
            with torch.no_grad():
                logs = model(torch.tensor([ids[first : end - 1]])).logits[0].log_softmax(-1)
            total += sum(float(logs[n - 1 - first, ids[n]]) for n in range(start, end))
            predicted, fed = predicted + end - start, fed + end - 1 - first
        nats.append(-total)
        words.append(len(ids) - 1)
    told = {s["metric"]: s for s in found.scores}
    assert told["word_perplexity"]["value"] == pytest.approx(math.exp(sum(nats) / sum(words)), 1e-4)
    assert not told["word_perplexity"]["higher_is_better"]
    (frame,) = found.items
    own = frame[frame["metric"] == "word_perplexity"]["value"]
    assert own.tolist() == pytest.approx([n / w for n, w in zip(nats, words, strict=True)], 1e-4)
    tokens = {kind: tally.tokens for kind, tally in found.tallies.items()}
    if share_prefix:
        # The token in front of several texts is run once for those of a batch.
        assert tokens["likelihood"] <= predicted
    else:
        assert tokens == {"likelihood": predicted, "prompt": fed - predicted, "generated": 0}


def test_an_empty_text_is_scored_as_by_lm_eval(folder: Path) -> None:
    write_jsonl(folder / "pages.jsonl", [{"page": ""}, *PAGES, {"page": ""}])
    model = make_model(seed=0)
    found = score(harness(model), parse_tasks("toy_text"), [folder])
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    stock = HFLM(pretrained=model, tokenizer=make_tokenizer(), batch_size=4, max_length=8)
    theirs = simple_evaluate(stock, tasks=["toy_text"], task_manager=manager, bootstrap_iters=0)
    expected = theirs["results"]["toy_text"]
    assert {s["metric"]: (s["value"], s["n"]) for s in found.scores} == {
        name: (pytest.approx(expected[f"{name},none"], 1e-6), 5)
        for name in ("word_perplexity", "bits_per_byte")
    }
    (frame,) = found.items
    assert (frame["value"] == 0).tolist() == [True, False, False, False, True] * 2


def test_a_task_of_empty_texts_alone_ends_in_a_sentence(folder: Path) -> None:
    write_jsonl(folder / "pages.jsonl", [{"page": ""}])
    with pytest.raises(ValueError, match="task 'toy_text' cannot be scored: ZeroDivisionError"):
        score(harness(make_model(seed=0)), parse_tasks("toy_text"), [folder])


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("toy_lacks", "it needs the Python package 'no_such_package', not installed here"),
        ("toy_unsafe", "'toy_unsafe' of lm-eval runs what a model writes without a sandbox"),
        (
            "toy_mcc",
            "its metric 'mcc' is no mean over items, which the tables compare one by one "
            "(other metrics: acc, acc_norm)",
        ),
    ],
)
def test_what_a_task_lacks_stops_no_other(task: str, reason: str, folder: Path) -> None:
    metric = "mcc" if task == "toy_mcc" else None
    entries = [TaskEntry(task, metric=metric), TaskEntry("toy_choice", limit=2)]
    found = score(harness(make_model(seed=0)), entries, [folder])
    assert found.not_run == [{"task": task, "reason": reason}]
    assert {s["task"] for s in found.scores} == {"toy_choice"}


def test_a_metric_of_all_items_stands_beside_a_headline_that_has_its_own(folder: Path) -> None:
    entry = TaskEntry("toy_mcc", metric="acc", limit=4)
    found = score(harness(make_model(seed=0)), [entry], [folder])
    assert {s["metric"]: (s["n"], s["primary"]) for s in found.scores} == {
        "mcc": (4, False), "acc": (4, True), "acc_norm": (4, False),
    }  # fmt: skip
    assert set(found.items[0]["metric"]) == {"acc", "acc_norm"}


def test_more_is_better_in_a_metric_whose_direction_nobody_says(folder: Path) -> None:
    told = yaml.safe_load((folder / "toy_other.yaml").read_text())
    told |= {"task": "toy_own", "metric_list": [{"metric": "mine", "aggregation": "mean"}]}
    text = f"{yaml.safe_dump(told)}process_results: !function own.mine\n"
    (folder / "toy_own.yaml").write_text(text)
    (folder / "own.py").write_text("def mine(doc, results):\n    return {'mine': doc['answer']}\n")
    entry = TaskEntry("toy_own", limit=2)
    (told,) = score(harness(make_model(seed=0)), [entry], [folder]).scores
    assert (told["metric"], told["higher_is_better"]) == ("mine", True)


def test_a_metric_of_a_task_s_own_code_is_one_that_its_file_names(folder: Path) -> None:
    told = yaml.safe_load((folder / "toy_other.yaml").read_text())
    mine = {"metric": "mine", "aggregation": "mean", "higher_is_better": False}
    (folder / "own.py").write_text(
        "def other(doc, results):\n    return {'other': 1.0}\n"
        "def both(doc, results):\n    return {'other': 1.0, 'mine': 2.0}\n"
    )

    def made(listed: list[Any] | None, function: str, metric: str | None = None) -> Any:
        keys = told | {"task": "toy_own", "metric_list": listed}
        call = f"process_results: !function own.{function}\n"
        (folder / "toy_own.yaml").write_text(yaml.safe_dump(keys) + call)
        entry = TaskEntry("toy_own", limit=2, metric=metric)
        return score(harness(make_model(seed=0)), [entry], [folder]).scores

    with pytest.raises(ValueError, match="'toy_own' computes other, but the .* file names mine$"):
        made([mine], "other")
    with pytest.raises(ValueError, match=r"has no metric 'other' \(it has: mine\)"):
        made([mine], "both", "other")
    scores = {s["metric"]: (s["primary"], s["higher_is_better"]) for s in made([mine], "both")}
    assert scores == {"other": (False, True), "mine": (True, False)}
    # Without a list nothing says that it is another.
    (own,) = made(None, "other", "other")
    assert (own["metric"], own["primary"]) == ("other", True)


def test_a_reason_that_is_known_before_is_told_again(folder: Path, tmp_path: Path) -> None:
    told = {"task": "toy_write", "files": [], "not_run": "it has no data"}
    (tmp_path / "toy_write.json").write_text(json.dumps(told))
    entries = parse_tasks("toy_write,toy_choice")
    reasons = reasons_not_to_run(tmp_path, entries)
    assert reasons == {"toy_write": "it has no data"}
    found = score(harness(make_model(seed=0)), entries, [folder], reasons=reasons)
    assert found.not_run == [{"task": "toy_write", "reason": "it has no data"}]
    assert reasons_not_to_run(None, entries) == {}


@pytest.mark.parametrize("package", ["evaluate", "nltk"])
@pytest.mark.parametrize("error", [FileNotFoundError, ConnectionError, LookupError])
def test_files_that_a_metric_fetches(package: str, error: type[Exception]) -> None:
    inside: dict[str, Any] = {"__name__": f"{package}.loading", "error": error}
    exec("def load(): raise error('gone')", inside)
    said = f"with the package '{package}', not here yet"
    with pytest.raises(CannotRun, match=said), explained("mine"):
        inside["load"]()
    named = error if issubclass(error, OSError) else ValueError
    with pytest.raises(named, match="gone"), explained("mine"):
        raise error("gone")


def test_a_data_set_that_is_a_program() -> None:
    said = r"its data set is a program \(some.py\), which the library datasets no longer runs"
    with pytest.raises(CannotRun, match=said), explained("mine"):
        raise RuntimeError("Dataset scripts are no longer supported, but found some.py")
    with pytest.raises(RuntimeError, match="other"), explained("mine"):
        raise RuntimeError("other")
