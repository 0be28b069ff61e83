"""The model hub: what the prepare steps fetch, and its refusals as one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from methods.core.facts import file_facts

# Split of a data set in front of a slice such as [:500].
SLICE = "["


@contextmanager
def one_sentence(name: str) -> Iterator[None]:
    """Turn what the hub's libraries raise into one sentence that names the repository.

    Raises:
        ValueError: The repository cannot be read.
    """
    from datasets.exceptions import DatasetNotFoundError

    # HTTPError is that of whatever client the library uses.
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except (DatasetNotFoundError, HTTPError, LocalEntryNotFoundError, ConnectionError) as error:
        chain = _chain(error)
        if any(isinstance(e, GatedRepoError) or "gated dataset" in str(e) for e in chain):
            raise ValueError(
                f"{name} is gated: accept its licence on its page of the hub, "
                "then give a token (hf auth login, or HF_TOKEN)"
            ) from error
        if any(isinstance(e, RevisionNotFoundError) for e in chain):
            raise ValueError(f"{name} has no such revision on the hub") from error
        if any(isinstance(e, OfflineModeIsEnabled) for e in chain):
            raise ValueError(
                f"{name} is not on this machine, and HF_HUB_OFFLINE or HF_DATASETS_OFFLINE "
                "forbids to fetch it"
            ) from error
        if any(isinstance(e, RepositoryNotFoundError | DatasetNotFoundError) for e in chain):
            raise ValueError(
                f"{name} is not on the hub, or is private and needs a token (HF_TOKEN)"
            ) from error
        raise ValueError(
            f"{name} cannot be fetched, the hub does not answer; what came is kept for the next try"
        ) from error


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and what it came from."""
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def data_files(repository: str, config: str | None, revision: str | None) -> dict[str, list[str]]:
    """Split -> addresses of its files in a data set, ``hf://datasets/OWNER/NAME@COMMIT/PATH``.

    Raises:
        ValueError: The repository cannot be read, or has no such config.
    """
    from datasets import load_dataset_builder

    with one_sentence(repository):
        try:
            builder = load_dataset_builder(repository, config, revision=revision)
        except ValueError as error:
            if "BuilderConfig" not in str(error) and "onfig name" not in str(error):
                raise
            raise ValueError(f"{repository}: {' '.join(str(error).split())}") from error
    # What is read from the cache, without a network, no longer knows its files.
    found = builder.config.data_files or {}
    return {str(split): list(map(str, files)) for split, files in found.items()}


def parts(address: str) -> tuple[str, str, str]:
    """Repository, commit and path of a file's address; all empty where it is not of the hub."""
    prefix = "hf://datasets/"
    if not address.startswith(prefix):
        return "", "", ""
    repository, _, rest = address.removeprefix(prefix).partition("@")
    commit, _, path = rest.partition("/")
    return repository, commit, path


def fetch_files(addresses: Sequence[str]) -> dict[str, Path]:
    """Address -> local copy in the hub's cache; what is there is not fetched again."""
    from huggingface_hub import hf_hub_download

    found = {}
    for address in addresses:
        repository, commit, path = parts(address)
        with one_sentence(repository):
            local = hf_hub_download(repository, path, repo_type="dataset", revision=commit)
        found[address] = Path(local)
    return found


def described(files: dict[str, Path]) -> list[dict[str, Any]]:
    """Repository, commit, path, size in bytes and sha256 of fetched files, for the record."""
    lines = []
    for address, file in files.items():
        repository, commit, path = parts(address)
        told = {"repository": repository, "commit": commit, "path": path}
        facts = file_facts(file)
        lines.append(told | {key: facts[key] for key in ("size", "sha256")})
    return lines
