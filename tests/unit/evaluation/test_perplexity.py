"""Perplexity of texts in windows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from methods.core.routing.routed import route
from tests.toys.models import make_model
from tests.toys.routed import PromptSkipper
from tests.toys.sharing import executed
from tests.unit.evaluation.test_harness import counts, harness
from workflows.evaluation.fidelity import POSITIONS
from workflows.evaluation.score import score
from workflows.evaluation.tasklist import TaskEntry, parse_tasks


@pytest.mark.parametrize("positions", [POSITIONS, 3])
def test_perplexity_of_windows_by_hand(
    positions: int, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.evaluation.perplexity.POSITIONS", positions)
    ids = np.random.default_rng(0).integers(0, 60, 25).tolist()
    file = tmp_path / "text.txt"
    file.write_text(" ".join(f"w{n}" for n in ids))
    lm = harness(model, 8, max_length=8)
    scored = score(lm, parse_tasks(f"perplexity:{file}"), [])
    losses, ran, last = [], np.zeros(5), np.zeros(5)
    # Windows of 8, 8, 8 and 1; the last holds nothing to predict.
    for start in (0, 8, 16):
        window = ids[start : start + 8]
        with torch.no_grad():
            logs = model(torch.tensor([window])).logits[0].log_softmax(-1)
        losses += [-float(logs[t, window[t + 1]]) for t in range(7)]
        ran += executed(model, window)[:, :-1].sum(axis=1)
        last += executed(model, window)[:, -1]
    (result,) = scored.scores
    assert result["value"] == pytest.approx(math.exp(sum(losses) / 21), rel=1e-5)
    assert (result["n"], result["k"], result["higher_is_better"]) == (21, None, False)
    assert counts(scored.tallies)["likelihood"] == (21, ran.tolist())
    assert counts(scored.tallies)["prompt"] == (3, last.tolist())
    assert len(scored.items[0]) == 3


def test_a_text_of_one_token_has_no_perplexity(model: Any, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("w1")
    with pytest.raises(ValueError, match="fewer than two tokens"):
        score(harness(model, 1), parse_tasks(f"perplexity:{tmp_path / 'text.txt'}"), [])


def test_a_perplexity_does_not_follow_from_what_was_scored_before(
    many: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(" ".join(f"w{n}" for n in range(3, 30)))
    plain = make_model(seed=0)
    lm = harness(route(plain, PromptSkipper(plain)), 8)
    text = parse_tasks(f"perplexity:{tmp_path / 'text.txt'}")
    first = score(lm, text, [])
    score(lm, [TaskEntry("toy_choice", limit=2)], [many])
    again = score(lm, text, [])
    assert again.scores == first.scores
    assert counts(again.tallies) == counts(first.tallies)


def test_a_perplexity_beside_tasks_enters_no_skip_but_its_own(many: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(f"w{n}" for n in range(3, 30)))
    lm = harness(make_model(seed=0), 8)
    task, text = TaskEntry("toy_choice", limit=2), *parse_tasks(f"perplexity:{tmp_path}/text.txt")
    alone, both = score(lm, [task], [many]), score(lm, [task, text], [many])
    assert counts(both.tallies) == counts(alone.tallies)
    assert both.scores[-1]["rates"]["all"]["tokens"] == 27
