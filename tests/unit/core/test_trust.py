"""Folders of strangers are data: nothing in them is run, nothing outside them is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from methods.core.facts import FETCHED, file_facts
from methods.core.model.backbone import load_backbone
from methods.core.model.folder import hash_folder, weight_files
from workflows.evaluation.loading import confine_templates

# transformers imports a copy of the file from its cache: the trace has a place of its own.
EVIL = """from pathlib import Path
Path({trace!r}).touch()
class Evil: pass
"""


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    """A backbone with a program beside it that leaves a trace when it is imported."""
    folder = shutil.copytree(llama, tmp_path / "backbone")
    (folder / "evil.py").write_text(EVIL.format(trace=str(folder / "ran")))
    return folder


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_code_beside_a_model_is_never_imported(copy: Path) -> None:
    named = {f"Auto{part}": "evil.Evil" for part in ("Config", "Model", "ModelForCausalLM")}
    change(copy / "config.json", auto_map=named, trust_remote_code=True)
    change(
        copy / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, trust_remote_code=True,
    )  # fmt: skip
    change(copy / "generation_config.json", custom_generate="evil.py", trust_remote_code=True)
    backbone = load_backbone(copy)
    assert type(backbone.model).__module__.startswith("transformers.")
    assert type(backbone.tokenizer).__module__.startswith("transformers.")
    assert not (copy / "ran").exists()


def test_nobody_is_asked_whether_to_run_code(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    named = {"AutoTokenizer": [None, "evil.Evil"]}
    change(copy / "tokenizer_config.json", auto_map=named, tokenizer_class="Evil")
    with pytest.raises(ValueError, match=r"the tokenizer in .* cannot be read"):
        load_backbone(copy)
    assert not (copy / "ran").exists()


def test_weights_of_a_file_that_no_hash_covers_are_refused(copy: Path) -> None:
    change(copy / "config.json", transformers_weights="other.safetensors")
    with pytest.raises(ValueError, match="transformers_weights names a file of its own; weights"):
        load_backbone(copy)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_kernels_of_a_hub_are_refused(copy: Path, key: str) -> None:
    change(copy / "config.json", **{key: "evil/kernel"})
    with pytest.raises(ValueError, match=rf"{key} 'evil/kernel' is code of a hub"):
        load_backbone(copy)


def test_a_family_of_its_own_code_is_refused(copy: Path) -> None:
    change(copy / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.Evil"})
    with pytest.raises(ValueError, match="model_type 'evil' is not supported"):
        load_backbone(copy)
    assert not (copy / "ran").exists()


def test_a_family_that_is_no_name_is_refused(copy: Path) -> None:
    change(copy / "config.json", model_type=["llama"])
    with pytest.raises(ValueError, match=r"model_type \['llama'\] is not supported"):
        load_backbone(copy)


@pytest.mark.parametrize("name", ["../other.safetensors", "/other.safetensors", "a/b.safetensors"])
def test_shards_lie_beside_their_index(name: str, copy: Path) -> None:
    shutil.copyfile(copy / "model.safetensors", copy.parent / "other.safetensors")
    (copy / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="no safetensors file beside it"):
        weight_files(copy)


def test_a_tokenizer_reads_no_file_outside_its_folder(copy: Path) -> None:
    shutil.move(copy / "tokenizer.json", copy.parent / "elsewhere.json")
    for name in ("../elsewhere.json", str(copy.parent / "elsewhere.json")):
        change(copy / "tokenizer_config.json", tokenizer_file=name, vocab_file=name)
        with pytest.raises(ValueError, match=r"the tokenizer in .* cannot be read"):
            load_backbone(copy)


def test_facts_of_a_stranger_give_no_hash(copy: Path) -> None:
    """Size and time are his choice; an older version's facts had no more."""
    right = hash_folder(copy)
    file = copy / "model.safetensors"
    stamp = {"size": file.stat().st_size, "mtime_ns": file.stat().st_mtime_ns}
    forged = {file.name: stamp | {"sha256": "0" * 64}}
    (copy / FETCHED).write_text(json.dumps({"files": forged}))
    assert hash_folder(copy) == right
    known = {file.name: file_facts(file) | {"sha256": "0" * 64}}
    (copy / FETCHED).write_text(json.dumps({"files": known}))
    assert hash_folder(copy) != right
    known[file.name]["ctime_ns"] -= 1
    (copy / FETCHED).write_text(json.dumps({"files": known}))
    assert hash_folder(copy) == right


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"files": []}, "files must be an object, with facts by the name of a file"),
        ({"files": {"a": "x"}}, "files has no sha256 of 64 hex digits for 'a'"),
        ({"files": {"a": {"size": 1}}}, "files has no sha256 of 64 hex digits for 'a'"),
        ({"files": {"a": {"sha256": 7}}}, "files has no sha256 of 64 hex digits for 'a'"),
        ({"files": {"a": {"sha256": "z" * 64}}}, "files has no sha256 of 64 hex digits for 'a'"),
        ({"commit": ["x"]}, "commit must be a text"),
    ],
)
def test_damaged_facts_of_fetched_files_are_named(
    content: dict[str, Any], sentence: str, copy: Path
) -> None:
    (copy / FETCHED).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"fetched\.json: {sentence}"):
        load_backbone(copy)


def test_templates_of_tasks_reach_no_function_of_python() -> None:
    from lm_eval.utils import apply_template

    confine_templates()
    assert apply_template("{{ word | upper }} {{ words | length }}", {"word": "a", "words": [1]})
    with pytest.raises(Exception, match="unsafe"):
        apply_template("{{ ''.__class__.__mro__ }}", {})
