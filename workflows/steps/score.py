"""Score one model: `python -m workflows.steps.score --model DIR --tasks a,b --out FILE.json`.

DIR is a folder of the fit step or any plain Hugging Face causal LM. The record (FILE.json)
describes the run; FILE.items.parquet has one line per item, FILE.decisions.json what the fit
decided. FILE.tasks/ keeps the scores of each task: another call scores only tasks that are new or
were interrupted, or whose files (model, text, data, task) have changed. With --fidelity the record
also says how far next-token distributions lie from the dense model's on texts; kept in the same
way.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from methods.core.model.checkpoint import Loaded
from workflows.evaluation.fidelity import check_texts, compare_with_dense, reference_of
from workflows.evaluation.fidelity import identity as fidelity_identity
from workflows.evaluation.harness import CountingLM
from workflows.evaluation.loading import reasons_not_to_run
from workflows.evaluation.models import (
    describe_model,
    harness_arguments,
    load_any,
    model_identity,
)
from workflows.evaluation.score import Scores, pool, rates_by_kind, score
from workflows.evaluation.store import FIDELITY_FILE, HASHES_FILE, ScoreStore, stored_value
from workflows.evaluation.tasklist import (
    TaskEntry,
    add_limit_argument,
    add_task_arguments,
    limited,
    parse_tasks,
    task_folders,
)
from workflows.evaluation.tasknames import OWN_TASKS, check_names
from workflows.evaluation.traces import routes
from workflows.records import DECISIONS
from workflows.records.archive import ITEMS
from workflows.records.card import new_record, removed_layers, rows_of
from workflows.records.files import to_record
from workflows.records.parts import (
    Evaluation,
    Fidelity,
    Layers,
    NotRun,
    Route,
    Score,
    Unit,
    to_rates,
)
from workflows.records.record import Record
from workflows.runtime.contents import Contents
from workflows.runtime.devices import claim_device
from workflows.runtime.files import check_place, whole_file, write_json
from workflows.runtime.program import (
    add_machine_arguments,
    check_positive,
    peak_memory_mb,
    run,
    set_up_torch,
    step_parser,
)
from workflows.runtime.provenance import SCORING, fit_parts, provenance


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--model", required=True, type=Path, metavar="DIR", help="compressed or plain Hugging Face"
    )
    parser.add_argument(
        "--backbone",
        type=Path,
        metavar="DIR",
        help="folder of the backbone; default: where it was when fitted",
    )
    parser.add_argument("--tasks", required=True, help="a,b or perplexity:FILE or a JSON list")
    add_task_arguments(parser)
    add_limit_argument(parser)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per pass")
    parser.add_argument(
        "--max-length", type=int, help="context window, at most the config's; default: that"
    )
    parser.add_argument(
        "--share-prefix", action="store_true", help="run a context once for all its answers"
    )
    parser.add_argument(
        "--fidelity", type=Path, metavar="FILE.jsonl",
        help="texts on which the dense model is compared, as for a fit; default: none",
    )  # fmt: skip
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="DIR",
        help="that dense model; default: what the model was made from",
    )
    parser.add_argument(
        "--fidelity-length", type=int, default=2048, help="these texts are cut to so many tokens"
    )
    parser.add_argument("--suite", default="", help="label in the record; default: empty")
    parser.add_argument("--backbone-name", default="", help="label in the record; default: empty")
    parser.add_argument("--row", help="label in the record; default: the model's own")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.json", help="the record")
    add_machine_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Check the arguments, score, write the record last."""
    args = arguments()
    check_place(args.out, ".json")
    entries = parse_tasks(args.tasks)
    if not entries:
        raise ValueError("--tasks names no task")
    check_positive(args, "limit", "batch_size", "max_length", "fidelity_length")
    if args.fidelity is not None:
        check_texts(args.fidelity, "--fidelity")
        args.reference = reference_of(args.model, args.reference or args.backbone)
    elif args.reference is not None:
        raise ValueError("--reference needs --fidelity, the texts to compare on")
    folders = task_folders(args)
    check_names(entries, [OWN_TASKS, *folders])
    set_up_torch(args.threads)
    with claim_device(args.device) as device:
        record, items = score_model(args, entries, folders, device)
    value = record.to_json()
    # Refuse a record that breaks the schema, before it is written.
    to_record(value)
    item_file, decision_file = (args.out.with_suffix(f".{n}") for n in (ITEMS, DECISIONS))
    decided = args.model / DECISIONS
    # Written last: it says that the files beside it are its own.
    args.out.unlink(missing_ok=True)
    if items is not None:
        with whole_file(item_file) as file:
            items.to_parquet(file, index=False)
    if decided.is_file():
        with whole_file(decision_file) as file:
            shutil.copyfile(decided, file)
    write_json(args.out, value)
    # Those of an earlier model that this one lacks.
    if items is None:
        item_file.unlink(missing_ok=True)
    if not decided.is_file():
        decision_file.unlink(missing_ok=True)
    for task, headline in record.headlines.items():
        print(f"{task}: {headline.metric} {headline.value:.4g} ({headline.n} items)")
    print(f"wrote {args.out}")


