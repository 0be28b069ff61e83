"""Prepare one part of a suite's data as JSON Lines, one document per row.

Sources: `demo` or `small` (a procedural world), a local .jsonl or .txt file (blank lines separate
documents), or `hub:owner/name[/config]`, the only one that uses the network.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from methods.core.jsonfile import parse_json
from methods.core.rows import check_row, read_rows
from methods.core.seeds import seed_for
from workflows.demo.corpus import documents, items, task_names
from workflows.demo.presets import PRESETS
from workflows.demo.world import the_world
from workflows.runtime.files import check_place, read_text, whole_file, write_json
from workflows.runtime.hub import SLICE, describe_files, fetch_files, split_files
from workflows.runtime.program import run, step_parser
from workflows.suite.checks import check_end, check_repository
from workflows.suite.config import check_source
from workflows.suite.job import DATA_PARTS, FIDELITY

READERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv", ".txt": "text"}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--part", required=True, choices=(*DATA_PARTS, FIDELITY), help="of the suite's data"
    )
    parser.add_argument("--source", required=True, metavar="JSON", help="as under data: in a suite")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.jsonl", help="rows")
    return parser.parse_args()


def main() -> None:
    """Read the source, write the rows."""
    args = arguments()
    check_place(args.out, ".jsonl")
    spec = check_source(parse_json(args.source, "--source"), "source")
    check_end(args.part, spec)
    first, rows = spec.get("skip", 0), spec.get("rows")
    last = None if rows is None else first + rows
    provenance_file = args.out.with_suffix(".source.json")
    provenance_file.unlink(missing_ok=True)
    documents = islice(read_source(spec, args.part, provenance_file), first, last)
    count = 0
    with whole_file(args.out) as file, file.open("w", encoding="utf-8") as stream:
        for document in documents:
            check_row(document, f"data source {spec['source']}, document {first + count + 1}")
            stream.write(json.dumps(document, ensure_ascii=False) + "\n")
            count += 1
        if not count:
            raise ValueError(f"data source {spec['source']} holds no document")
    print(f"{args.out}: {count} documents")


def read_source(spec: dict[str, Any], part: str, provenance: Path) -> Iterator[dict[str, Any]]:
    """The documents of a source, in the form that methods/core/data.py reads.

    Args:
        spec: As under ``data`` in a suite.
        part: Of the data.
        provenance: File for the commit and checksums of a source of the hub.

    Raises:
        ValueError: The source cannot be read.
    """
    source = str(spec["source"])
    if source in PRESETS:
        yield from read_world(source, part, spec["seed"])
    elif source.startswith("hub:"):
        yield from read_hub(spec, provenance)
    elif Path(source).suffix == ".txt":
        text = read_text(Path(source))
        yield from ({"text": block.strip()} for block in text.split("\n\n") if block.strip())
    else:
        yield from (row for row, _ in read_rows(Path(source)))


def read_world(name: str, part: str, seed: int) -> Iterator[dict[str, Any]]:
    """Documents of a world; each part has its own random stream.

    Validation, probe and fidelity texts come from the validation split of the scored tasks, one
    item of each task in turn. A validation text is the prompt with the right answer, for losses;
    so is a text of fidelity. Probe texts are the sequences that the harness feeds, for skip rates.
    """
    world = the_world(name)
    if part in ("training", "calibration"):
        yield from documents(world, "train", seed_for(seed, part))
        return
    tasks = task_names(world)
    turns = zip(*(items(task, "validation") for task in tasks), strict=True)
    for task, example in (pair for turn in turns for pair in zip(tasks, turn, strict=True)):
        columns = {"prompt": example["prompt"], "task": task}
        if part in ("validation", FIDELITY):
            yield {"completion": example["answer"], **columns}
        else:
            yield from ({"fed": text, **columns} for text in fed_texts(example))


def fed_texts(example: dict[str, Any]) -> list[str]:
    """The sequences that the harness feeds to score an item, without the last word of a choice.

    The output before the last word scores it, so that it is never fed. Choices of one word share
    one sequence, the prompt. A generated answer is fed whole: its end is one more token.
    """
    prompt = example["prompt"]
    if "choices" not in example:
        return [f"{prompt} {example['answer']}"]
    texts = [" ".join([prompt, *choice.split()[:-1]]) for choice in example["choices"]]
    return list(dict.fromkeys(texts))


def read_hub(spec: dict[str, Any], provenance: Path) -> Iterator[dict[str, Any]]:
    """Rows of a hub data set, shuffled under the source's seed; only the files of its split.

    Args:
        spec: As under ``data`` in a suite.
        provenance: File to write: commit, paths and checksums of what was fetched.

    Raises:
        ValueError: The data set cannot be read, or has no such split or column.
    """
    from datasets import load_dataset

    check_repository(spec["source"], "--source")
    owner, name, *more = spec["source"].removeprefix("hub:").split("/")
    repository, split = f"{owner}/{name}", spec["split"]
    addresses = split_files(repository, more[0] if more else None, spec.get("revision"))
    if not addresses:
        raise ValueError(f"{repository} can be read only where the hub answers")
    base, _, part = split.partition(SLICE)
    if base not in addresses:
        raise ValueError(f"{repository} has no split '{base}' (it has: {', '.join(addresses)})")
    files = fetch_files(addresses[base])
    suffixes = next(iter(files.values())).suffixes
    reader = next((READERS[suffix] for suffix in suffixes if suffix in READERS), "parquet")
    # The library calls the only split of local files "train", whatever its name in the repository.
    file_split = "train" + (SLICE + part if part else "")
    table = load_dataset(reader, data_files=list(map(str, files.values())), split=file_split)
    column = spec.get("column", "text")
    if column not in table.column_names:
        raise ValueError(
            f"{repository} has no column '{column}' (it has: {', '.join(table.column_names)})"
        )
    write_json(provenance, {"source": spec, "files": describe_files(files)})
    order = list(range(len(table)))
    random.Random(seed_for(spec["seed"], "hub order")).shuffle(order)
    for index in order:
        yield {column if column == "messages" else "text": table[index][column]}


if __name__ == "__main__":
    run(main)
