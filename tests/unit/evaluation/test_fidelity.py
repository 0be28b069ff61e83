"""KL, agreement and losses against hand-computed values and a loop over single positions."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from methods.core.data import Document
from methods.core.model.backbone import count, layers
from methods.core.model.ledger import Ledger
from methods.core.routing.routed import route
from methods.core.routing.router import ffn_units
from methods.random_skip import RandomRouter
from tests.steps import Refuse, call, fit
from tests.toys.models import make_backbone, make_model
from tests.toys.texts import ids_of, write_jsonl
from workflows.evaluation import fidelity
from workflows.evaluation.fidelity import POSITIONS, Comparison, _compare, measure

DOCUMENTS = [
    Document(ids, prompt, "", ((prompt - 1, len(ids) - 1),))
    for ids, prompt in zip(ids_of([9, 4, 12, 7, 2]), [3, 2, 10, 1, 1], strict=True)
]


def compare(reference: Any, model: Any, **settings: Any) -> Comparison:
    ledger = Ledger.of(model, count(reference), len(layers(reference)))
    return measure(reference, model, ledger, DOCUMENTS, **settings)


class Table(nn.Module):
    """A head that takes its inputs as probabilities."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states.log()


def test_kl_of_two_given_distributions() -> None:
    dense = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])
    row = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]])
    kl, same, loss, reference_loss = _compare(
        Table(), dense, Table(), row, torch.tensor([1, 2])
    ).T.tolist()
    # 0.5 ln 2 - 0.25 ln 2: the last third is alike.
    assert kl == pytest.approx([0.25 * math.log(2), 0], abs=1e-6)
    assert same == [0, 1]
    assert loss == pytest.approx([math.log(2), math.log(10)], rel=1e-6)
    assert reference_loss == pytest.approx([math.log(4), math.log(10)], rel=1e-6)


def test_a_model_is_at_no_distance_from_itself() -> None:
    model = make_model()
    result = compare(model, copy.deepcopy(model)).means()
    for kind in ("all", "answer"):
        means = result[kind]
        assert (means["kl"], means["agreement"], means["skip"]) == (0, 1, 0)
    assert result["perplexity"] == result["reference_perplexity"]


def test_a_permuted_head_changes_which_token_is_likeliest() -> None:
    model = make_model()
    other = copy.deepcopy(model)
    other.lm_head.weight.data = other.lm_head.weight.data.roll(1, dims=0)
    result = compare(model, other).means()["all"]
    assert result["kl"] > 0.5
    assert result["agreement"] == 0


@pytest.mark.parametrize("kind", ["all", "answer"])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("positions", [POSITIONS, 3])
def test_every_position_counts_as_in_a_loop_over_single_documents(
    positions: int, batch_size: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fidelity, "POSITIONS", positions)
    reference = make_model()
    model = route(
        make_model(), RandomRouter(ffn_units(reference, [1, 2, 3, 4, 5]), seed=9, skips=2.3)
    )
    result = compare(reference, model, batch_size=batch_size)
    answers = kind == "answer"
    values, ran, of_text = [], [], []
    for document in DOCUMENTS:
        ids = torch.tensor([list(document.ids)])
        with torch.no_grad():
            expected = reference(ids).logits[0].log_softmax(dim=-1)
            actual = model(ids).logits[0].log_softmax(dim=-1)
            executed = model.model(ids, use_cache=False).executed[0]
        stop, before = len(document.ids) - 1, len(values)
        for place in range(document.prompt - 1 if answers else 0, stop):
            p, q, word = expected[place], actual[place], document.ids[place + 1]
            kl = float(sum(a.exp() * (a - b) for a, b in zip(p, q, strict=True)))
            values.append([kl, float(p.argmax() == q.argmax()), float(-q[word]), float(-p[word])])
            ran.append(executed[:, place].tolist())
        of_text.append(
            (len(document.ids), len(values) - before, sum(v[0] for v in values[before:]))
        )
    total = result.sums[kind].sum()
    sums = [sum(column) for column in zip(*values, strict=True)]
    assert total["tokens"] == len(values)
    # Text by text, the shortest first.
    _, tokens, kl = zip(*sorted(of_text), strict=True)
    stored = result.as_json()["distances"][kind]
    assert stored["tokens"] == list(tokens)
    assert stored["kl"] == pytest.approx(kl, rel=1e-4, abs=1e-7)
    assert sum(stored["agreement"]) == sums[1]
    assert total["kl"] == pytest.approx(sums[0], rel=1e-4)
    assert total["agreement"] == sums[1]
    if not answers:
        perplexity = math.exp(sums[2] / len(values))
        assert result.means()["perplexity"] == pytest.approx(perplexity, rel=1e-4)
        assert total["reference_loss"] == pytest.approx(sums[3], rel=1e-4)
    sizes = [unit.parameters for unit in model.model.router.units]
    saved = [sum(size * (not one) for size, one in zip(sizes, unit, strict=True)) for unit in ran]
    assert result.skips[kind] == pytest.approx(sum(saved) / len(saved) / count(reference))


