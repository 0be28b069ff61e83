"""What the harness counts, against loops over single sequences without batches or caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance

from methods.core.routing.routed import route
from methods.core.routing.router import ffn_units
from methods.random_skip import RandomRouter
from tests.toys.models import make_model
from tests.toys.routed import PromptSkipper
from tests.toys.sharing import executed, make_lm
from tests.toys.texts import EOS, make_tokenizer
from workflows.evaluation.harness import KINDS, CountingLM
from workflows.evaluation.score import pool, rates_by_kind, score
from workflows.evaluation.tasklist import TaskEntry, parse_tasks
from workflows.records import SAMPLE

STOPS = ["w7", "w23 w", "w5"]
Counts = dict[str, tuple[int, list[float]]]


def harness(model: Any, batch_size: int, max_length: int | None = None) -> CountingLM:
    return make_lm(model, batch_size, share=False, max_length=max_length)


def counts(tallies: dict[str, Any]) -> Counts:
    return {kind: (tally.tokens, tally.executed.tolist()) for kind, tally in tallies.items()}


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def encode(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def slow_likelihood(model: Any, folder: Path) -> Counts:
    """Each distinct input is computed once; its last answer token is never fed."""
    fed: dict[tuple[int, ...], int] = {}
    for row in rows(folder, "choice"):
        for option in row["options"]:
            answer = encode(option)
            fed[tuple((encode(row["question"]) + answer)[:-1])] = len(answer)
    sums = {kind: (0, np.zeros(5)) for kind in KINDS}
    for ids, length in fed.items():
        ran = executed(model, list(ids))
        for kind, part in (("prompt", ran[:, :-length]), ("likelihood", ran[:, -length:])):
            tokens, total = sums[kind]
            sums[kind] = (tokens + part.shape[1], total + part.sum(axis=1))
    return {kind: (tokens, total.tolist()) for kind, (tokens, total) in sums.items()}


@torch.no_grad()
def write(
    model: Any, prompt: list[int], most: int, ends: tuple[int, ...] = (EOS,)
) -> tuple[list[int], str]:
    """Greedy answer up to and with the token that ends it, and what ended it."""
    answer, tokenizer = list[int](), make_tokenizer()
    while len(answer) < most:
        logits = model(torch.tensor([prompt + answer]), use_cache=False).logits
        answer.append(int(logits[0, -1].argmax()))
        if answer[-1] in ends:
            return answer, "eos"
        text = tokenizer.decode(answer)
        if any(stop in text for stop in STOPS):
            return answer, "stop"
    return answer, "length"


def slow_generation(
    model: Any, folder: Path, tokens_at_end: tuple[int, ...] = (EOS,)
) -> tuple[Counts, set[str]]:
    sums = {kind: (0, np.zeros(5)) for kind in KINDS}
    ends = set()
    for row in rows(folder, "write"):
        prompt = encode(row["question"])
        answer, end = write(model, prompt, 12, tokens_at_end)
        ends.add(end)
        ran = executed(model, prompt + answer[:-1])
        # The prompt's last token is what the first generated one is read from.
        cut = len(prompt) - 1
        for kind, part in (("prompt", ran[:, :cut]), ("generated", ran[:, cut:])):
            tokens, total = sums[kind]
            sums[kind] = (tokens + part.shape[1], total + part.sum(axis=1))
    return {kind: (tokens, total.tolist()) for kind, (tokens, total) in sums.items()}, ends


@pytest.mark.parametrize("batch_size", [1, 8])
def test_likelihood_counts_equal_single_sequences(batch_size: int, model: Any, many: Path) -> None:
    lm = harness(model, batch_size)
    scored = score(lm, parse_tasks("toy_choice"), [many])
    assert counts(scored.tallies) == slow_likelihood(model, many)
    assert any(0 in encode(row["question"]) for row in rows(many, "choice"))


@pytest.mark.parametrize("batch_size", [1, 8])
def test_generation_counts_equal_single_sequences(batch_size: int, model: Any, many: Path) -> None:
    lm = harness(model, batch_size)
    scored = score(lm, parse_tasks("toy_write"), [many])
    expected, ends = slow_generation(model, many)
    assert counts(scored.tallies) == expected
    assert ends == {"eos", "stop", "length"}


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("place", ["generation_config", "config"])
def test_a_text_ends_at_any_end_token(place: str, batch_size: int, many: Path) -> None:
    ends = [EOS, 11, 26, 41]
    made = make_model(seed=0, eos_token_id=ends if place == "config" else EOS)
    made.generation_config.eos_token_id = ends if place == "generation_config" else None
    model = route(made, RandomRouter(ffn_units(made, [1, 2, 3, 4, 5]), seed=9, skips=2.3))
    scored = score(harness(model, batch_size), parse_tasks("toy_write"), [many])
    expected, _ = slow_generation(model, many, tuple(ends))
    assert counts(scored.tallies) == expected
    assert expected != slow_generation(model, many)[0]


def test_every_model_writes_greedily_whatever_its_folder_ships(many: Path) -> None:
    made = make_model(seed=0)
    shipped = {"repetition_penalty": 2.0, "no_repeat_ngram_size": 1, "num_beams": 3}
    made.generation_config.update(do_sample=True, temperature=0.1, **shipped)
    model = route(made, RandomRouter(ffn_units(made, [1, 2, 3, 4, 5]), seed=9, skips=2.3))
    scored = score(harness(model, 4), parse_tasks("toy_write"), [many])
    assert counts(scored.tallies) == slow_generation(model, many)[0]


def test_settings_of_a_task_go_over_greedy_decoding(model: Any, many: Path) -> None:
    given = {"until": STOPS, "max_gen_toks": 12, "no_repeat_ngram_size": 1}
    entry = TaskEntry("toy_write", config={"generation_kwargs": given})
    scored = score(harness(model, 4), [entry], [many])
    assert counts(scored.tallies) != slow_generation(model, many)[0]


@pytest.mark.parametrize(
    "length",
    [
        {"max_new_tokens": 12},
        {"max_tokens": "12"},
        {"max_completion_tokens": 12},
        {"max_gen_toks": 12, "max_new_tokens": 20},
    ],
    ids=str,
)
def test_a_length_has_every_name_that_lm_eval_knows(
    length: dict[str, Any], model: Any, many: Path
) -> None:
    entry = TaskEntry("toy_write", config={"generation_kwargs": {"until": STOPS, **length}})
    scored = score(harness(model, 4), [entry], [many])
    assert counts(scored.tallies) == slow_generation(model, many)[0]


def test_a_text_ends_at_the_tokens_that_a_task_gives(model: Any, many: Path) -> None:
    ends = [11, 26, 41]
    given = {"until": STOPS, "max_gen_toks": 12, "eos_token_id": ends}
    entry = TaskEntry("toy_write", config={"generation_kwargs": given})
    scored = score(harness(model, 4), [entry], [many])
    assert counts(scored.tallies) == slow_generation(model, many, (*ends, EOS))[0]


@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences"])
def test_several_sequences_per_item_are_not_counted(name: str, model: Any, many: Path) -> None:
    entry = TaskEntry("toy_write", config={"generation_kwargs": {"max_gen_toks": 4, name: 2}})
    with pytest.raises(ValueError, match=f"{name} must be 1 to count what ran"):
        score(harness(model, 8), [entry], [many])


def test_scores_do_not_depend_on_the_batch_size(model: Any, many: Path) -> None:
    results = [
        score(harness(model, size), parse_tasks("toy_choice,toy_write"), [many]) for size in (1, 8)
    ]
    assert results[0].scores == results[1].scores
    for first, second in zip(results[0].items, results[1].items, strict=True):
        # Log-likelihoods round otherwise.
        assert first.drop(columns=SAMPLE).equals(second.drop(columns=SAMPLE))


def test_likelihood_scores_equal_a_loop(model: Any, many: Path) -> None:
    hits = []
    with torch.no_grad():
        for row in rows(many, "choice"):
            sums = []
            for option in row["options"]:
                ids = encode(row["question"]) + encode(option)
                logs = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
                length = len(encode(option))
                sums.append(sum(float(logs[-length + i, ids[-length + i]]) for i in range(length)))
            hits.append(int(np.argmax(sums) == row["answer"]))
    scored = score(harness(model, 8), [TaskEntry("toy_choice", metric="acc")], [many])
    primary = next(s for s in scored.scores if s["primary"])
    assert (primary["metric"], primary["n"], primary["k"]) == ("acc", 30, sum(hits))
    assert primary["value"] == pytest.approx(sum(hits) / 30)
    assert primary["stderr"] == pytest.approx(np.std(hits, ddof=1) / 30**0.5)
    frame = scored.items[0]
    assert frame[frame["metric"] == "acc"]["value"].tolist() == hits


def test_tasks_are_counted_apart_and_pooled(model: Any, many: Path) -> None:
    lm = harness(model, 8)
    entries = [TaskEntry("toy_choice", limit=5), TaskEntry("toy_write", limit=3)]
    scored = score(lm, entries, [many])
    alone = [score(harness(model, 8), [entry], [many]) for entry in entries]
    for name, part in zip(("toy_choice", "toy_write"), alone, strict=True):
        rates = [s["rates"] for s in scored.scores if s["task"] == name]
        assert rates[0] == rates_by_kind(part.tallies)
    tokens = [pool(part.tallies).tokens for part in alone]
    assert pool(scored.tallies).tokens == sum(tokens)
    assert {s["n"] for s in scored.scores} == {5, 3}


def test_a_plain_model_counts_tokens_and_skips_nothing(many: Path) -> None:
    plain = make_model(seed=0)
    scored = score(harness(plain, 8), parse_tasks("toy_choice,toy_write"), [many])
    rates = pool(scored.tallies).rates()
    assert (rates.skip, rates.skip_net, rates.executed) == (0, 0, ())
    assert rates.tokens > 0
    routed = slow_likelihood(
        route(make_model(seed=0), RandomRouter(ffn_units(plain, [1, 2, 3, 4, 5]), 0, 0.0)), many
    )
    assert scored.scores[0]["rates"]["all"]["tokens"] == sum(n for n, _ in routed.values())


def test_an_unknown_metric_is_named_before_anything_is_scored(
    model: Any, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.evaluation.score.simple_evaluate", None)
    with pytest.raises(ValueError, match=r"no metric 'f1' \(it has: acc, acc_norm\)"):
        score(harness(model, 8), [TaskEntry("toy_choice", metric="f1", limit=2)], [many])


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_router_that_spares_answer_tokens_shows_it_in_every_column(
    batch_size: int, many: Path
) -> None:
    plain = make_model(seed=0)
    routed = route(plain, PromptSkipper(plain))
    lm = harness(routed, batch_size)
    scored = score(lm, parse_tasks("toy_choice,toy_write"), [many])
    share = lm.ledger.sizes[0] / lm.ledger.total
    choice, written = (
        next(s["rates"] for s in scored.scores if s["task"] == task)
        for task in ("toy_choice", "toy_write")
    )
    assert (choice["likelihood"]["skip"], choice["answer"]["skip"]) == (0, 0)
    assert (written["generated"]["skip"], written["answer"]["skip"]) == (0, 0)
    assert "generated" not in choice and "likelihood" not in written
    for task, rates in (("choice", choice), ("write", written)):
        prompts = dict.fromkeys(
            (row["question"], *([option] if task == "choice" else []))
            for row in rows(many, task)
            for option in row.get("options", [None])
        )
        fed = {
            (tuple((encode(q) + encode(rest[0])[:-1]) if rest else encode(q)), len(encode(q)) - 1)
            for q, *rest in prompts
        }
        places = [place for _, cut in fed for place in range(cut)]
        skipped = sum(place % 10 < 3 for place in places)
        if task == "choice":
            assert rates["prompt"]["tokens"] == len(places)
            assert rates["prompt"]["skip"] == pytest.approx(share * skipped / len(places))
        total = rates["prompt"]["tokens"] + rates["answer"]["tokens"]
        assert rates["all"]["tokens"] == total
        pooled = rates["prompt"]["skip"] * rates["prompt"]["tokens"] / total
        assert rates["all"]["skip"] == pytest.approx(pooled)


def test_a_window_that_cuts_every_prompt_is_refused(model: Any, many: Path) -> None:
    entries = parse_tasks("toy_choice")
    with pytest.warns(UserWarning, match="75 of 90 prompts are longer than the context window"):
        score(harness(model, 4, max_length=3), entries, [many])
    with pytest.raises(ValueError, match="every prompt is longer than the context window of 1 tok"):
        score(harness(model, 4, max_length=1), entries, [many])


def test_the_tokens_to_generate_count_as_well(model: Any, many: Path) -> None:
    lm = harness(model, 4, max_length=8)
    requests = [Instance("generate_until", {}, ("w1 w2", {"max_gen_toks": 7}), 0)]
    with pytest.raises(ValueError, match="every prompt with the tokens to generate"):
        lm.generate_until(requests)


def test_what_is_no_number_is_not_scored(model: Any, many: Path) -> None:
    with torch.no_grad():
        model.lm_head.weight[3, 0] = torch.nan
    with pytest.raises(ValueError, match="log-likelihood of a request, 0 is nan"):
        score(harness(model, 4), parse_tasks("toy_choice"), [many])


def test_a_window_longer_than_the_models_is_refused(model: Any) -> None:
    assert harness(model, 4, max_length=256).max_length == 256
    with pytest.raises(ValueError, match="max_length is 257, the model's window is 256 tokens"):
        harness(model, 4, max_length=257)


def test_a_context_in_a_batch_begins_as_it_does_alone(model: Any) -> None:
    lm = harness(model, 4)
    lm.tokenizer = make_tokenizer(form="<bos> $A")
    lm.tokenizer.pad_token = "w0"
    contexts = ["<bos> w1 w2", "w3 w4 w5", "<bos> w6", "w7"]
    options = {"until": STOPS, "max_gen_toks": 4, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (context, options), number)
        for number, context in enumerate(contexts)
    ]
    lm.generate_until(requests, disable_tqdm=True)
    # All but the last token of each, one BOS among them.
    assert lm.tallies["prompt"].tokens == 2 + 3 + 1 + 1
