"""lm-eval tasks in words of the toys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from tests.toys.texts import sentence, write_jsonl


def make_tasks(folder: Path, items: int = 12) -> Path:
    """Write two tasks: ``toy_choice`` compares likelihoods, ``toy_write`` generates."""
    rng = np.random.default_rng(2)
    choices = [
        {
            "question": sentence(rng, int(rng.integers(2, 9))),
            "options": [sentence(rng, 1 + int(rng.integers(0, 3))) for _ in range(3)],
            "answer": int(rng.integers(0, 3)),
        }
        for _ in range(items)
    ]
    prompts = [
        {"question": sentence(rng, int(rng.integers(2, 9))), "answer": f"w{rng.integers(0, 60)}"}
        for _ in range(items)
    ]
    common = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}"}
    choice = common | {
        "task": "toy_choice",
        "dataset_kwargs": {
            "data_files": {"test": str(write_jsonl(folder / "choice.jsonl", choices))}
        },
        "output_type": "multiple_choice",
        "doc_to_choice": "{{options}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True}
            for name in ("acc", "acc_norm")
        ],
        "metadata": {"version": 1.0},
    }
    write = common | {
        "task": "toy_write",
        "dataset_kwargs": {
            "data_files": {"test": str(write_jsonl(folder / "write.jsonl", prompts))}
        },
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {
            "until": ["w7", "w23 w", "w5"],
            "max_gen_toks": 12,
            "do_sample": False,
        },
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    for task in (choice, write):
        (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    return folder
