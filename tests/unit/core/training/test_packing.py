"""From documents to batches and rows, by hand."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
import torch

from methods.core.data import Document
from methods.core.training.packing import deal, document_batches, lay_out, pack, split
from tests.toys.texts import documents


def test_plan_takes_every_document_once_per_epoch() -> None:
    lengths = [len(document.ids) for document in documents(17)]
    batches = list(islice(document_batches(lengths, 30, 4), 40))
    assert batches == list(islice(document_batches(lengths, 30, 4), 40))
    assert batches != list(islice(document_batches(lengths, 30, 5), 40))
    assert all(sum(lengths[n] for n in batch) <= 30 for batch in batches)
    order = [number for batch in batches for number in batch]
    first, second = order[:17], order[17:34]
    assert sorted(first) == sorted(second) == list(range(17))
    assert first != second
    # No batch could have taken the next document as well.
    for batch, following in pairwise(batches):
        assert sum(lengths[n] for n in batch) + lengths[following[0]] > 30


def test_plan_gives_a_document_above_the_limit_a_batch_of_its_own() -> None:
    batches = list(islice(document_batches([50, 4, 4], 10, 1), 4))
    assert [0] in batches
    assert all(batch == [0] or 0 not in batch for batch in batches)


def test_rows_by_hand() -> None:
    texts = [Document([11, 12, 13], 2), Document([21, 22, 23, 24], 0), Document([31, 32], 2)]
    rows = lay_out(texts, 6, 0.25)
    # First fit: the third document finds room beside the first; one free place at either end.
    assert rows.ids.tolist() == [[11, 12, 13, 31, 32], [21, 22, 23, 24, 0]]
    assert rows.positions.tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert rows.counted.tolist() == [
        [True, True, False, True, False],
        [True, True, True, False, False],
    ]
    # 11 predicts 12, which is still prompt; 12 predicts 13, the answer.
    assert rows.weights.tolist() == [[0.25, 1.0, 0.0, 0.25, 0.0], [1.0, 1.0, 1.0, 0.0, 0.0]]


def test_a_document_without_tokens_changes_no_row() -> None:
    texts = [Document([11, 12, 13], 2), Document([31, 32], 2)]
    with_empty = [Document([], 0), texts[0], Document([], 0), texts[1]]
    for ours, theirs in zip(lay_out(with_empty, 6, 0.25), lay_out(texts, 6, 0.25), strict=True):
        assert torch.equal(ours, theirs)


def test_of_a_conversation_all_but_the_assistants_words_weigh_less() -> None:
    # 11 predicts 12, the first word of an answer; 13 its end; 14 what is asked next.
    chat = Document([10, 11, 12, 13, 14, 15, 16], 0, "", ((1, 3), (4, 6)))
    text, ids = Document([21, 22, 23], 0, "", ((0, 1),)), Document([31, 32], 0)
    rows = lay_out([chat, text, ids], 7, 0.25)
    assert rows.weights.tolist() == [
        [0.25, 1.0, 1.0, 0.25, 1.0, 1.0, 0.0],
        [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0],
    ]


def test_kinds_of_positions_by_hand() -> None:
    texts = [
        Document([11, 12, 13, 14, 15], 2, "a", [(1, 3)]),
        Document([21, 22, 23, 24, 25, 26], 0, "b", [(1, 2), (4, 6)]),
        Document([31, 32], 2),
    ]
    rows = lay_out(texts, 0, 1.0, {"a": 0.5, "b": 2.0})
    # 14 predicts the closing 15, which nobody scores; 22 and 25 ask, 23 and 24 are read between.
    assert rows.prompting.tolist() == [[1, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert rows.answers.tolist() == [
        [0, 0.5, 0.5, 0, 0, 0],
        [0, 2, 0, 0, 2, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_rows_without_packing_and_with_a_document_that_is_too_long() -> None:
    texts = [Document([1, 2], 0), Document([3, 4, 5], 5), Document([6], 0)]
    rows = lay_out(texts, 0, 0.5)
    assert rows.ids.tolist() == [[1, 2, 0], [3, 4, 5], [6, 0, 0]]
    assert rows.positions.tolist() == [[0, 1, 0], [0, 1, 2], [0, 0, 1]]
    assert rows.weights.tolist() == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    assert rows.counted.sum() == 3
    longer = lay_out(texts, 2, 1.0)
    assert longer.ids.tolist() == [[1, 2, 6], [3, 4, 5]]


def rows_of(*lengths: int) -> list[list[Document]]:
    """Rows of one document each."""
    return [[Document([n] * length, 0)] for n, length in enumerate(lengths)]


def lengths_of(rows: list[list[Document]]) -> list[int]:
    return [sum(len(document.ids) for document in row) for row in rows]


def test_rows_are_dealt_evenly_and_keep_their_order() -> None:
    rows = rows_of(3, 9, 4, 8, 2)
    assert deal(rows, 1) == [rows]
    # 9 here, 8 and 4 there, 3 and then 2, at a tie, here.
    assert [lengths_of(share) for share in deal(rows, 2)] == [[3, 9, 2], [4, 8]]
    assert [lengths_of(share) for share in deal(rows_of(5), 3)] == [[5], [], []]


def test_a_pass_holds_rows_of_like_length() -> None:
    rows = rows_of(3, 9, 4, 8, 2, 30)
    assert split(rows, 0) == [rows]
    # Pads count: 9 and 8 take 18 positions, 4, 3 and 2 take 12.
    assert [lengths_of(part) for part in split(rows, 18)] == [[30], [9, 8], [4, 3, 2]]
    assert [lengths_of(part) for part in split(rows, 11)] == [[30], [9], [8], [4, 3], [2]]
    assert split([], 0) == split([], 18) == [[]]


@pytest.mark.parametrize(("most", "bound"), [(0, 1.05), (6144, 1.02)])
def test_few_positions_of_a_packed_update_are_pads(most: int, bound: float) -> None:
    """Chats of 650 tokens in the mean, cut at 2,048; 83,200 tokens in rows of 2,048."""
    rng = torch.Generator().manual_seed(0)
    drawn = -690 * torch.rand(3000, generator=rng).log()
    lengths = drawn.long().clamp(8, 2048).tolist()
    assert 640 < sum(lengths) / len(lengths) < 660
    held = spent = 0
    for batch in islice(document_batches(lengths, 83_200, 1), 10):
        rows = pack([Document(range(lengths[n]), 0) for n in batch], 2048)
        passes = [lengths_of(part) for part in split(rows, most)]
        assert all(len(part) * max(part) <= (most or 100_000) for part in passes)
        held += sum(lengths[n] for n in batch)
        spent += sum(len(part) * max(part) for part in passes)
    assert sum(map(sum, passes)) == sum(lengths[n] for n in batch)
    assert 1 <= spent / held <= bound
