from __future__ import annotations

from pathlib import Path

import pytest

from workflows.evaluation.tasklist import (
    TaskEntry,
    parse_tasks,
)
from workflows.evaluation.tasknames import check_names, hub_task_names, own_task_names


def test_words_parted_by_commas() -> None:
    assert parse_tasks("piqa, boolq,") == [TaskEntry("piqa"), TaskEntry("boolq")]
    assert parse_tasks("") == []


def test_a_perplexity_is_named_after_its_file() -> None:
    (entry,) = parse_tasks("perplexity:some/text.txt")
    assert (entry.task, entry.file, entry.is_perplexity) == (
        "perplexity:text", "some/text.txt", True,
    )  # fmt: skip


def test_texts_of_one_name_bear_their_paths() -> None:
    entries = parse_tasks("perplexity:train/wiki.txt,perplexity:test/wiki.txt,perplexity:b.txt")
    assert {entry.task: entry.file for entry in entries} == {
        "perplexity:train/wiki.txt": "train/wiki.txt",
        "perplexity:test/wiki.txt": "test/wiki.txt",
        "perplexity:b": "b.txt",
    }
    for words in ("piqa,piqa", "perplexity:a/b.txt,perplexity:a/b.txt"):
        with pytest.raises(ValueError, match="is listed twice; perplexities are told apart"):
            parse_tasks(words)


def test_json_entries_keep_every_key() -> None:
    text = '["piqa", {"task": "boolq", "num_fewshot": 2, "limit": 3, "chat_template": true}]'
    assert parse_tasks(text) == [
        TaskEntry("piqa"),
        TaskEntry("boolq", num_fewshot=2, limit=3, chat_template=True),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "--tasks is not valid JSON"),
        ('[{"name": "piqa"}]', "task is required"),
        ('[{"task": "piqa", "fewshot": 1}]', "keys are task, metric, num_fewshot"),
        ('["piqa", "piqa"]', "'piqa' is listed twice"),
        ('[{"task": "perplexity:a"}]', "needs a text file"),
        ("[5]", "task entry 5"),
        ('[{"task": 5}]', "task entry .*task must be of type str"),
        ('[{"task": "piqa", "limit": true}]', "limit must be of type int"),
        ('[{"task": "piqa", "limit": 0}]', "limit is at least 1"),
        ('[{"task": "piqa", "num_fewshot": "5"}]', "num_fewshot must be of type int"),
        ('[{"task": "piqa", "config": []}]', "config must be of type dict"),
        ('[{"task": "piqa", "config": {"dataset_kwargs": 1}}]', "dataset_kwargs must be of type"),
        ('["x$(touch PWNED)y"]', "a name is made of letters, digits and _ . : [+] @ - alone"),
        ('[{"task": "x;y"}]', "a name is made of letters"),
        ('["piqa\\n"]', "a name is made of letters"),
        ('[""]', "a name is made of letters"),
        *(
            (f'[{{"task": "piqa", "config": {{"{key}": "x"}}}}]', f"keys of a task, but not {key}")
            for key in ("task", "group", "include", "class", "use_prompt")
        ),
        *(
            (f'[{{"task": "piqa", "config": {{"metric_list": [{metric}]}}}}]', "must be a name")
            for metric in ('{"metric": "/tmp/evil.py"}', '{"metric": "owner/name"}', '"x/y"', "{}")
        ),
        ('[{"task": "piqa", "config": {"dataset_path": "pandas"}}]', "'pandas' reads pickles"),
    ],
)
def test_malformed_entries_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_tasks(text)


def test_lm_eval_gets_a_group_of_one_with_overrides() -> None:
    entry = TaskEntry("piqa", num_fewshot=3, config={"dataset_path": "json"})
    assert entry.lm_eval_spec == {
        "group": "entry_piqa",
        "task": [{"task": "piqa", "dataset_path": "json", "num_fewshot": 3}],
    }
    assert TaskEntry("piqa").lm_eval_spec["task"] == [{"task": "piqa"}]


def test_the_validation_split_is_scored_where_asked() -> None:
    (spec,) = TaskEntry("arc_easy", split="validation").lm_eval_spec["task"]
    assert spec["test_split"] is None


def test_names_come_from_the_yaml_files(task_folder: Path) -> None:
    assert own_task_names([task_folder]) == {"toy_choice", "toy_write"}


def test_own_names_are_found_as_yaml_reads_them(tmp_path: Path) -> None:
    files = {
        "a": "'task': 'quoted' # so\ndataset_path: 'owner/data' # there",
        "b": "task: drawn\ncustom_dataset: !function code.data\ntag: mine",
        "c": "group: pair\ntask: [quoted, mine, piqa, truthfulqa, {task: inline, doc_to_text: x}]\n"
        "aggregate_metric_list: [{metric: acc}]",
        "d": "task: python\nclass: !function code.Task",
        "e": "include: base\ntask: child",
        "g": "task: rows\ndataset_path: json\ndataset_kwargs: {data_files: {test: x.jsonl}}",
        "k": "task: canonical\ndataset_path: imdb",
        "l": f"task: folder\ndataset_path: {tmp_path}",
        "h": "group: none\ntask: [quoted]",
        "i": "group: lacks\ntask: [gone]\naggregate_metric_list: [{metric: acc}]",
        "j": "group: runs\ntask: [{task: humaneval}]\naggregate_metric_list: [{metric: acc}]",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "base").write_text("dataset_path: owner/data")
    (tmp_path / "code.py").touch()
    tasks = {"quoted", "drawn", "python", "child", "rows", "canonical", "folder"}
    groups = {"pair", "none", "lacks", "runs"}
    assert own_task_names([tmp_path]) == tasks | groups
    assert hub_task_names([tmp_path]) == {"quoted", "python", "child", "canonical"} | groups
    check_names(parse_tasks(",".join([*tasks, "pair"])), [tmp_path])
    for name, said in {
        "mine": r"'mine' is a tag, without a score of its own; name its tasks instead \(drawn\)",
        "none": r"group 'none' has no metric that is a mean .* instead \(quoted\)",
        "lacks": r"unknown task 'gone' \(tasks here: canonical, child, drawn",
        "runs": "task 'humaneval' of lm-eval runs what a model writes without a sandbox",
    }.items():
        with pytest.raises(ValueError, match=said):
            check_names(parse_tasks(f"quoted,{name}"), [tmp_path])


def test_unknown_names_are_refused_with_the_known_ones(task_folder: Path) -> None:
    check_names(parse_tasks("toy_choice,piqa"), [task_folder])
    with pytest.raises(ValueError, match="unknown task 'toy_choise' .*toy_choice, toy_write"):
        check_names(parse_tasks("toy_choise"), [task_folder])
    with pytest.raises(ValueError, match=r"text file gone.txt of task 'perplexity:gone'"):
        check_names(parse_tasks("perplexity:gone.txt"), [task_folder])
