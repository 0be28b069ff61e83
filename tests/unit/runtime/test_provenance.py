"""Which code a record names, and when that code is not the commit's."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from methods import discover
from methods.core.model.card import CARD
from tests import steps
from workflows.runtime import provenance
from workflows.runtime.provenance import SCORING, code_hash, dirty, fit_parts


@pytest.fixture(autouse=True)
def _own_repositories(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a hook of git, the caller's variables would send commits into its repository."""
    for name in provenance.GIT_PLACES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a method, what methods share, a prompt of lm-eval and a scratch folder."""
    for name in (
        "methods/base.py", "methods/core/data.py", "methods/one.py", "methods/two/__init__.py",
        "methods/two/part.py", "workflows/evaluation/tasks/_shared_yaml",
    ):  # fmt: skip
        put(tmp_path / name)
    put(tmp_path / ".gitignore", "__pycache__/\nscratch/\n")
    commit_all(tmp_path)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    return tmp_path


def commit_all(folder: Path) -> None:
    """Make a folder a repository with one commit."""
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=folder, check=True)


def put(file: Path, text: str = "x = 1\n") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("methods/new.py", True), ("methods/newer/__init__.py", True), ("methods/größe.py", True),
        ("workflows/suites/mine.yaml", True), ("workflows/evaluation/tasks/mine/_yaml", True),
        ("workflows/report/index.html", True), ("workflows/schemas/record.json", True),
        ("methods/one.py", True),
        ("methods/notes.md", False), ("methods/__pycache__/one.py", False),
        ("methods/scratch/new.py", False), ("tests/test_new.py", False), ("results/a.json", False),
    ],
)  # fmt: skip
def test_a_new_or_changed_file_makes_the_code_dirty(
    name: str, expected: bool, checkout: Path
) -> None:
    assert not dirty()
    put(checkout / name, "x = 2\n")
    assert dirty() == expected


def test_a_checkout_of_another_user_has_its_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert provenance.git("rev-parse", "HEAD")
    assert not dirty()


def test_a_repository_around_an_installed_copy_is_not_ours(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert provenance.git("rev-parse", "HEAD")
    put(checkout / "site/methods/one.py")
    monkeypatch.setattr(provenance, "ROOT", checkout / "site")
    assert provenance.git("rev-parse", "HEAD") is None
    assert dirty()


@pytest.mark.parametrize("name", provenance.GIT_PLACES)
def test_a_place_in_the_environment_is_not_ours(
    name: str, checkout: Path, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Such as that of another repository, from which a hook runs this."""
    commit, other = provenance.git("rev-parse", "HEAD"), tmp_path_factory.mktemp("other")
    assert commit
    put(other / "methods/one.py", "x = 3\n")
    commit_all(other)
    places = {"GIT_DIR": ".git", "GIT_COMMON_DIR": ".git", "GIT_INDEX_FILE": ".git/index"}
    monkeypatch.setenv(name, str(other / places.get(name, "")))
    assert provenance.git("rev-parse", "HEAD") == commit
    assert provenance.git("ls-files", "methods/base.py") == "methods/base.py"
    assert not dirty()


def test_outside_git_code_is_dirty(checkout: Path) -> None:
    (checkout / ".git").rename(checkout / "gone")
    assert dirty()


@pytest.mark.parametrize(
    ("edited", "changed"),
    [
        ("methods/one.py", {"methods/one.py"}),
        ("methods/two/part.py", {"methods/two"}),
        ("methods/two/table.yaml", {"methods/two"}),
        ("methods/core/data.py", {"methods/core"}),
        ("methods/base.py", {"methods/base.py"}),
        ("workflows/evaluation/tasks/_shared_yaml", {"workflows/evaluation"}),
        ("workflows/evaluation/notes.md", set()),
        ("methods/two/__pycache__/part.pyc", set()),
    ],
)
def test_an_edit_changes_the_hash_of_its_part_alone(
    edited: str, changed: set[str], checkout: Path
) -> None:
    parts = ("methods/one.py", "methods/two", "methods/core", "methods/base.py", *SCORING)
    before = {part: code_hash(part) for part in parts}
    put(checkout / edited, "x = 2\n")
    assert {part for part in parts if code_hash(part) != before[part]} == changed


def test_a_fit_is_its_own_method_that_it_starts_from_and_what_all_share() -> None:
    rows = discover()
    files = {f"methods/{name}.py" for name in ("api", "base", "discovery")}
    shared = {"methods/core", "methods/kernels"} | files
    assert set(fit_parts(rows["hero"])) == shared | {"methods/hero"}
    healed = fit_parts(rows["lora"], rows["shortened-ppl"])
    assert set(healed) == shared | {"methods/lora.py", "methods/shortened_llama.py"}


@pytest.mark.parametrize(("fitted", "scored"), [(False, False), (True, False), (False, True)])
def test_a_record_names_its_code_and_is_dirty_if_either_step_was(
    fitted: bool,
    scored: bool,
    llama: Path,
    task_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provenance, "dirty", lambda: fitted)
    model = steps.fit("random-skip", llama, tmp_path / "model", "--budget", 0.25)
    monkeypatch.setattr(provenance, "dirty", lambda: scored)
    command = ["--tasks", "toy_choice", "--task-dir", task_folder, "--limit", 1, "--device", "cpu"]
    steps.call("score", "--model", model, *command, "--out", tmp_path / "record.json")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["dirty"] == (fitted or scored)
    assert set(record["fit_code"]) == set(fit_parts(discover()["random-skip"]))
    assert record["code"] == record["fit_code"] | {part: code_hash(part) for part in SCORING}
    assert record["weights_hash"] == json.loads((model / CARD).read_text())["weights_hash"]


def test_a_record_names_the_versions_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = provenance.version

    def version(package: str) -> str:
        if package == "lm_eval":
            raise PackageNotFoundError(package)
        return real(package)

    assert "lm_eval" in provenance.provenance([])["versions"]
    monkeypatch.setattr(provenance, "version", version)
    found = provenance.provenance([])["versions"]
    assert "lm_eval" not in found
    assert {"python", "torch", "transformers"} <= set(found)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("processor\t: 0\nmodel name\t: A: B 3\n\nprocessor\t: 1\nmodel name\t: C\n", "A: B 3"),
        (2 * "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\n", "ARM 0x41/0xd0c"),
        (
            "CPU implementer: 0x41\nCPU part: 0xd05\n\nCPU implementer: 0x41\nCPU part: 0xd0a\n",
            "ARM 0x41/0xd05, 0x41/0xd0a",
        ),
        ("processor\t: 0\nhart\t: 1\n", ""),
        ("", ""),
    ],
)
def test_a_processor_has_its_name_or_its_numbers(cpuinfo: str, expected: str) -> None:
    assert provenance.processor_name(cpuinfo) == expected


def test_a_processor_without_either_has_the_name_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", unreadable)
    for told, expected in (("x86", "x86"), ("", "aarch64")):
        monkeypatch.setattr(platform, "processor", lambda told=told: told)
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        assert provenance._processor() == expected


def test_the_instruction_set_is_the_one_that_torch_reports() -> None:
    told = provenance.provenance(())["hardware"]["cpu_capability"]
    assert told == torch.backends.cpu.get_cpu_capability()
