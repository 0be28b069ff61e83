"""Probe rows of a task against what the harness feeds when the same documents are scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from methods.core.data import Data
from methods.core.routing.calibration import skip_rates, weigh
from methods.core.routing.routed import route
from tests import steps
from tests.toys.models import make_model
from tests.toys.routed import PromptSkipper
from tests.toys.sharing import make_lm
from tests.toys.texts import VOCABULARY, make_tokenizer, sentence, write_jsonl
from workflows.evaluation.probe import probe_rows
from workflows.evaluation.score import pool, score
from workflows.evaluation.tasklist import TaskEntry, limited

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }} w9 {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def documents(seed: int, number: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "question": sentence(rng, int(rng.integers(3, 8))),
            "options": [sentence(rng, int(rng.integers(1, 4))) for _ in range(3)],
            "answer": int(rng.integers(0, 3)),
            "words": sentence(rng, 4),
        }
        for _ in range(number)
    ]


TRAIN, TEST = documents(1, 9), documents(2, 5)


def reworded(doc: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Other words, as many everywhere."""
    question, *options = (
        sentence(rng, len(text.split())) for text in (doc["question"], *doc["options"])
    )
    return doc | {"question": question, "options": options}


def write_task(folder: Path, name: str = "made", **changes: Any) -> Path:
    """A task of choices with training and test documents."""
    files = {
        split: str(write_jsonl(folder / f"{split}.jsonl", rows))
        for split, rows in (("train", TRAIN), ("test", TEST))
    }
    described = {
        "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": files},
        "training_split": "train", "test_split": "test", "output_type": "multiple_choice",
        "doc_to_text": "{{question}}", "doc_to_choice": "{{options}}", "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    } | changes  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(described), encoding="utf-8")
    return folder


def written(folder: Path) -> Path:
    return write_task(
        folder, output_type="generate_until", doc_to_target="{{words}}", doc_to_choice=None,
        generation_kwargs={"until": ["w1"], "max_gen_toks": 4},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )  # fmt: skip


def rows(folder: Path, number: int, tokenizer: Any = None, **entry: Any) -> list[dict[str, Any]]:
    return list(probe_rows([TaskEntry("made", **entry)], [folder], number, tokenizer))


def fed_of(doc: dict[str, Any]) -> list[str]:
    parts = [" ".join([doc["question"], *option.split()[:-1]]) for option in doc["options"]]
    return list(dict.fromkeys(parts))


def test_every_choice_of_a_training_document_is_fed_without_its_last_word(tmp_path: Path) -> None:
    found = rows(write_task(tmp_path), 100)
    assert found == [
        {"fed": text, "prompt": doc["question"], "task": "made", "counts": [5 / 9, 5 / 9]}
        for doc in TRAIN
        for text in fed_of(doc)
    ]


@pytest.mark.parametrize("share", [False, True])
def test_the_probe_counts_tokens_as_the_harness_does(share: bool, tmp_path: Path) -> None:
    """Where a router asks for places alone, and others are scored of the same lengths."""
    entries = [TaskEntry("made"), TaskEntry("thrice")]
    for number, entry in enumerate(entries):
        folder = tmp_path / entry.task
        shown = TEST[: 2 + 3 * number]
        # No two options of a question begin alike, which the harness would see once.
        rng = np.random.default_rng(4)
        copies = [reworded(doc, rng) for _ in range(1 + 2 * number) for doc in shown]
        files = {
            split: str(write_jsonl(folder / f"own_{split}.jsonl", docs))
            for split, docs in (("train", shown), ("test", copies))
        }
        write_task(folder, entry.task, dataset_kwargs={"data_files": files})
    folders = [tmp_path / entry.task for entry in entries]
    probe = write_jsonl(
        tmp_path / "probe.jsonl", probe_rows(entries, folders, 9, share_prefix=share)
    )
    model, asked = (route(made, PromptSkipper(made)) for made in (make_model(), make_model()))
    documents = Data(make_tokenizer(), VOCABULARY, probe_file=probe).probe()
    found = skip_rates(model, weigh(documents, "pooled"))[0]
    ran = pool(score(make_lm(asked, 4, share), entries, folders).tallies).rates().executed
    np.testing.assert_allclose(1 - found.numpy(), ran, rtol=1e-6)
    prompts = {document.counts[0] for document in documents}
    assert prompts == ({1 / 3, 1.0} if share else {1.0, 3.0})


