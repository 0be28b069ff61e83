"""How far rows lie from the dense model over texts: KL and top-1 agreement, with intervals.

    KL        = sum over texts of KL / sum over texts of tokens, in nats per token
    agreement = tokens with the same likeliest next token / tokens

over all tokens, and over answer tokens. Tokens of one text depend on each other, so whole texts are
resampled, the same for every line; seeds come on top as in sampling.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workflows.records.parts import Distance
from workflows.records.record import Record
from workflows.stats.resample import RESAMPLES, by_line, resample_means
from workflows.stats.sampling import Sample

KL, AGREEMENT = "kl", "agreement"
# Measure -> kind of token, and what is summed over the tokens of a text.
MEASURES = {
    KL: ("all", KL), AGREEMENT: ("all", AGREEMENT),
    "kl_answer": ("answer", KL), "agreement_answer": ("answer", AGREEMENT),
}  # fmt: skip
# Measure -> factor of its value in tables: nats as they are, shares in percent.
SCALES = {name: 1.0 if field == KL else 100.0 for name, (_, field) in MEASURES.items()}


def scale_of(measure: str) -> float:
    """Factor of the value of any measure in tables; percent but for nats."""
    return SCALES.get(measure, 100.0)


def distances(
    lines: Mapping[str, Sequence[Record]], resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, dict[str, Sample]]:
    """Measure -> line -> sample; lines with a run that was not compared are missing.

    Args:
        lines: Name of a line -> its records, all over the same texts.
        resamples: B.
        seed: Of all draws.
    """
    samples: dict[str, dict[str, Sample]] = {}
    for kind in ("all", "answer"):
        parts = {line: _of(records, kind) for line, records in lines.items()}
        runs = [distance for own in parts.values() for distance in own]
        if not runs:
            continue
        tokens = np.array(runs[0].tokens, dtype=np.float64)
        for name in (name for name, (own, _) in MEASURES.items() if own == kind):
            sums = np.array([getattr(run, MEASURES[name][1]) for run in runs], dtype=np.float64)
            means, sizes = resample_means(sums, tokens, resamples, seed, "fidelity")
            points, replicates = sums.sum(axis=1) / tokens.sum(), means / sizes
            compared = {line: own for line, own in parts.items() if own}
            samples[name] = by_line(compared, points, replicates, seed, name)
    return samples


def _of(records: Sequence[Record], kind: str) -> list[Distance]:
    """The distance of each run; empty where a run was not compared on such tokens."""
    fidelities = [record.fidelity for record in records if record.fidelity is not None]
    parts = [fidelity.distances[kind] for fidelity in fidelities if kind in fidelity.distances]
    return parts if len(parts) == len(records) else []
