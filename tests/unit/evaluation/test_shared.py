"""Answers that share a context against the stock path, which runs every one by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from methods import load_method
from methods.core.backbone import count, layers
from methods.core.ledger import Ledger
from methods.core.routing.routed import route
from methods.core.routing.router import ffn_units
from methods.core.surgery.layers import remove_layers
from methods.random_skip import RandomRouter
from tests import steps, toy
from tests.routing_toys import VARIANTS, Spared, shaken, wrap
from workflows.evaluation import harness
from workflows.evaluation.harness import CountingLM
from workflows.evaluation.score import Scored, score
from workflows.evaluation.shared import Asked, Row, by_context, continuations
from workflows.evaluation.tasklist import TaskEntry
from workflows.stats.comparable import check_comparable

WINDOW = 32
Request = tuple[tuple[str, str], list[int], list[int]]


def random_skip(kind: str = "llama", **changes: Any) -> Any:
    made = toy.make_model(kind, **changes)
    return route(made, RandomRouter(ffn_units(made, [1, 2, 3]), seed=9, skipped=1.3))


def hero() -> Any:
    made = toy.cast(toy.make_model(), torch.float64)
    structure = {"layers": [2, 3, 4, 5], "seed": 1, "threshold": 0.5, "closed": 0}
    model = load_method("hero").build(wrap(made), structure | {"rates": [0.5] * 4})
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.model.router.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=rng)
    return model.eval()


def lora() -> Any:
    model = load_method("lora", {"rank": 4}).build(wrap(toy.make_model()), {"seed": 1})
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return model.eval()


def spared() -> Any:
    made = toy.make_model()
    return route(made, Spared(made))


MODELS = {
    **{kind: lambda kind=kind: toy.make_model(kind) for kind in toy.SHAPES},
    "shorter": lambda: remove_layers(toy.make_model(), [2, 4]),
    "lora": lora,
    "random-skip": random_skip,
    "random-skip-window": lambda: random_skip("mistral"),
    "hero": hero,
    "spared": spared,
    # In double precision no gate turns by rounding.
    **{
        name: lambda name=name: shaken(name, dtype=torch.float64)
        for name in VARIANTS
        if name != "mod-d-topk"
    },
}


def make(model: Any, batch_size: int, share: bool, **options: Any) -> CountingLM:
    ledger = Ledger.of(model, count(model), len(layers(model)))
    tokenizer = toy.make_tokenizer()
    options = {"max_length": WINDOW} | options
    return CountingLM(model, tokenizer, ledger, batch_size, share_prefix=share, **options)


@torch.no_grad()
def greedy(model: Any, context: list[int], length: int) -> list[int]:
    ids = list(context)
    for _ in range(length):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(context) :]


def requests_of(model: Any) -> list[Request]:
    """Contexts of several lengths with answers of several, out of order; some are cut."""
    contexts = toy.ids_of([20, 35, 20, 9, 1, 28, 30], seed=4)
    pairs: list[tuple[list[int], list[int]]] = []
    for number, context in enumerate(contexts):
        one, other = toy.ids_of([5, 3], seed=10 + number)
        # One is the beginning of another, one is there twice, one is what the model would write.
        answers = [one, one[:2], one[:1], other, other, greedy(model, context, 2)]
        pairs += [(context, answer) for answer in answers]
    pairs.append((contexts[0], toy.ids_of([4], seed=30)[0]))
    order = np.random.default_rng(0).permutation(len(pairs))
    return [((f"context {n}", f"answer {n}"), *pairs[n]) for n in order]


def ask(lm: HFLM, requests: list[Request]) -> list[tuple[float, bool]]:
    return lm._loglikelihood_tokens(requests, disable_tqdm=True)


def same_answers(found: list[tuple[float, bool]], expected: list[tuple[float, bool]]) -> None:
    for (log, written), (other, stock) in zip(found, expected, strict=True):
        assert log == pytest.approx(other, abs=1e-4)
        assert written == stock


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_stock_path(name: str) -> None:
    model = MODELS[name]()
    stock = make(model, 1, share=False)
    requests = requests_of(model)
    expected = ask(stock, requests)
    assert {written for _, written in expected} == {True, False}
    for batch_size in (1, 4):
        same_answers(ask(make(model, batch_size, share=True), requests), expected)


def test_a_context_and_each_beginning_of_an_answer_are_counted_once() -> None:
    model = random_skip()
    requests = requests_of(model)
    sums = {"prompt": [0, np.zeros(3)], "answer": [0, np.zeros(3)]}

    def add(kind: str, ran: np.ndarray) -> None:
        sums[kind][0] += ran.shape[1]
        sums[kind][1] += ran.sum(axis=1)

    fed: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for _, context, answer in requests:
        cut = tuple((context + answer)[-WINDOW - 1 : -1])
        place = len(cut) - len(answer) + 1
        fed.setdefault(cut[:place], set()).add(cut[place:])
    for context, tails in fed.items():
        ran = executed(model, context)
        add("prompt", ran[:, :-1])
        add("answer", ran[:, -1:])
        for tail in tails:
            longer = {other for other in tails if other[: len(tail)] == tail}
            if longer == {tail}:
                add("answer", executed(model, context + tail)[:, len(context) :])
    for batch_size in (1, 4):
        lm = make(model, batch_size, share=True)
        ask(lm, requests)
        for kind, (tokens, total) in sums.items():
            assert lm.tallies[kind].tokens == tokens
            assert lm.tallies[kind].executed.tolist() == total.tolist()
        assert lm.tallies["generated"].tokens == 0


@torch.no_grad()
def executed(model: Any, ids: tuple[int, ...]) -> np.ndarray:
    """Decisions (U, T) of one sequence on its own."""
    return model.model(torch.tensor([ids]), use_cache=False).executed[0].numpy()


def test_counts_are_those_of_the_stock_path_where_nothing_is_shared() -> None:
    model = random_skip()
    lengths = [20, 3, 18, 1, 7]
    contexts, answers = toy.ids_of(lengths, seed=5), toy.ids_of([3, 1, 4, 2, 1], seed=6)
    requests = [((f"{n}", ""), *pair) for n, pair in enumerate(zip(contexts, answers, strict=True))]
    lms = [make(model, 2, share) for share in (False, True)]
    stock, shared = (same.tallies for same in lms if ask(same, requests))
    for kind in stock:
        assert shared[kind].tokens == stock[kind].tokens
        assert shared[kind].executed.tolist() == stock[kind].executed.tolist()
        assert shared[kind].saved_squares == pytest.approx(stock[kind].saved_squares)


def test_a_router_that_knows_deciding_positions_meets_them_from_the_end_of_the_context() -> None:
    model = spared()
    lm = make(model, 4, share=True)
    requests = requests_of(model)
    ask(lm, requests)
    assert lm.tallies["answer"].executed.tolist() == [lm.tallies["answer"].tokens]
    places = [place for row in by_context(requests, WINDOW) for place in range(len(row.fed) - 1)]
    ran = sum(place % 10 >= 3 for place in places)
    assert lm.tallies["prompt"].tokens == len(places)
    assert lm.tallies["prompt"].executed.tolist() == [ran]


def test_rows_whose_tokens_compete_take_the_stock_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = shaken("mod-d-topk")
    requests = requests_of(model)
    monkeypatch.delattr(harness, "answer_requests")
    lms = [make(model, 4, share, pads=False) for share in (False, True)]
    assert ask(lms[0], requests) == ask(lms[1], requests)
    with pytest.raises(NameError):
        ask(make(model, 4, share=True), requests)


def test_the_head_runs_where_a_token_is_scored_and_nowhere_else() -> None:
    model = toy.make_model()
    requests = requests_of(model)
    lm = make(model, 4, share=True)
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _, __, out: rows.append(out[..., 0].numel()))
    ask(lm, requests)
    assert sum(rows) == lm.tallies["answer"].tokens
    contexts = by_context(requests, WINDOW)
    following = [len(row.fed) for context in contexts for row in continuations(context)]
    assert sum(rows) == len(contexts) + sum(following)


def test_texts_without_a_context_and_whole_texts_are_scored_as_by_the_stock_path() -> None:
    rng = np.random.default_rng(6)
    texts = [toy.sentence(rng, length) for length in (3, 70, 1)]
    found = []
    for share in (False, True):
        lm = make(toy.make_model(), 2, share)
        asked = [Instance("loglikelihood", {}, ("", text), 0) for text in (texts[0], texts[2])]
        whole = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
        logs = [log for log, _ in lm.loglikelihood(asked, disable_tqdm=True)]
        found.append(logs + lm.loglikelihood_rolling(whole, disable_tqdm=True))
    assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_every_answer_reaches_the_cache_of_lm_eval() -> None:
    model = toy.make_model()
    requests = requests_of(model)
    told: list[dict[Any, Any]] = []
    for share in (False, True):
        lm, seen = make(model, 4, share), dict[Any, Any]()

        class Hook:
            def __init__(self, seen: dict[Any, Any]) -> None:
                self.seen = seen

            def add_partial(self, kind: str, text: Any, answer: Any) -> None:
                assert kind == "loglikelihood"
                self.seen[text] = answer

        lm.set_cache_hook(Hook(seen))
        # Windows of a rolling likelihood carry no text and are no answers.
        found = ask(lm, [*requests, (None, [1, 2], [3])])
        assert dict(zip([text for text, *_ in requests], found, strict=False)) == seen
        told.append(seen)
    assert told[0].keys() == told[1].keys()


def test_contexts_are_the_longest_first_and_cut_from_the_left() -> None:
    asked = [(None, [1, 2, 3], [4]), (None, [5], [6, 7]), (None, [1, 2, 3], [8, 9, 4])]
    assert by_context(asked, 8) == [
        Row([1, 2, 3], [Asked(0, [4]), Asked(2, [8, 9, 4])]), Row([5], [Asked(1, [6, 7])])
    ]  # fmt: skip
    assert [row.fed for row in by_context(asked, 3)] == [[1, 2, 3], [3], [5]]


def test_an_answer_follows_in_the_row_of_one_that_it_begins() -> None:
    answers = [[1], [1, 2, 3], [1, 2], [1, 2, 3, 4], [5, 6], [1, 3, 1], [1, 2, 3]]
    rows = continuations(Row([9], [Asked(n, answer) for n, answer in enumerate(answers)]))
    assert [(row.fed, sorted(asked.number for asked in row.asked)) for row in rows] == [
        ([5], [4]), ([1, 3], [5]), ([1, 2, 3], [1, 2, 3, 6]),
    ]  # fmt: skip
    assert continuations(Row([9], [Asked(0, [1]), Asked(1, [2])])) == []


@pytest.mark.parametrize(("context", "answer"), [([], [1]), ([1], []), ([1], [1] * 33)])
def test_what_cannot_be_scored_is_refused(context: list[int], answer: list[int]) -> None:
    lm = make(toy.make_model(), 4, share=True)
    with pytest.raises(ValueError, match=rf"context of {len(context)} .* of {len(answer)} tokens"):
        ask(lm, [(None, context, answer)])


# 25 demonstrations of about a dozen words.
SHOTS = 25


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of four choices whose demonstrations are drawn from a split of their own."""
    folder, rng = tmp_path_factory.mktemp("task"), np.random.default_rng(3)

    def rows(number: int) -> list[dict[str, Any]]:
        return [
            {
                "question": toy.sentence(rng, int(rng.integers(6, 13))),
                "options": [toy.sentence(rng, int(rng.integers(2, 6))) for _ in range(4)],
                "answer": int(rng.integers(0, 4)),
            }
            for _ in range(number)
        ]

    files = {
        split: str(toy.write_jsonl(folder / f"{split}.jsonl", rows(number)))
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
    computed, results = list[int](), list[Scored]()
    for share in (False, True):
        model, seen = random_skip(max_position_embeddings=1024), list[int]()
        positions(model, seen)
        results.append(score(make(model, 4, share, max_length=None), [entry], [task]))
        computed.append(sum(seen))
    assert computed[1] <= 0.28 * computed[0]
    first, second = results
    assert first.items[0].equals(second.items[0])
    for kind in ("prompt", "answer"):
        assert second.tallies[kind].tokens < first.tallies[kind].tokens


def test_few_shot_choices_cost_a_quarter_of_lm_evals_own(task: Path) -> None:
    model = toy.make_model(max_position_embeddings=1024)
    caught: list[Request] = []
    lm = make(model, 4, share=True, max_length=None)
    real = lm._loglikelihood_tokens

    def catching(requests: list[Request], **options: Any) -> list[tuple[float, bool]]:
        caught.extend(requests)
        return real(requests, **options)

    lm._loglikelihood_tokens = catching
    score(lm, [TaskEntry("toy_shots", num_fewshot=SHOTS)], [task])
    seen: list[int] = []
    positions(model, seen)
    own = HFLM(pretrained=model, tokenizer=toy.make_tokenizer(), batch_size=4)
    expected = ask(own, caught)
    stock = sum(seen)
    seen.clear()
    same_answers(real(caught, disable_tqdm=True), expected)
    assert sum(seen) <= 0.28 * stock


def test_a_record_says_what_was_shared_and_stands_in_no_table_with_others(
    llama: Path, tmp_path: Path
) -> None:
    folder, records, file = toy.make_tasks(tmp_path / "tasks"), [], tmp_path / "record.json"
    # At one place: scores that were kept there are not taken for those of the other way.
    for flags in ([], ["--share-prefix"]):
        steps.call(
            "evaluate", "--model", llama, "--tasks", "toy_choice", "--task-dir", folder,
            "--batch-size", 8, "--device", "cpu", "--out", file, *flags,
        )  # fmt: skip
        records.append(json.loads(file.read_text()))
    assert [record["evaluation"]["share_prefix"] for record in records] == [False, True]
    values, prompts = (
        [[read(score) for score in record["scores"]] for record in records]
        for read in (lambda s: s["value"], lambda s: s["rates"]["prompt"]["tokens"])
    )
    assert values[0] == values[1]
    assert prompts[0][0] > prompts[1][0]
    with pytest.raises(ValueError, match=r"different ways of counting .*: False and True"):
        check_comparable(records)