def test_a_task_counts_as_many_items_as_are_scored(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (few,) = limited([TaskEntry("made")], 3)
    (own,) = limited([TaskEntry("made", limit=2)], 3)
    for entry, items in ((few, 3), (own, 2)):
        counts = [row["counts"] for row in probe_rows([entry], [folder], 100)]
        assert counts == [[items / len(TRAIN)] * 2] * len(counts)


def test_so_many_documents_are_drawn_under_the_seed(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    entry = [TaskEntry("made")]
    found, again, other = (list(probe_rows(entry, [folder], 3, seed=n)) for n in (0, 0, 1))
    assert found == again != other
    # Three stand for all that are scored.
    assert [row["counts"] for row in found] == [[len(TEST) / 3] * 2] * len(found)
    for drawn in (found, other):
        assert len({row["prompt"] for row in drawn}) == 3


def test_demonstrations_are_other_training_documents(tmp_path: Path) -> None:
    found = rows(write_task(tmp_path), 100, num_fewshot=8)
    questions = {doc["question"] for doc in TRAIN}
    prompts = list(dict.fromkeys(row["prompt"] for row in found))
    assert len(prompts) == 9
    for prompt in prompts:
        *shown, asked = prompt.split("\n\n")
        assert asked in questions
        assert {asked, *(next(q for q in questions if text.startswith(q)) for text in shown)} == (
            questions
        )


def test_an_answer_to_be_written_is_fed_whole(tmp_path: Path) -> None:
    found = rows(written(tmp_path), 100)
    assert [(row["prompt"], row["fed"]) for row in found] == [
        (doc["question"], f"{doc['question']} {doc['words']}") for doc in TRAIN
    ]


def test_a_reader_of_the_file_finds_prompts_and_answer_tokens(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    steps.call(
        "probe", "--tasks", "made", "--task-dir", folder, "--rows", 4, "--out",
        tmp_path / "probe.jsonl",
    )  # fmt: skip
    lines = (tmp_path / "probe.jsonl").read_text().splitlines()
    assert {json.loads(line)["task"] for line in lines} == {"made"}
    data = Data(make_tokenizer(), VOCABULARY, probe_file=tmp_path / "probe.jsonl")
    read = data.probe()
    assert len(read) == len(lines)
    for document, line in zip(read, map(json.loads, lines), strict=True):
        prompt = len(line["prompt"].split())
        assert (document.prompt, document.answers) == (
            prompt, ((prompt - 1, len(line["fed"].split())),),
        )  # fmt: skip


def test_the_validation_split_serves_where_there_is_no_training_split(tmp_path: Path) -> None:
    folder = write_task(tmp_path, training_split=None, validation_split="train")
    assert {row["prompt"] for row in rows(folder, 100)} == {doc["question"] for doc in TRAIN}


@pytest.mark.parametrize(
    "changes",
    [
        {"training_split": None},
        {"training_split": "test"},
        {"training_split": None, "test_split": None, "validation_split": "test"},
    ],
)
def test_a_scored_split_gives_no_probe(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = write_task(tmp_path, **changes)
    said = "task 'made' has no document beside its scored split 'test', so no probe"
    with pytest.raises(ValueError, match=said):
        rows(folder, 2)


def test_a_scored_document_gives_no_probe_whatever_its_split(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    write_jsonl(folder / "train.jsonl", [*TEST, TRAIN[0]])
    assert {row["prompt"] for row in rows(folder, 100)} == {TRAIN[0]["question"]}


def test_a_chat_template_is_the_backbones(tmp_path: Path) -> None:
    folder, tokenizer = written(tmp_path), make_tokenizer()
    for given in (None, tokenizer):
        with pytest.raises(ValueError, match="task 'made' asks for a chat template, and there is"):
            rows(folder, 2, given, chat_template=True)
    tokenizer.chat_template = TEMPLATE
    (first, *_) = rows(folder, 100, tokenizer, chat_template=True)
    assert first["prompt"] == f"<bos>user {TRAIN[0]['question']} w9 assistant "
    assert first["fed"] == first["prompt"] + TRAIN[0]["words"]


@pytest.mark.parametrize("form", ["$A", "<bos> $A"])
@pytest.mark.parametrize("template", [TEMPLATE, TEMPLATE.removeprefix("{{ bos_token }}")])
def test_a_reader_of_the_file_begins_texts_as_the_harness_does(
    template: str, form: str, tmp_path: Path
) -> None:
    """Among rows of a task without a template."""
    folder, tokenizer = written(tmp_path), make_tokenizer(form=form)
    tokenizer.chat_template = template
    entries = [TaskEntry("made"), TaskEntry("made", chat_template=True)]
    found = list(probe_rows(entries, [folder], 9, tokenizer))
    file = write_jsonl(tmp_path / "probe.jsonl", found)
    read = Data(tokenizer, VOCABULARY, probe_file=file).probe()
    lm = make_lm(make_model(), 4, share=False)
    lm.tokenizer = tokenizer
    asked = [doc["question"] for doc in TRAIN]
    contexts = [f"{question} " for question in asked]
    contexts += [lm.apply_chat_template([{"role": "user", "content": text}]) for text in asked]
    for document, context, doc in zip(read, contexts, TRAIN * 2, strict=True):
        assert list(document.ids) == lm.tok_encode(context + doc["words"])
        assert document.prompt == len(lm.tok_encode(context))


def test_a_template_without_system_turns_leaves_the_description_out(tmp_path: Path) -> None:
    """Where tasks are scored and in the probe alike."""
    folder = written(tmp_path)
    write_task(folder, "told", **yaml.safe_load((folder / "made.yaml").read_text()) | {
        "task": "told", "description": "w55 w56",
    })  # fmt: skip
    plain, strict = make_tokenizer(), make_tokenizer()
    plain.chat_template = TEMPLATE
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('No system') }}{% endif %}"
    strict.chat_template = refusal + TEMPLATE
    told = "the chat template refuses the conversation: No system; prompts go without their system"
    without = [row | {"task": "told"} for row in rows(folder, 9, plain, chat_template=True)]
    entry = TaskEntry("told", chat_template=True)
    with pytest.warns(UserWarning, match=told):
        assert list(probe_rows([entry], [folder], 9, strict)) == without
    hashes = []
    for tokenizer, task in ((plain, "made"), (strict, "told")):
        lm = make_lm(make_model(), 4, share=False)
        lm.tokenizer = tokenizer
        (scored,) = score(lm, [TaskEntry(task, chat_template=True)], [folder]).scores
        hashes.append(scored["prompt_hash"])
    assert hashes[0] == hashes[1]


def test_a_template_that_refuses_a_task_is_told_in_a_sentence(tmp_path: Path) -> None:
    folder, tokenizer = written(tmp_path), make_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('Nothing is right') }}"
    said = "task 'made' cannot be scored: .*the chat template refuses the conversation: Nothing is"
    entry = TaskEntry("made", chat_template=True)
    with pytest.raises(ValueError, match=said):
        list(probe_rows([entry], [folder], 9, tokenizer))
    lm = make_lm(make_model(), 4, share=False)
    lm.tokenizer = tokenizer
    with pytest.raises(ValueError, match=said):
        score(lm, [entry], [folder])


def test_what_is_not_here_is_said_in_a_sentence(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refuse = steps.Refuse(capfd, tmp_path)
    missing = {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "nothing.jsonl")}}}
    write_task(tmp_path, "gone", **missing)
    write_task(tmp_path, "odd", training_split="other")
    call = ["--task-dir", tmp_path, "--out", tmp_path / "probe.jsonl"]
    said = refuse("probe", "--tasks", "gone", "--rows", 2, *call)
    assert said.startswith("the data of task 'gone' are not here: ")
    said = refuse("probe", "--tasks", "odd", "--rows", 2, *call)
    assert said == "the data of task 'odd' lack 'other'"
    assert (
        refuse("probe", "--tasks", "odd", "--rows", 0, *call) == "--rows is 0, must be at least 1"
    )


def test_a_task_may_stay_out_of_the_probe(tmp_path: Path) -> None:
    folder = write_task(tmp_path, training_split=None)
    with pytest.raises(ValueError, match="give it a training_split, or probe: false"):
        rows(folder, 2)
    assert rows(folder, 2, probe=False) == []


def test_tasks_of_a_group_share_the_documents_and_what_cannot_be_scored_has_none(
    tmp_path: Path,
) -> None:
    folder = write_task(write_task(tmp_path), "other")
    metrics = [{"metric": "acc", "weight_by_size": True}]
    told = {"group": "both", "task": ["made", "other"], "aggregate_metric_list": metrics}
    (folder / "both.yaml").write_text(yaml.safe_dump(told))
    found = list(probe_rows([TaskEntry("both")], [folder], 5))
    assert {row["task"] for row in found} == {"both"}
    prompts = {row["prompt"] for row in found}
    assert 3 <= len(prompts) <= 6
    assert prompts <= {doc["question"] for doc in TRAIN}
    assert list(probe_rows([TaskEntry("both")], [folder], 5, exclude=["both"])) == []
