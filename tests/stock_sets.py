"""Small data sets for tasks of lm-eval, with the names and columns of the true ones."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from tests.hub import Repository, Rows, data_set
from tests.toys.texts import WORDS


def stock_sets(folder: Path, number: int = 2) -> dict[str, Repository]:
    """Repositories by name, with ``number`` rows per split in words of the toys."""
    repositories = {name: data_set(folder / name, sets) for name, sets in _sets(number).items()}
    script = folder / "EleutherAI/logiqa/logiqa.py"
    script.parent.mkdir(parents=True)
    script.write_text("raise AssertionError('a program of a data set was run')\n")
    return repositories | {"EleutherAI/logiqa": Repository(script.parent)}


def subjects() -> list[str]:
    """Configs of cais/mmlu that the tasks of the group ``mmlu`` name."""
    spec = find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    files = (Path(spec.origin).parent / "tasks/mmlu/default").glob("mmlu_*.yaml")
    return sorted(yaml.safe_load(file.read_text("utf-8"))["dataset_name"] for file in files)


def _sets(number: int) -> dict[str, dict[str, dict[str, Rows]]]:
    """Data set -> config -> split -> rows."""
    rng = random.Random(0)

    def text(low: int, high: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(low, high)))

    def mmlu(subject: str) -> dict[str, Any]:
        return {
            "question": text(4, 9), "subject": subject, "answer": rng.randrange(4),
            "choices": [text(1, 3) for _ in range(4)],
        }  # fmt: skip

    def truthful() -> dict[str, Any]:
        several = {"choices": [text(2, 5) for _ in range(4)], "labels": [1, 1, 0, 0]}
        one = {"choices": several["choices"], "labels": [1, 0, 0, 0]}
        return {"question": text(4, 8), "mc1_targets": one, "mc2_targets": several}

    def sciq() -> dict[str, Any]:
        wrong = {f"distractor{n}": text(1, 2) for n in (1, 2, 3)}
        return wrong | {
            "question": text(4, 8),
            "correct_answer": text(1, 2),
            "support": text(9, 20),
        }

    def trivia() -> dict[str, Any]:
        value = text(1, 1)
        answer = {"value": value, "aliases": [value, text(1, 2)], "type": "WikipediaEntity"}
        return {"question": text(4, 8), "question_id": text(1, 1), "answer": answer}

    def ifeval(key: int) -> dict[str, Any]:
        return {
            "key": key, "prompt": text(5, 9), "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{"num_words": None}],
        }  # fmt: skip

    def splits(make: Any, *names: str) -> dict[str, Rows]:
        return {name: [make() for _ in range(number)] for name in names}

    every = ("train", "validation", "test")
    return {
        "cais/mmlu": {
            name: splits(lambda name=name: mmlu(name), "test", "validation", "dev")
            for name in subjects()
        },
        "EleutherAI/lambada_openai": {"default": splits(lambda: {"text": text(6, 12)}, "test")},
        "truthfulqa/truthful_qa": {"multiple_choice": splits(truthful, "validation")},
        "allenai/sciq": {"default": splits(sciq, *every)},
        "EleutherAI/wikitext_document_level": {
            "wikitext-2-raw-v1": splits(lambda: {"page": text(600, 900)}, *every)
        },
        "mandarjoshi/trivia_qa": {"rc.nocontext": splits(trivia, "train", "validation", "test")},
        "google/IFEval": {"default": {"train": [ifeval(n) for n in range(number)]}},
        "SaylorTwift/bbh": {
            "boolean_expressions": splits(
                lambda: {"input": "not ( True ) and ( True ) is", "target": "False"}, "test"
            )
        },
    }
