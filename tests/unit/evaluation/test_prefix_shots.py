"""What sharing the context saves on tasks with demonstrations, and what a record says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from tests import steps
from tests.toys.models import make_model
from tests.toys.sharing import Request, ask, make_lm, random_skip, same_answers
from tests.toys.tasks import make_tasks
from tests.toys.texts import make_tokenizer, sentence, write_jsonl
from workflows.evaluation.score import Scores, score
from workflows.evaluation.tasklist import TaskEntry
from workflows.records import SAMPLE
from workflows.records.files import read_record
from workflows.stats.comparable import check_comparable

# 25 demonstrations of about a dozen words.
SHOTS = 25


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of four choices whose demonstrations are drawn from a split of their own."""
    folder, rng = tmp_path_factory.mktemp("task"), np.random.default_rng(3)

    def rows(number: int) -> list[dict[str, Any]]:
        return [
            {
                "question": sentence(rng, int(rng.integers(6, 13))),
                "options": [sentence(rng, int(rng.integers(2, 6))) for _ in range(4)],
                "answer": int(rng.integers(0, 4)),
            }
            for _ in range(number)
        ]

    files = {
        split: str(write_jsonl(folder / f"{split}.jsonl", rows(number)))
        for split, number in (("train", 40), ("test", 12))
    }
    described = {
        "task": "toy_shots", "dataset_path": "json", "dataset_kwargs": {"data_files": files},
        "training_split": "train", "test_split": "test", "output_type": "multiple_choice",
        "doc_to_text": "{{question}}", "doc_to_choice": "{{options}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True}
            for name in ("acc", "acc_norm")
        ],
    }  # fmt: skip
    (folder / "toy_shots.yaml").write_text(yaml.safe_dump(described), encoding="utf-8")
    return folder


def positions(model: Any, seen: list[int]) -> None:
    """Note the positions that every pass computes, pads and all."""
    model.model.register_forward_hook(
        lambda _, args, kwargs, __: seen.append(fed(args, kwargs).numel()), with_kwargs=True
    )


def fed(args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["input_ids"]


def test_few_shot_choices_cost_a_quarter_and_stay_the_same(task: Path) -> None:
    entry = TaskEntry("toy_shots", metric="acc", num_fewshot=SHOTS)
    computed, results = list[int](), list[Scores]()
    for share in (False, True):
        model, seen = random_skip(max_position_embeddings=1024), list[int]()
        positions(model, seen)
        results.append(score(make_lm(model, 4, share, max_length=None), [entry], [task]))
        computed.append(sum(seen))
    assert computed[1] <= 0.28 * computed[0]
    first, second = results
    # Apart from the samples: they hold likelihoods, whose last digits follow the batch's shape.
    kept, shared = (scored.items[0].drop(columns=SAMPLE) for scored in results)
    assert kept.equals(shared)
    for kind in ("prompt", "likelihood"):
        assert second.tallies[kind].tokens < first.tallies[kind].tokens


def test_few_shot_choices_cost_a_quarter_of_lm_evals_own(task: Path) -> None:
    model = make_model(max_position_embeddings=1024)
    caught: list[Request] = []
    lm = make_lm(model, 4, share=True, max_length=None)
    real = lm._loglikelihood_tokens

    def catching(requests: list[Request], **options: Any) -> list[tuple[float, bool]]:
        caught.extend(requests)
        return real(requests, **options)

    lm._loglikelihood_tokens = catching
    score(lm, [TaskEntry("toy_shots", num_fewshot=SHOTS)], [task])
    seen: list[int] = []
    positions(model, seen)
    own = HFLM(pretrained=model, tokenizer=make_tokenizer(), batch_size=4)
    expected = ask(own, caught)
    stock = sum(seen)
    seen.clear()
    same_answers(real(caught, disable_tqdm=True), expected)
    assert sum(seen) <= 0.28 * stock


def test_a_record_says_what_was_shared_and_stands_in_no_table_with_others(
    llama: Path, tmp_path: Path
) -> None:
    folder, records, file = make_tasks(tmp_path / "tasks"), [], tmp_path / "record.json"
    # At one place: scores that were kept there are not taken for those of the other way.
    for flags in ([], ["--share-prefix"]):
        steps.call(
            "score", "--model", llama, "--tasks", "toy_choice", "--task-dir", folder,
            "--batch-size", 8, "--device", "cpu", "--out", file, *flags,
        )  # fmt: skip
        records.append(read_record(file))
    assert [record.evaluation.share_prefix for record in records] == [False, True]
    values, prompts = (
        [[read(score) for score in record.scores] for record in records]
        for read in (lambda s: s.value, lambda s: s.rates["prompt"].tokens)
    )
    assert values[0] == values[1]
    assert prompts[0][0] > prompts[1][0]
    with pytest.raises(ValueError, match=r"different ways of counting .*: False and True"):
        check_comparable(records)