def score_model(
    args: argparse.Namespace, entries: list[TaskEntry], folders: list[Path], device: str
) -> tuple[Record, pd.DataFrame | None]:
    """The record, and the frame of items (None where the row is not applicable)."""
    start = time.perf_counter()
    card = describe_model(args.model)
    labels = {"suite": args.suite, "backbone_name": args.backbone_name, "row": args.row}
    made_by = provenance([*fit_parts(*rows_of(card)), *SCORING])
    made_by["dirty"] |= card.provenance.get("dirty", False)
    record = new_record(card, labels, made_by)
    if card.not_applicable is not None:
        return record, None
    checkpoint = load_any(args.model, args.backbone, device)
    entries = limited(entries, args.limit)
    lm = CountingLM(
        **harness_arguments(checkpoint),
        batch_size=args.batch_size,
        max_length=args.max_length,
        share_prefix=args.share_prefix,
    )
    folder = args.out.with_suffix(".tasks")
    contents = Contents(folder / HASHES_FILE)
    # A stored score is used again only if all of this is as it was.
    identity = {
        "model": model_identity(args.model, args.backbone, card, contents),
        "batch_size": args.batch_size,
        "share_prefix": lm.share_prefix,
        "max_length": lm.max_length,
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(device),
        "threads": args.threads,
        "code": made_by["code"],
        "versions": made_by["versions"],
    }
    store = ScoreStore(folder, checkpoint.ledger, identity, folders, args.task_data, contents)
    result = score(lm, entries, folders, store, reasons_not_to_run(args.task_data, entries))
    items = pd.concat(result.items, ignore_index=True)
    finished = dataclasses.replace(
        record,
        status="ok",
        scores=[Score.of(values) for values in result.scores],
        not_run=[NotRun(**task) for task in result.not_run],
        layers=Layers(
            kept=checkpoint.ledger.layers,
            dense=checkpoint.ledger.dense_layers,
            removed=removed_layers(card),
        ),
        evaluation=conditions(
            args, lm, device, time.perf_counter() - start + sum(store.earlier.values())
        ),
        routes=[Route(**route) for route in routes(lm, items)] if lm.log.routed else [],
    )
    if args.fidelity is not None:
        lm.marker.remove()
        finished = dataclasses.replace(
            finished, fidelity=measure_fidelity(args, checkpoint, identity, contents)
        )
    return with_skip(finished, checkpoint, result), items


def measure_fidelity(
    args: argparse.Namespace, checkpoint: Loaded, row: Mapping[str, Any], contents: Contents
) -> Fidelity:
    """How far the row lies from the dense model on the texts of ``--fidelity``; kept by content.

    Args:
        args: Of the command line.
        checkpoint: The row.
        row: Everything on which its scores depend.
        contents: Hashes of files.
    """

    def measure() -> dict[str, Any]:
        start = time.perf_counter()
        fidelity = compare_with_dense(
            checkpoint, args.reference, args.fidelity, args.fidelity_length, args.batch_size
        )
        return fidelity.as_json() | {"seconds": round(time.perf_counter() - start, 4)}

    made_from = fidelity_identity(
        row, args.reference, args.fidelity, args.fidelity_length, contents
    )
    value = stored_value(args.out.with_suffix(".tasks") / FIDELITY_FILE, made_from, measure)
    contents.save()
    return Fidelity.of({name: part for name, part in value.items() if name != "identity"})


def with_skip(record: Record, checkpoint: Loaded, scores: Scores) -> Record:
    """The record with what was skipped: by kind of token, by the authors' measure, by unit."""
    rates = pool(scores.tallies).rates()
    return dataclasses.replace(
        record,
        rates=to_rates(rates_by_kind(scores.tallies)),
        skip_authors=checkpoint.method.authors_skip(rates),
        units=[
            Unit(layer=u.layer, kind=u.kind, parameters=u.parameters, executed=share)
            for u, share in zip(checkpoint.ledger.units, rates.executed, strict=True)
        ],
    )


def conditions(args: argparse.Namespace, lm: CountingLM, device: str, seconds: float) -> Evaluation:
    """How the model was scored, and how long that took."""
    return Evaluation(
        batch_size=args.batch_size,
        equal_lengths=not lm.batchable,
        share_prefix=lm.share_prefix,
        max_length=lm.max_length,
        end_tokens=sorted(lm.ends),
        device=device,
        threads=args.threads,
        seconds=round(seconds, 4),
        peak_memory_mb=peak_memory_mb(),
    )


if __name__ == "__main__":
    run(main)
