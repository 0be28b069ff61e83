"""What is wrong with a suite is said in one sentence that names it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import config
from workflows.suite.jobs import read_suite

WRONG = [
    ({"budgtes": [0.25]}, "top level: .*'budgtes' was unexpected.* (allowed: suite, backbones, "),
    ({"suite": ...}, "top level: 'suite' is a required property"),
    ({"base": ["nope"]}, "base: there is no 'nope' (bases: demo, hub, paper)"),
    ({"suite": "a b"}, "suite: 'a b' must be letters, digits and _"),
    ({"backbones": {}}, "backbones: "),
    ({"backbones": {"toy": {}}}, "backbones.toy: 'path' is a required property"),
    ({"backbones": {"toy": {"path": "toy", "dtpye": "x"}}}, "backbones.toy: .*'dtpye'"),
    ({"backbones": {"toy": {"path": "toy", "dtype": "int8"}}}, "backbones.toy.dtype: 'int8'"),
    ({"backbones": {"toy": {"path": "gone"}}}, "backbones.toy: folder gone does not exist"),
    ({"backbones": {"toy": {"path": "."}}}, "backbones.toy: folder . has no config.json"),
    (
        {"backbones": {"toy": {"path": "toy", "sha256": "0" * 64}}},
        "backbones.toy: sha256 is only for pypi: and gguf:",
    ),
    *(
        ({"backbones": {"toy": {"path": path}}}, f"backbones.toy: '{path}' must be {form}")
        for form, paths in {
            "pypi:NAME==VERSION": ("pypi:toy", "pypi:toy>=1", "pypi:toy[x]==1", "pypi:"),
            "hub:OWNER/NAME": ("hub:", "hub:own", "hub:a/b/c", "hub:a/b c"),
            "gguf:FILE": ("gguf:",),
        }.items()
        for path in paths
    ),
    (
        {"backbones": {"toy": {"path": "pypi:a==1", "revision": "b"}}},
        "backbones.toy: revision is only for hub:",
    ),
    ({"rows": ["dnese"]}, "rows: unknown row 'dnese' (rows: dense, "),
    ({"rows": ["random-skip"]}, "reference_row: 'dense' is not among the rows"),
    ({"rows": "some"}, "rows: "),
    ({"rows": ["dense", "dense"]}, "rows: "),
    ({"budgets": [0]}, "budgets.0: 0 must be a number between 0 and 1"),
    ({"budgets": [1]}, "budgets.0: 1 must be a number between 0 and 1"),
    ({"budgets": [1.5]}, "budgets.0: 1.5 must be a number between 0 and 1"),
    ({"budgets": ["abc"]}, "budgets.0: 'abc' must be a number between 0 and 1, such as 0.25"),
    ({"budgets": []}, "budgets: "),
    ({"match": "both"}, "match: 'both' is not one of ['pooled', 'split', ['pooled', 'split']]"),
    ({"match": []}, "match: [] is not one of ['pooled', 'split', ['pooled', 'split']]"),
    ({"seeds": [-1]}, "seeds.0: -1 is less than"),
    ({"seeds": [1.5]}, "seeds.0: 1.5 is not of type 'integer'"),
    ({"row_seeds": {"lroa": [1]}}, "row_seeds: unknown row 'lroa' (rows: dense, "),
    ({"row_seeds": {"dense": []}}, "row_seeds.dense: "),
    # A folder of results that is another folder; a newline ends no name.
    ({"suite": "tiny\n"}, "suite: 'tiny\\n' must be letters, digits and _"),
    ({"backbones": {"..": {"path": "hub:a/b"}}}, "backbones: '..' must be a name of letters, "),
    ({"backbones": {"-x": {"path": "hub:a/b"}}}, "backbones: '-x' must be a name of letters, "),
    ({"backbones": {"x\n": {"path": "hub:a/b"}}}, "backbones: 'x\\n' must be a name of letters"),
    ({"derive": {"..": {"from": "shortgpt"}}}, "derive: '..' must be a name of small letters, "),
    ({"derive": {"x\n": {"from": "shortgpt"}}}, "derive: 'x\\n' must be a name of small letters"),
    (
        {
            "rows": ["dense", "hero"],
            "row_seeds": {"x": [42, 44]},
            "derive": {"x": {"from": "hero", "lender": "hero"}},
        },
        "derive.x: 'hero' does not run its seed 44 (see row_seeds)",
    ),
    (
        {
            "rows": ["dense", "hero"],
            "budgets": [0.3],
            "derive": {
                "x": {"from": "hero", "lender": "hero", "budgets": [0.25]},
            },
        },
        "derive.x: 'hero' does not run its budget 0.25",
    ),
    ({"tuned": "gone.yaml"}, "tuned: file gone.yaml does not exist"),
    ({"tuned": "text.txt"}, "tuned: text.txt is no file of the tune step"),
    (
        {"backbones": {"toy": {"path": "world:tiny"}}},
        "backbones.toy: world:tiny is unknown (known: world:demo, world:small)",
    ),
    ({"tasks": ["piqua"]}, "unknown task 'piqua' (tasks here: "),
    ({"tasks": [{"task": "piqa", "shots": 5}]}, "task entry .*keys are task, metric"),
    ({"tasks": ["piqa", "piqa"]}, "task 'piqa' is listed twice"),
    ({"tasks": [{"task": "piqa", "split": "train"}]}, "split is test or validation"),
    ({"tasks": [{"task": "piqa", "file": "text.txt"}]}, "file is only for a perplexity"),
    ({"tasks": ["perplexity"]}, "a perplexity needs a text file"),
    ({"tasks": [{"task": "perplexity", "file": "gone.txt"}]}, "text file gone.txt of task"),
    (
        {"tasks": [{"task": "perplexity:text", "file": "README.md"}]},
        "tasks: Retain needs a task beside perplexity",
    ),
    (
        {"tasks": ["boolq", {"task": "perplexity:text", "file": "README.md", "metric": "acc"}]},
        "metric is not for a perplexity",
    ),
    ({"retain_tasks": ["boolq", "arc_easy"]}, "retain_tasks: 'arc_easy' is not scored"),
    ({"retain_tasks": ["boolq", "boolq"]}, "retain_tasks: ['boolq', 'boolq'] has non-unique"),
    ({"measure_tasks": ["arc_easy"]}, "measure_tasks: 'arc_easy' is not scored"),
    ({"reference_row": "lora"}, "reference_row: 'lora' is not among the rows"),
    (
        {"rows": ["dense", "lora", "shortgpt"], "focus": "hero"},
        "focus: 'hero' is no row beside the reference 'dense' (rows: lora, shortgpt)",
    ),
    (
        {"rows": ["dense", "lora"], "focus": "dense"},
        "focus: 'dense' is no row beside the reference",
    ),
    ({"focus": ["lora"]}, "focus: ['lora'] is not of type 'string', 'null'"),
    ({"task_folder": "gone"}, "task_folder 'gone' is no folder"),
    ({"first": ["shortgpt"]}, "first: row 'shortgpt' trains nothing"),
    (
        {"derive": {"x": {"from": "shortgpt", "lender": "hero"}}},
        "derive.x.lender: row 'shortgpt' takes no rates of another (these do: hero)",
    ),
    (
        {"derive": {"x": {"from": "shortgpt"}, "x+lora": {"from": "x", "then": "lora"}}},
        "derive.x+lora.from: 'x' is a derived line itself; name the row that it comes from",
    ),
    ({"derive": {"dense": {"from": "shortgpt"}}}, "derive.dense: a row has this name already"),
    ({"derive": {"x": {"from": "y"}}}, "derive.x.from: unknown row 'y'"),
    ({"derive": {"x": {"from": "hero", "then": "lora"}}}, "derive.x: 'from' must be a static row"),
    ({"derive": {"x": {"from": "shortgpt", "then": "hero"}}}, "and 'then' a trained row without"),
    (
        {"derive": {"x": {"from": "hero", "lender": "hero"}}},
        "derive.x: 'hero' is not among the suite's rows",
    ),
    ({"derive": {"x": {"params": {}}}}, "derive.x: 'from' is a required property"),
    ({"derive": {"x": {"from": "shortgpt", "budgets": [2]}}}, "derive.x.budgets.0: 2 must be"),
    (
        {"derive": {"x": {"from": "lora", "budgets": [0.4]}}},
        "derive.x.budgets: row 'lora' has no budget",
    ),
    (
        {"rows": ["dense", "shortgpt"], "budgets": [0.3333331, 0.3333332]},
        "budgets: 0.3333331 and 0.3333332 share the folder results/",
    ),
    (
        {"data": {"training": {"source": "gone.txt"}}},
        "data.training: file gone.txt does not exist (worlds: demo, small; the backbone's own "
        "texts: self)",
    ),
    (
        {"data": {"training": {"source": "toy/config.json"}}},
        "data.training: file toy/config.json must end in .jsonl, .txt, .npy",
    ),
    (
        {"data": {"probe": {"source": "tasks", "skip": 8}}},
        "data.probe: skip is for texts, and source 'tasks' draws items (allowed: 0)",
    ),
    ({"data": {"trainnig": {"source": "demo"}}}, "data: .*'trainnig'"),
    (
        {"data": {"training": {"source": "hub:texts"}}},
        "data.training: hub:texts must be hub:OWNER/NAME or hub:OWNER/NAME/CONFIG",
    ),
    (
        {
            "backbones": {"toy": {"path": "toy"}, "other": {"path": "hub:a/b"}},
            "tasks": ["boolq", {"task": "piqa", "chat_template": True}],
            "data": {"probe": {"source": "tasks"}},
        },
        "data.probe: source 'tasks' takes the chat template of one backbone for piqa, and this "
        "suite has several (toy, other)",
    ),
    (
        {"data": {"fidelity": {"source": "ids.npy"}}},
        "data.fidelity: ids.npy holds ids, and it needs texts",
    ),
    (
        {"data": {"calibration": {"source": "ids.npy", "rows": 7}}},
        "data.calibration: ids.npy holds ids, which are taken as they are; 'rows' chooses",
    ),
    (
        {"data": {"training": {"source": "ids.npy"}}},
        "data.training: ids.npy holds ids, which only calibration takes",
    ),
    ({"limit": 0}, "limit: 0 is less than"),
    ({"data": {"calibration": {"source": "self"}}}, "data.calibration: rows must say how many"),
    (
        {
            "backbones": {"toy": {"path": "toy"}, "other": {"path": "hub:a/b"}},
            "data": {"calibration": {"source": "self", "rows": 3}},
        },
        "data.calibration: texts of source 'self' are one backbone's own, and this suite has "
        "several (toy, other)",
    ),
    (
        {"data": {"calibration": {"source": "self", "rows": 3, "skip": 4}}},
        "data.calibration: 'skip' chooses among existing texts, but source 'self' writes new ones "
        "(allowed: 0)",
    ),
    ({"batch_size": 0}, "batch_size: 0 is less than"),
    ({"noise_batch_sizes": [0]}, "noise_batch_sizes.0: 0 is less than"),
    ({"keep_models": "yes"}, "keep_models: 'yes' is not one of [True, False, 'trained']"),
    ({"first": ["heroo"]}, "first: there is no row 'heroo'"),
    (
        {"derive": {"x": {"from": "hero", "params": {"variant": "by-kind"}, "lender": "x"}}},
        "derive.x: 'x' has a lender itself",
    ),
    ({"rows": "dense"}, "rows: 'dense' must be all, {all_but: [...]}, or a list of rows"),
    (
        {"rows": ["dense", "dense"]},
        "rows: ['dense', 'dense'] must be all, {all_but: [",
    ),
    ({"timing": {"decode": "8*128"}}, "timing.decode: '8*128' must be SEQUENCESxTOKENS"),
    ({"seeds": [2**70]}, "seeds.0: 1180591620717411303424 is greater than the maximum"),
    ({"seeds": "one"}, "seeds: 'one' must be a list of whole numbers from 0 to 4294967295"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[m[:40] for _, m in WRONG])
def test_a_mistake_is_named(changes: dict[str, Any], message: str, root: Path) -> None:
    parts = message.split(".*")
    with pytest.raises(ValueError, match=".*".join(map(re.escape, parts))) as caught:
        read_suite(config(**changes), root)
    assert "\n" not in str(caught.value)
