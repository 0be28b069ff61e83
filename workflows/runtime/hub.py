"""The model hub: files that the prepare steps fetch, and errors as one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from methods.core.facts import file_facts

# Between the split of a data set and a slice of it, as in train[:500].
SLICE = "["


@contextmanager
def one_sentence(name: str) -> Iterator[None]:
    """Turn an error of the hub's libraries into one sentence with the name of the repository.

    Raises:
        ValueError: The repository cannot be read.
    """
    from datasets.exceptions import DatasetNotFoundError

    # Imported from here, HTTPError is the class of the HTTP client that the library uses.
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
    """An error, its cause, the cause of that, and so on."""
    errors: list[BaseException] = []
    while error is not None:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors


def split_files(repository: str, config: str | None, revision: str | None) -> dict[str, list[str]]:
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
    # Empty without a network: a data set that is read from the cache has no list of its files.
    addresses = builder.config.data_files or {}
    return {str(split): list(map(str, files)) for split, files in addresses.items()}


def split_address(address: str) -> tuple[str, str, str]:
    """Repository, commit and path of a file of the hub; three empty texts for other addresses."""
    prefix = "hf://datasets/"
    if not address.startswith(prefix):
        return "", "", ""
    repository, _, rest = address.removeprefix(prefix).partition("@")
    commit, _, path = rest.partition("/")
    return repository, commit, path


def fetch_files(addresses: Sequence[str]) -> dict[str, Path]:
    """Address -> local copy in the hub's cache; files in the cache are not fetched again."""
    from huggingface_hub import hf_hub_download

    copies = {}
    for address in addresses:
        repository, commit, path = split_address(address)
        with one_sentence(repository):
            local = hf_hub_download(repository, path, repo_type="dataset", revision=commit)
        copies[address] = Path(local)
    return copies


def describe_files(files: dict[str, Path]) -> list[dict[str, Any]]:
    """Repository, commit, path, size in bytes and sha256 of each file, for the record."""
    lines = []
    for address, file in files.items():
        repository, commit, path = split_address(address)
        place = {"repository": repository, "commit": commit, "path": path}
        facts = file_facts(file)
        lines.append(place | {key: facts[key] for key in ("size", "sha256")})
    return lines
