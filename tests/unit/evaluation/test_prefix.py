"""Answers that share a context against the stock path, which runs every one by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance

from methods import load_method
from methods.core.routing.routed import route
from methods.core.surgery.layers import remove_layers
from tests.toys.models import CONFIGS, cast, make_model, wrap
from tests.toys.routed import VARIANTS, PromptSkipper, shake_variant
from tests.toys.sharing import WINDOW, Request, ask, executed, make_lm, random_skip, same_answers
from tests.toys.texts import ids_of, sentence
from tests.unit.core.routing.test_eviction import evicting
from workflows.evaluation import harness
from workflows.evaluation.prefix import Answer, PassRow, by_context, continuations


def hero() -> Any:
    made = cast(make_model(), torch.float64)
    structure = {"layers": [2, 3, 4, 5], "seed": 1, "threshold": 0.5, "closed": 0}
    model = load_method("hero").build(wrap(made), structure | {"rates": [0.5] * 4})
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.model.router.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=rng)
    return model.eval()


def lora() -> Any:
    model = load_method("lora", {"rank": 4}).build(wrap(make_model()), {"seed": 1})
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return model.eval()


def spared() -> Any:
    made = make_model()
    return route(made, PromptSkipper(made))


MODELS = {
    **{kind: lambda kind=kind: make_model(kind) for kind in CONFIGS},
    "shorter": lambda: remove_layers(make_model(), [2, 4]),
    "lora": lora,
    "random-skip": random_skip,
    "random-skip-window": lambda: random_skip("mistral"),
    "hero": hero,
    "spared": spared,
    # In double precision no gate turns by rounding.
    **{
        name: lambda name=name: shake_variant(name, dtype=torch.float64)
        for name in VARIANTS
        if name != "mod-d-topk"
    },
}


@torch.no_grad()
def greedy(model: Any, context: list[int], length: int) -> list[int]:
    ids = list(context)
    for _ in range(length):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(context) :]


def requests_of(model: Any) -> list[Request]:
    """Contexts of several lengths with answers of several, out of order; some are cut."""
    contexts = ids_of([20, 35, 20, 9, 1, 28, 30], seed=4)
    pairs: list[tuple[list[int], list[int]]] = []
    for number, context in enumerate(contexts):
        one, other = ids_of([5, 3], seed=10 + number)
        # One is the beginning of another, one is there twice, one is what the model would write.
        answers = [one, one[:2], one[:1], other, other, greedy(model, context, 2)]
        pairs += [(context, answer) for answer in answers]
    pairs.append((contexts[0], ids_of([4], seed=30)[0]))
    order = np.random.default_rng(0).permutation(len(pairs))
    return [((f"context {n}", f"answer {n}"), *pairs[n]) for n in order]


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_stock_path(name: str) -> None:
    model = MODELS[name]()
    stock = make_lm(model, 1, share=False)
    requests = requests_of(model)
    expected = ask(stock, requests)
    assert {written for _, written in expected} == {True, False}
    for batch_size in (1, 4):
        same_answers(ask(make_lm(model, batch_size, share=True), requests), expected)


def test_a_context_and_each_beginning_of_an_answer_are_counted_once() -> None:
    model = random_skip()
    requests = requests_of(model)
    sums = {"prompt": [0, np.zeros(3)], "likelihood": [0, np.zeros(3)]}

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
        add("likelihood", ran[:, -1:])
        for tail in tails:
            longer = {other for other in tails if other[: len(tail)] == tail}
            if longer == {tail}:
                add("likelihood", executed(model, context + tail)[:, len(context) :])
    for batch_size in (1, 4):
        lm = make_lm(model, batch_size, share=True)
        ask(lm, requests)
        for kind, (tokens, total) in sums.items():
            assert lm.tallies[kind].tokens == tokens
            assert lm.tallies[kind].executed.tolist() == total.tolist()
        assert lm.tallies["generated"].tokens == 0


def test_counts_are_those_of_the_stock_path_where_nothing_is_shared() -> None:
    model = random_skip()
    lengths = [20, 3, 18, 1, 7]
    contexts, answers = ids_of(lengths, seed=5), ids_of([3, 1, 4, 2, 1], seed=6)
    requests = [((f"{n}", ""), *pair) for n, pair in enumerate(zip(contexts, answers, strict=True))]
    lms = [make_lm(model, 2, share) for share in (False, True)]
    stock, shared = (same.tallies for same in lms if ask(same, requests))
    for kind in stock:
        assert shared[kind].tokens == stock[kind].tokens
        assert shared[kind].executed.tolist() == stock[kind].executed.tolist()
        assert shared[kind].saved_squares == pytest.approx(stock[kind].saved_squares)


def test_a_router_that_knows_answer_tokens_meets_them_from_the_end_of_the_context() -> None:
    model = spared()
    lm = make_lm(model, 4, share=True)
    requests = requests_of(model)
    ask(lm, requests)
    assert lm.tallies["likelihood"].executed.tolist() == [lm.tallies["likelihood"].tokens]
    places = [place for row in by_context(requests, WINDOW) for place in range(len(row.ids) - 1)]
    ran = sum(place % 10 >= 3 for place in places)
    assert lm.tallies["prompt"].tokens == len(places)
    assert lm.tallies["prompt"].executed.tolist() == [ran]


def test_rows_whose_tokens_compete_take_the_stock_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = shake_variant("mod-d-topk")
    requests = requests_of(model)
    monkeypatch.delattr(harness, "answer_requests")
    lms = [make_lm(model, 4, share, batchable=False) for share in (False, True)]
    assert ask(lms[0], requests) == ask(lms[1], requests)
    with pytest.raises(NameError):
        ask(make_lm(model, 4, share=True), requests)


def test_the_head_runs_where_a_token_is_scored_and_nowhere_else() -> None:
    model = make_model()
    requests = requests_of(model)
    lm = make_lm(model, 4, share=True)
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _, __, out: rows.append(out[..., 0].numel()))
    ask(lm, requests)
    assert sum(rows) == lm.tallies["likelihood"].tokens
    contexts = by_context(requests, WINDOW)
    following = [len(row.ids) for context in contexts for row in continuations(context)]
    assert sum(rows) == len(contexts) + sum(following)


@pytest.mark.parametrize("positions", [1, 3, 7])
def test_the_head_runs_over_few_positions_at_once(
    positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    requests, lm = requests_of(model), make_lm(model, 4, share=True)
    whole = ask(lm, requests)
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _, __, out: rows.append(out[..., 0].numel()))
    monkeypatch.setattr("workflows.evaluation.prefix.POSITIONS", positions)
    same_answers(ask(lm, requests), whole)
    assert max(rows) == positions


def test_texts_without_a_context_and_whole_texts_are_scored_as_by_the_stock_path() -> None:
    rng = np.random.default_rng(6)
    texts = [sentence(rng, length) for length in (3, 70, 1)]
    found = []
    for share in (False, True):
        lm = make_lm(make_model(), 2, share)
        asked = [Instance("loglikelihood", {}, ("", text), 0) for text in (texts[0], texts[2])]
        whole = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
        logs = [log for log, _ in lm.loglikelihood(asked, disable_tqdm=True)]
        found.append(logs + lm.loglikelihood_rolling(whole, disable_tqdm=True))
    assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_every_answer_reaches_the_cache_of_lm_eval() -> None:
    model = make_model()
    requests = requests_of(model)
    told: list[dict[Any, Any]] = []
    for share in (False, True):
        lm, seen = make_lm(model, 4, share), dict[Any, Any]()

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
        PassRow([1, 2, 3], [Answer(0, [4]), Answer(2, [8, 9, 4])]),
        PassRow([5], [Answer(1, [6, 7])]),
    ]
    assert [row.ids for row in by_context(asked, 3)] == [[1, 2, 3], [3], [5]]


def test_an_answer_follows_in_the_row_of_one_that_it_begins() -> None:
    answers = [[1], [1, 2, 3], [1, 2], [1, 2, 3, 4], [5, 6], [1, 3, 1], [1, 2, 3]]
    rows = continuations(PassRow([9], [Answer(n, answer) for n, answer in enumerate(answers)]))
    assert [(row.ids, sorted(answer.number for answer in row.answers)) for row in rows] == [
        ([5], [4]), ([1, 3], [5]), ([1, 2, 3], [1, 2, 3, 6]),
    ]  # fmt: skip
    assert continuations(PassRow([9], [Answer(0, [1]), Answer(1, [2])])) == []


@pytest.mark.parametrize(("context", "answer"), [([], [1]), ([1], []), ([1], [1] * 33)])
def test_what_cannot_be_scored_is_refused(context: list[int], answer: list[int]) -> None:
    lm = make_lm(make_model(), 4, share=True)
    with pytest.raises(ValueError, match=rf"context of {len(context)} .* of {len(answer)} tokens"):
        ask(lm, [(None, [1], [1]), (None, context, answer)])


def test_an_evicting_layer_reads_no_pads_where_one_answer_ends_later() -> None:
    model, contexts = evicting(), ids_of([10, 10], seed=6)
    # Two tokens are the longest answer: its second pass holds one token of one row alone.
    requests = [(("a", "x"), contexts[0], [3, 7]), (("b", "y"), contexts[1], [9])]
    expected = ask(make_lm(model, 1, share=False), requests)
    same_answers(ask(make_lm(model, 2, share=True), requests), expected)
