"""Which records may share a table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.records import dense, not_applicable, record, score, typed
from workflows.report.seeds import fits
from workflows.stats.comparable import (
    check_comparable,
    code_by_part,
)


def runs(**changes: Any) -> list[dict[str, Any]]:
    """Dense, and HeRo with something else."""
    hero = record("hero", 0.2, score("a", [1, 1]), **{"stochastic": False} | changes)
    return [dense(score("a", [1, 0])), hero]


def test_equal_runs_pass() -> None:
    check_comparable(typed(*runs(), not_applicable("slicegpt", "too small")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_hash": "q"}, r"on different prompts of 'a' \(p and q\)"),
        ({"split": "validation"}, r"on different splits of 'a' \(test and validation\)"),
        ({"version": 2.0}, r"with different versions of 'a' \(1.0 and 2.0\)"),
        ({"shots": 5}, r"with different numbers of demonstrations of 'a' \(0 and 5\)"),
        ({"n": 3}, r"on different numbers of items of 'a' \(2 and 3\)"),
        ({"chat_template": True}, r"with and without a chat template on 'a' \(False and True\)"),
        ({"chance": 0.5}, r"with different chances of 'a' \(0.25 and 0.5\)"),
        (
            {"higher_is_better": False},
            r"with more and with less as better on 'a' \(True and False\)",
        ),
    ],
)
def test_scores_of_different_things_are_refused(changes: dict[str, Any], words: str) -> None:
    records = runs()
    records[1]["scores"][0] |= changes
    with pytest.raises(ValueError, match=f"rows 'dense' and 'hero' were scored {words}; score"):
        check_comparable(typed(*records))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric": "acc_norm"}, "by different headline metrics of 'a' (acc and acc_norm)"),
        ({"filter": "strict"}, "with different filters of the headline metric of 'a' (none and"),
    ],
)
def test_a_column_has_one_headline_metric_also_where_all_rows_have_both(
    changes: dict[str, Any], words: str
) -> None:
    usual = score("a", [1, 1], primary=False), score("a", [1, 0], **changes)
    mixed = record("hero", 0.2, *usual, stochastic=False)
    other = dense(score("a", [1, 0]), score("a", [0, 0], **(changes | {"primary": False})))
    with pytest.raises(ValueError, match="rows 'dense' and 'hero' were scored ") as caught:
        check_comparable(typed(other, mixed))
    assert words in str(caught.value)


def test_documents_are_compared_where_two_records_have_their_hash() -> None:
    older, hero = runs()
    ours, theirs = (record(name, 0.2, score("a", [1, 0], doc_hash=name)) for name in "de")
    check_comparable(typed(older, hero, ours))
    words = r"rows 'd' and 'e' were scored on different documents of 'a' \(d and e\)"
    with pytest.raises(ValueError, match=words):
        check_comparable(typed(older, ours, theirs))


def test_other_harness_versions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"different harness versions \(lm_eval\): 0.4 and 0.5"):
        check_comparable(typed(*runs(versions={"lm_eval": "0.5"})))


def test_a_record_that_shares_contexts_is_refused_beside_one_that_does_not() -> None:
    shared = {"evaluation": dense()["evaluation"] | {"share_prefix": True}}
    words = (
        r"different ways of counting a context of several answers \(share_prefix\): False and True"
    )
    with pytest.raises(ValueError, match=words):
        check_comparable(typed(*runs(**shared)))
    older = {"evaluation": dense()["evaluation"] | {"share_prefix": False}}
    check_comparable(typed(*runs(**older)))


def test_one_name_for_two_backbones_is_refused() -> None:
    other = dense()["backbone"] | {"hash": "f" * 16}
    with pytest.raises(ValueError, match="different backbones under the name 'toy'"):
        check_comparable(typed(*runs(backbone=other)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"match": None}, r"row 'hero' has no protocol \(match\), but needs pooled or split; fit"),
        (
            {"match": "split", "kind": "static"},
            "row 'hero' has protocol 'split', but a row of its kind has none",
        ),
        (
            {"match": "pooled", "budget": None},
            "row 'hero' has protocol 'pooled', but a row of its kind has none",
        ),
    ],
)
def test_a_protocol_stands_where_one_applies_and_only_there(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_comparable(typed(*runs(**changes)))


def test_runs_by_both_protocols_are_comparable_with_the_reference() -> None:
    check_comparable(typed(*runs(), *runs(match="split")[1:]))


def test_backbones_may_have_prompts_of_their_own() -> None:
    far = dense()["backbone"] | {"name": "far", "hash": "f" * 16}
    check_comparable(typed(runs()[0], dense(score("a", [1], prompt_hash="q"), backbone=far)))


def test_the_code_of_records_by_part_holds_fits_and_scores() -> None:
    assert code_by_part(typed(*runs(fit_code={"methods/core": "b", "methods/old": "o"}))) == {
        "methods/core": ["b", "c"], "methods/dense": ["m"], "methods/hero": ["m"],
        "methods/old": ["o"],
    }  # fmt: skip


def test_seeds_of_a_line_have_one_choice_of_params() -> None:
    scores = score("a", [1, 1])
    one = record("hero", 0.2, scores, params={"updates": 1500, "old": 1})
    other = record("hero", 0.2, scores, seed=43, params={"updates": 1500, "new": 2})
    check_comparable(typed(dense(score("a", [1, 0])), one, other))
    other["params"]["updates"] = 50
    with pytest.raises(ValueError, match=r"'hero' was fitted with updates 1500 \(seed 42\) and 50"):
        check_comparable(typed(dense(score("a", [1, 0])), one, other))
    other["budget"] = 0.4
    check_comparable(typed(dense(score("a", [1, 0])), one, other))


def test_seeds_of_a_healed_line_start_from_one_choice_of_params() -> None:
    def healed(seed: int, layers: int) -> dict[str, Any]:
        start = {"row": "shortgpt", "params": {"layers": layers}, "seed": 42}
        labels = {"kind": "static", "match": None, "start": start}
        return record("shortgpt+lora", 0.2, score("a", [1, 1]), seed=seed, **labels)

    runs = [healed(42, 3), healed(43, 3)]
    check_comparable(typed(dense(score("a", [1, 0])), *runs))
    with pytest.raises(ValueError, match=r"'shortgpt\+lora' was fitted with layers 3 \(seed 42\)"):
        check_comparable(typed(dense(score("a", [1, 0])), *runs, healed(44, 4)))
    same, other = (fits(typed(healed(42, layers))) for layers in (3, 4))
    assert same != other