def test_the_last_token_of_a_fed_text_is_an_answer_token_without_a_next_one() -> None:
    model = make_model()
    ledger = Ledger.of(model, count(model), len(layers(model)))
    result = measure(model, model, ledger, [Document([3, 4, 5], 2, "", ((1, 3),))])
    assert {kind: sums["tokens"].tolist() for kind, sums in result.sums.items()} == {
        "all": [2], "answer": [2],
    }  # fmt: skip


def test_texts_without_an_answer_have_no_distance_on_answers() -> None:
    model = make_model()
    ledger = Ledger.of(model, count(model), len(layers(model)))
    result = measure(model, model, ledger, [Document([3, 4], 0)])
    assert list(result.sums) == list(result.as_json()["distances"]) == ["all"]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_text_without_a_position_has_no_line_in_any_batch(batch_size: int) -> None:
    model = make_model()
    ledger = Ledger.of(model, count(model), len(layers(model)))
    texts = [Document([3], 0), Document([3, 4], 0), Document([5, 4, 3], 0)]
    found = measure(model, model, ledger, texts, batch_size)
    assert found.sums["all"]["tokens"].tolist() == [1, 2]


def test_the_hash_of_texts_follows_tokens_and_answers() -> None:
    model = make_model()
    ledger = Ledger.of(model, count(model), len(layers(model)))
    texts = [Document([3, 4], 0), Document([3, 5], 0), Document([3, 5], 1, "", ((0, 1),))]
    assert len({measure(model, model, ledger, [text]).texts for text in texts}) == 3


def test_documents_without_a_position_are_refused() -> None:
    model = make_model()
    ledger = Ledger.of(model, count(model), len(layers(model)))
    with pytest.raises(ValueError, match="no document has a next token to compare at"):
        measure(model, model, ledger, [Document([3], 0)])


def test_the_command_finds_the_dense_model_and_reads_what_it_wrote(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backbone = make_backbone(tmp_path / "dense")
    texts = write_jsonl(tmp_path / "texts.jsonl", [{"text": "w1 w2 w3 w4"}, {"text": "w9 w8"}])
    model = fit("random-skip", backbone, tmp_path / "row", "--budget", 0.2, "--probe", texts)
    out, plain = tmp_path / "fidelity.json", tmp_path / "plain.json"
    words = ["--texts", texts, "--device", "cpu", "--threads", torch.get_num_threads()]
    call("fidelity", "--model", model, "--out", out, *words)
    result = json.loads(out.read_text())
    # Each token is followed by another one, the last by the EOS.
    assert (result["documents"], result["all"]["tokens"]) == (2, 4 + 2)
    assert result["all"]["kl"] > 0
    assert result["all"]["skip"] > 0
    written = out.stat().st_mtime_ns
    call("fidelity", "--model", model, "--out", out, *words)
    assert out.stat().st_mtime_ns == written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workflows.runtime.provenance.version", lambda package: "another")
        call("fidelity", "--model", model, "--out", out, *words)
    assert out.stat().st_mtime_ns != written
    write_jsonl(texts, [{"text": "w1 w2 w3"}])
    call("fidelity", "--model", model, "--out", out, *words)
    assert json.loads(out.read_text())["all"]["tokens"] == 3
    refuse = Refuse(capfd, tmp_path)
    sentence = refuse("fidelity", "--model", backbone, "--out", plain, *words)
    assert "say with --reference which one is dense" in sentence
    tokens = ["--texts", tmp_path / "texts.tokens"]
    sentence = refuse("fidelity", "--model", model, "--out", plain, *tokens)
    assert sentence == f"--texts {tokens[1]} must end in .jsonl"
    call("fidelity", "--model", backbone, "--reference", backbone, "--out", plain, *words)
    assert json.loads(plain.read_text())["all"]["kl"] == 0
