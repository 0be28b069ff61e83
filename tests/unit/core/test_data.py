"""Documents in every form, and every way a file can be wrong."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from methods.core.data import Data, Document, batches, task_weights
from tests.toys.texts import EOS, UNK, calibration_data, make_tokenizer, write_jsonl


def read(file: Path, **changes: object) -> list[Document]:
    given = {"tokenizer": make_tokenizer(), "vocab_size": 64, "training_file": file}
    documents = Data(**(given | changes)).training()
    return [document._replace(ids=list(document.ids)) for document in documents]


def jsonl(folder: Path, *rows: object) -> Path:
    return write_jsonl(folder / "rows.jsonl", list(rows))


def test_text_ends_with_eos(tmp_path: Path) -> None:
    documents = read(jsonl(tmp_path, {"text": "w3 w1 nonsense"}, {"text": "w2"}))
    assert documents == [
        Document([3, 1, UNK, EOS], 0, "", ((0, 2),)),
        Document([2, EOS], 0),
    ]


def test_an_eos_in_the_text_is_not_doubled(tmp_path: Path) -> None:
    assert read(jsonl(tmp_path, {"text": "w3 <eos>"})) == [Document([3, EOS], 0)]


def test_prompt_and_completion_keep_their_border(tmp_path: Path) -> None:
    row = {"prompt": "w1 w2 w3", "completion": "w4 w5"}
    assert read(jsonl(tmp_path, row)) == [Document([1, 2, 3, 4, 5, EOS], 3, "", ((2, 4),))]


def test_a_completion_without_prompt_is_all_answer(tmp_path: Path) -> None:
    assert read(jsonl(tmp_path, {"completion": "w4"})) == [Document([4, EOS], 0)]


def test_no_document_is_longer_than_the_window(tmp_path: Path) -> None:
    file = jsonl(tmp_path, {"prompt": "w1 w2 w3", "completion": "w4 w5"}, {"text": "w1"})
    told = r"rows.jsonl: documents are cut to the backbone's window of 4 tokens, not to 9"
    with pytest.warns(UserWarning, match=told):
        documents = read(file, window=4, max_length=9)
    assert documents == [Document([1, 2, 3, 4], 3, "", ((2, 4),)), Document([1, EOS], 0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(file, window=4, max_length=4) == documents
        assert len(read(file, window=7, max_length=9)[0].ids) == 6


def test_ids_longer_than_the_window_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "ids.npy"
    np.save(file, np.zeros((2, 6), int))
    data = Data(None, 64, window=5, calibration_file=file)
    said = "ids.npy: documents of 6 tokens are longer than the backbone's window of 5"
    with pytest.raises(ValueError, match=said):
        list(data.calibration())


def test_what_a_harness_feeds_decides_up_to_its_last_token(tmp_path: Path) -> None:
    rows = [
        {"fed": "w1 w2 w3", "prompt": "w1 w2", "task": "a"},
        {"fed": "w1 w2", "prompt": "w1 w2", "task": "b", "counts": [0.5, 2]},
        {"fed": "w4 w5"},
    ]
    assert read(jsonl(tmp_path, *rows)) == [
        Document([1, 2, 3], 2, "a", ((1, 3),)),
        Document([1, 2], 2, "b", ((1, 2),), (0.5, 2)),
        Document([4, 5], 0, "", ((0, 2),)),
    ]


def test_every_task_weighs_the_same() -> None:
    texts = [
        Document([1] * 6, 2, "a", ((1, 5),)),
        Document([1] * 4, 2, "a", ((1, 3),)),
        Document([1] * 3, 2, "b", ((1, 2),)),
        Document([1] * 3, 3, "c"),
    ]
    weights = task_weights(texts)
    # Six positions of a, one of b; c has none. The mean weight of the seven is 1.
    assert weights == {"a": 3.5 / 6, "b": 3.5}
    with pytest.raises(ValueError, match="needs documents with answers"):
        task_weights(texts[3:])


def test_tokens_that_stand_for_several_weigh_as_many() -> None:
    texts = [
        # Its first answer token is the prompt's last token.
        Document([1] * 6, 2, "a", ((1, 5),), (0.25, 2.0)),
        Document([1] * 3, 2, "b", ((1, 2),)),
    ]
    assert texts[0].answer_count == 0.25 + 3 * 2.0
    # 6.25 of a, one of b.
    assert task_weights(texts) == {"a": 3.625 / 6.25, "b": 3.625}


@pytest.mark.parametrize("counts", [2, [1], [1, "2"], [1, 0], [1, True]])
def test_counts_are_two_numbers(counts: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: 'counts' is not two numbers above 0"):
        read(jsonl(tmp_path, {"fed": "w1 w2", "counts": counts}))


def test_long_documents_are_cut(tmp_path: Path) -> None:
    row = {"prompt": "w1 w2 w3", "completion": "w4 w5"}
    assert read(jsonl(tmp_path, row), max_length=2) == [Document([1, 2], 2)]


def test_blank_lines_are_no_documents(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('\n{"text": "w1"}\n\n', encoding="utf-8")
    assert read(file) == [Document([1, EOS], 0)]


def test_ids_are_used_as_given_and_need_no_tokenizer(tmp_path: Path) -> None:
    ids = np.array([[5, 5, 0], [63, 1, 2]])
    np.save(tmp_path / "ids.npy", ids)
    data = Data(None, 64, max_length=2, calibration_file=tmp_path / "ids.npy")
    (batch,) = data.calibration()
    assert batch.ids.tolist() == ids.tolist()
    assert batch.valid.all()


def test_batches_are_right_padded_in_order() -> None:
    documents = [Document([7], 0), Document([1, 2, 3], 0), Document([0, 0], 0)]
    first, second = batches(documents, 2)
    assert first.ids.tolist() == [[7, 0, 0], [1, 2, 3]]
    assert first.valid.tolist() == [[True, False, False], [True, True, True]]
    assert second.ids.tolist() == [[0, 0]]
    assert second.valid.all()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([[0.5, 1.0]]), "must be integers, not float64"),
        (np.array([["a"]]), "must be integers"),
        (np.array([1, 2, 3]), r"must have shape \(N, T\), T at least 2, not \(3,\)"),
        (np.array([[0], [1]]), r"must have shape \(N, T\), T at least 2, not \(2, 1\)"),
        (np.zeros((2, 2, 2), int), r"must have shape \(N, T\)"),
        (np.zeros((0, 4), int), r"must have shape \(N, T\)"),
        (np.array([[0, 64]]), "ids reach from 0 to 64, the vocabulary is 0 to 63"),
        (np.array([[-1, 3]]), "ids reach from -1 to 3"),
    ],
)
def test_wrong_ids_are_named(ids: np.ndarray, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", ids)
    with pytest.raises(ValueError, match=message):
        list(Data(None, 64, calibration_file=tmp_path / "ids.npy").calibration())


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY"])
def test_a_file_that_is_no_array_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "ids.npy").write_bytes(content)
    with pytest.raises(ValueError, match="is not a NumPy array file"):
        list(Data(None, 64, calibration_file=tmp_path / "ids.npy").calibration())


def test_pickled_arrays_are_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="is not a NumPy array file"):
        list(Data(None, 64, calibration_file=tmp_path / "ids.npy").calibration())


@pytest.mark.parametrize("row", [{"txt": "w1"}, ["w1"], "w1", 5, {"prompt": "w1"}])
def test_a_row_of_another_form_is_named_by_its_line(row: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows.jsonl, line 2: expected an object with text"):
        read(jsonl(tmp_path, {"text": "w1"}, row))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("text", {"text": None}),
        ("prompt", {"prompt": 3, "completion": "w1"}),
        ("completion", {"prompt": "w1", "completion": ["w2"]}),
        ("fed", {"fed": 1.5}),
        ("task", {"text": "w1", "task": {}}),
    ],
)
def test_what_is_no_text_is_not_taken_for_one(name: str, row: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"rows.jsonl, line 2: '{name}' is no text: "):
        read(jsonl(tmp_path, {"text": "w1"}, row))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"text": "w1"}\n{"text": \n', ""),
        # Cut inside an emoji.
        ('{"text": "w1 \\ud83d\\ude00"}\n{"text": "w1 \\ud83d"}\n', ".*ud83d"),
    ],
)
def test_a_line_that_is_no_json_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"rows.jsonl, line 2 is not valid JSON{said}"):
        read(file)


def test_text_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no tokenizer"):
        read(jsonl(tmp_path, {"text": "w1"}), tokenizer=None)


def test_missing_empty_and_odd_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="training file .*gone.jsonl does not exist"):
        read(tmp_path / "gone.jsonl")
    with pytest.raises(ValueError, match="holds no document"):
        read(jsonl(tmp_path))
    (tmp_path / "rows.csv").write_text("w1")
    with pytest.raises(ValueError, match="must end in .jsonl, .tokens or .npy"):
        read(tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="no validation file was given"):
        Data(None, 64).validation()


def test_files_are_read_only_when_asked_for(tmp_path: Path) -> None:
    data = Data(None, 64, calibration_file=tmp_path / "gone.npy")
    with pytest.raises(ValueError, match="no training file"):
        data.training()


def test_calibration_takes_the_first_documents_that_are_long_enough_from_their_middle() -> None:
    data = calibration_data([[1, 2, 3, 4, 5], [6, 7], [8, 9, 10], [11, 12, 13, 14]])
    (batch,) = data.calibration(rows=2, length=3)
    assert batch.ids.tolist() == [[2, 3, 4], [8, 9, 10]]
    assert batch.valid.all()
    (batch,) = data.calibration(rows=2, length=3, opening=True)
    assert batch.ids.tolist() == [[1, 2, 3], [8, 9, 10]]
    (batch,) = data.calibration(rows=2)
    assert batch.ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]
    assert [len(batch.ids) for batch in data.calibration(None)] == [4]
    assert [len(batch.ids) for batch in data.calibration(3)] == [3, 1]


def test_too_few_calibration_documents_are_refused() -> None:
    data = calibration_data([[1, 2, 3], [6, 7]])
    with pytest.raises(ValueError, match="3 calibration documents are asked for, .* holds 2"):
        data.calibration(rows=3)
    with pytest.raises(ValueError, match="2 calibration documents of at least 3 tokens .* holds 1"):
        data.calibration(rows=2, length=3)
    with pytest.raises(ValueError, match="1 calibration documents of at least 4 tokens"):
        data.calibration(length=4)


def test_a_conversation_cut_before_the_assistant_is_all_prompt(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "w1 w2 w3 w4"}, {"role": "assistant", "content": "w5 w6"}]
    (whole,) = read(jsonl(tmp_path, {"messages": turns}))
    assert (whole.prompt, len(whole.answers)) == (0, 1)
    (cut,) = read(tmp_path / "rows.jsonl", max_length=4)
    assert (cut.prompt, cut.answers) == (4, ())
