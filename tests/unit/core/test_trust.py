"""Folders of strangers are data: nothing in them is run, nothing outside them is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from methods.core.model.backbone import load_backbone
from methods.core.model.folder import weight_files
from workflows.evaluation.loading import confine_templates

EVIL = """from pathlib import Path
Path(__file__).with_name("ran").touch()
class Evil: pass
"""


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    """A backbone with a program beside it that leaves a trace when it is imported."""
    folder = shutil.copytree(llama, tmp_path / "backbone")
    (folder / "evil.py").write_text(EVIL)
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


def test_templates_of_tasks_reach_no_function_of_python() -> None:
    from lm_eval.utils import apply_template

    confine_templates()
    assert apply_template("{{ word | upper }} {{ words | length }}", {"word": "a", "words": [1]})
    with pytest.raises(Exception, match="unsafe"):
        apply_template("{{ ''.__class__.__mro__ }}", {})
