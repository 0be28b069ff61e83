"""Which row runs on which family of backbones: the table of ``reports/reference/families``.

    python -m tests.families --out reports/reference/families/families.csv

Asked of toys of four layers, at a budget that all of their units can meet: a reason is of the
family, not of a size.
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from methods import discover
from methods.core.model.backbone import empty_backbone
from tests.toys.models import CONFIGS, OTHERS, make_model
from workflows.runtime.files import write_text
from workflows.steps.rows import reason_against

BUDGET = 0.02
# Toys of one family differ in what a family leaves open: heads, windows.
KINDS = [kind for kind in (*CONFIGS, *OTHERS) if kind not in ("tied", "qwen2", "mistral")]
CHANGES: dict[str, dict[str, object]] = {
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False, "layer_types": None},
}


def table() -> str:
    """The table as CSV: a line per row, a column per family, "yes" or the reason."""
    kinds = sorted([*KINDS, *CHANGES])
    backbones = {
        kind: empty_backbone(make_model(kind, **CHANGES.get(kind, {})).config) for kind in kinds
    }
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["row", *kinds])
    for name, row in discover().items():
        reasons = (reason_against(row, backbones[kind], BUDGET) for kind in kinds)
        writer.writerow([name, *(reason or "yes" for reason in reasons)])
    return stream.getvalue()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    write_text(parser.parse_args().out, table())
