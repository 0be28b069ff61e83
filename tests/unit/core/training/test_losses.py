"""What training adds up: losses, penalties and rates, position by position."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from methods.base import Request
from methods.core.data import Data, Document
from methods.core.routing.routed import route
from methods.core.routing.steering import FixedWeight, Term
from methods.core.training import losses
from methods.core.training.fit import train_routed
from methods.core.training.loop import Trainer
from methods.core.training.losses import lm_loss_sum, score_answers
from methods.core.training.objective import Routing
from methods.core.training.params import TrainingParams
from tests.toys.models import make_model
from tests.toys.texts import documents
from tests.toys.training import ByNumber, build_row, hero_penalty, trainer_for


def test_loss_is_the_weighted_mean_over_predictions(tmp_path: Path) -> None:
    texts = documents(3)
    weighted = [document._replace(prompt=3) for document in texts]
    dense = make_model()
    above = below = 0.0
    for document in weighted:
        logits = dense(torch.tensor([document.ids])).logits[0, :-1]
        wrong = cross_entropy(logits, torch.tensor(document.ids[1:]), reduction="none").detach()
        # Positions 0 and 1 predict the prompt's second and third token.
        weights = torch.tensor([0.25] * 2 + [1.0] * (len(document.ids) - 3))
        above, below = above + float(wrong @ weights), below + float(weights.sum())
    model = build_row("lora", rank=4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.zeros_(parameter)
    tokens = sum(len(document.ids) for document in texts)
    trainer = trainer_for(
        "lora", tmp_path, weighted, model, updates=1, batch_tokens=tokens, prompt_weight=0.25
    )  # fmt: skip
    assert trainer.run()[0]["loss"] == pytest.approx(above / below, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("chunk", [3, 2048])
def test_answers_are_scored_and_prompts_are_not(
    batch_size: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("methods.core.training.losses.CHUNK", chunk)
    model = make_model()
    wrong, texts = list[Tensor](), list[Document]()
    for document, lead in zip(documents(3), (3, 0, 2), strict=True):
        ids = torch.tensor(document.ids)
        if lead == 2:
            # An answer that the model itself continues is right, whatever its prompt.
            for place in range(lead, len(ids)):
                ids[place] = model(ids[None, :place]).logits[0, -1].argmax()
        logits = model(ids[None]).logits[0, :-1].detach()
        # The last token of a prompt predicts the answer's first one.
        wrong.append(cross_entropy(logits, ids[1:], reduction="none")[max(0, lead - 1) :])
        texts.append(Document(ids.tolist(), lead))
    right, loss = score_answers(model, texts, batch_size)
    assert right == pytest.approx(1 / 3)
    assert loss == pytest.approx(float(torch.cat(wrong).mean()), rel=1e-5)


@pytest.mark.parametrize("most", [0, 3])
@pytest.mark.parametrize("row_length", [0, 16])
def test_penalty_and_rates_leave_out_pads_and_last_tokens(
    most: int, row_length: int, tmp_path: Path
) -> None:
    model = make_model().requires_grad_(False)
    router = ByNumber(model)
    route(model, router)
    texts = [Document([1, 2, 50], 0), Document([4, 51], 0)]
    params = TrainingParams(
        updates=1, batch_tokens=5, row_length=row_length, micro_tokens=most, clip=1e9
    )
    shares = torch.tensor([0.1, 0.2], dtype=torch.float64)
    routing = Routing(shares, {"pooled": Term(FixedWeight(0.5), hero_penalty)})
    entry = Trainer(model, params, texts, 1, tmp_path, routing).run()[0]
    # Predicting tokens are 1, 2 and 4; their gates sum to 0.3 times the id.
    assert entry["penalty"] == pytest.approx((0.3**2 + 0.6**2 + 1.2**2) / 3, rel=1e-6)
    # 1 skips both units, 2 the second, 4 none.
    assert entry["skip"] == pytest.approx((0.3 + 0.2 + 0.0) / 3, rel=1e-6)
    assert entry["executed"] == pytest.approx((0 + 1 + 2) / 3)
    # The penalty grows with the square of the size; alpha is 0.5, the LM loss has no part in it.
    assert float(router.size.grad) == pytest.approx(0.5 * 2 * entry["penalty"], rel=1e-6)


@pytest.mark.parametrize("most", [0, 5])
@pytest.mark.parametrize("row_length", [0, 16])
def test_prompts_and_answer_tokens_are_penalised_and_counted_apart(
    most: int, row_length: int, tmp_path: Path
) -> None:
    model = make_model().requires_grad_(False)
    router = ByNumber(model)
    route(model, router)
    # Task a has three answer tokens, b one: each counts half, so b's weighs three times a's.
    texts = [
        Document([1, 2, 4, 6, 50], 3, "a", [(2, 3)]),
        Document([2, 1, 2, 50], 1, "a", [(0, 2)]),
        Document([1, 2, 50], 1, "b", [(0, 1)]),
    ]
    params = TrainingParams(
        updates=1, batch_tokens=12, row_length=row_length, micro_tokens=most, clip=1e9
    )
    shares = torch.tensor([0.1, 0.2], dtype=torch.float64)
    terms = {k: Term(FixedWeight(a), hero_penalty) for k, a in (("prompt", 0.5), ("answer", 2.0))}
    entry = Trainer(model, params, texts, 1, tmp_path, Routing(shares, terms)).run()[0]
    # Prompts: 1 and 2 of the first text. What predicts the closing token is of neither kind.
    assert entry["penalty_prompt"] == pytest.approx((0.3**2 + 0.6**2) / 2, rel=1e-6)
    assert entry["skip_prompt"] == pytest.approx((0.3 + 0.2) / 2, rel=1e-6)
    # Deciding: 4, then 2 and 1, of task a; 1 of task b.
    by_task = [(1.2**2 + 0.6**2 + 0.3**2) / 3, 0.3**2]
    assert entry["penalty_answer"] == pytest.approx(sum(by_task) / 2, rel=1e-6)
    by_task = [(0.0 + 0.2 + 0.3) / 3, 0.3]
    assert entry["skip_answer"] == pytest.approx(sum(by_task) / 2, rel=1e-6)
    slope = 2 * (0.5 * entry["penalty_prompt"] + 2.0 * entry["penalty_answer"])
    assert float(router.size.grad) == pytest.approx(slope, rel=1e-6)
    assert "skip" not in entry


def test_each_kind_is_steered_by_its_own_weight(tmp_path: Path) -> None:
    texts = [Document(d.ids, 3, "", [(2, len(d.ids) - 2)]) for d in documents(longest=12)]
    trainer = trainer_for("hero", tmp_path, texts, match="split")
    log = trainer.run()
    assert log[-1]["alpha_prompt"] != log[-1]["alpha_answer"]
    state = {kind: term.weight.state() for kind, term in trainer.routing.terms.items()}
    again = trainer_for("hero", tmp_path, texts, match="split")
    assert again.run() == log
    assert {k: term.weight.state() for k, term in again.routing.terms.items()} == state


def test_documents_without_answers_cannot_be_matched_each(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs documents with answers"):
        trainer_for("hero", tmp_path, match="split")


def test_chunked_loss_equals_one_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK", 7)
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 16, generator=rng, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 31, (23,), generator=rng)
    weights = torch.rand(23, generator=rng)
    head = nn.Linear(16, 31, bias=False).double()
    longest: list[int] = []
    head.register_forward_hook(lambda _, args, out: longest.append(len(out)))
    found = lm_loss_sum(hidden, head, targets, weights)
    gradients = torch.autograd.grad(found, [hidden, head.weight])
    assert max(longest) == 7
    logits = hidden @ head.weight.T
    expected = (cross_entropy(logits, targets, reduction="none") * weights).sum()
    whole = torch.autograd.grad(expected, [hidden, head.weight])
    assert found.dtype == torch.float32
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    for one, other in zip(gradients, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_document_cut_before_its_answer_is_neither_right_nor_wrong() -> None:
    model, cut = make_model(), Document([4, 5, 6, 7], 4)
    whole = Document([4, 5, 6, 7], 2, "", ((1, 3),))
    beside, alone = (score_answers(model, documents) for documents in ([cut, whole, cut], [whole]))
    assert beside.right == alone.right
    # A batch of another shape may round otherwise.
    assert beside.loss == pytest.approx(alone.loss, rel=1e-5)
    with pytest.raises(ValueError, match="no document has an answer within max_length"):
        score_answers(model, [cut])


def test_figures_of_a_kind_are_means_whatever_its_weights_add_up_to(tmp_path: Path) -> None:
    texts = [Document(d.ids, 3, "long", ((2, len(d.ids) - 2),)) for d in documents(longest=12)]
    logs = []
    for weight in (0.01, 1.0):
        trainer = trainer_for("hero", tmp_path / str(weight), texts, match="split", updates=1)
        trainer.tasks = {"long": weight}
        logs.append(trainer.run()[0])
    for name in ("skip_answer", "penalty_answer", "executed_answer"):
        assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-5)


def test_an_update_without_answers_says_nothing_of_them(tmp_path: Path) -> None:
    ids = documents(longest=12)[0].ids
    texts = [Document(ids, len(ids)), Document(ids, 3, "", ((2, len(ids) - 2),))]
    trainer = trainer_for("hero", tmp_path, texts, match="split", batch_tokens=len(ids), updates=6)
    log = trainer.run()
    alphas = [entry["alpha_answer"] for entry in log]
    seen = ["skip_answer" in entry for entry in log]
    assert set(seen) == {True, False}
    moves = [before != after for before, after in pairwise(alphas)]
    assert any(moves)
    assert all(there for there, moved in zip(seen, moves, strict=False) if moved)


def test_a_fit_that_never_met_an_answer_is_refused(tmp_path: Path) -> None:
    ids = documents(longest=12)[0].ids
    texts = [Document(ids, len(ids))] * 50 + [Document(ids, 3, "", ((2, len(ids) - 2),))]
    data = cast(Data, SimpleNamespace(training=lambda: texts, probe=lambda: texts))
    params = TrainingParams(updates=1, batch_tokens=len(ids))
    routing = trainer_for("hero", tmp_path, texts, match="split").routing
    model = build_row("hero")
    with pytest.raises(ValueError, match="no update had answer tokens; raise batch_tokens"):
        train_routed(model, params, data, Request(0.25, 1, tmp_path / "w", "split"), routing)
