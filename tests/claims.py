"""What the README claims in figures, each looked up in the committed frames.

A claim is a piece of the README's prose as an f-string. Its figures come from :class:`Frames`, so
that nothing is typed; numbers that are no findings, such as budgets, stand in ``SETTINGS``.
tests/workflow/test_claims.py says which number of the prose no claim holds, and which claim the
README does not make.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml

from workflows import ROOT
from workflows.stats.budget import TOLERANCE

# Titles as the README has them.
STATIC = {
    "LLM-Pruner": "llm-pruner", "Shortened LLaMA (ppl)": "shortened-ppl", "LaCo": "laco",
    "SliceGPT": "slicegpt", "ShortGPT": "shortgpt", "Shortened LLaMA (taylor)": "shortened-taylor",
}  # fmt: skip
ROUTERS = {
    "SkipGPT-Joint": "skipgpt-joint", "SkipGPT-RT": "skipgpt-rt", "MoD-D": "mod-d",
    "D-LLM": "d-llm", "MindSkip (block)": "mindskip-block", "FlexiDepth": "flexidepth",
    "DiffSkip": "diffskip",
}  # fmt: skip
REFERENCE = ROOT / "reports" / "reference"
TRIES = ROOT / "workflows/suites/tuned/demo.yaml"
# Numbers of the prose that say how something was set up, by the words beside them.
SETTINGS = (
    "At 25 %", "at 25 %", "At 40 %", "at 40 %", "stands above | 25 % | 40 % |", "1,500 updates",
    "600 updates", "here 1,500", "AVX2", "AVX-512", "Llama-3.1-8B",
)  # fmt: skip


class Figure(float):
    """A number of a frame; in a string it carries marks, which numbers typed there lack."""

    def __format__(self, form: str) -> str:
        return f"⟦{float(self):{form}}⟧"

    def __neg__(self) -> Figure:
        return Figure(-float(self))

    def __sub__(self, other: float) -> Figure:
        return Figure(float(self) - other)


class Lead(NamedTuple):
    """Points of one row above another, with the 95 % interval."""

    points: Figure
    low: Figure
    high: Figure

    def __neg__(self) -> Lead:
        return Lead(-self.points, -self.high, -self.low)


class Frames:
    """The published frames of one suite."""

    def __init__(self, name: str) -> None:
        self.folder = REFERENCE / name

    def figure(self, frame: str, column: str, **where: object) -> Figure:
        """The one cell of a column on the line whose other columns are as given."""
        lines = self.lines(frame, **where)
        assert len(lines) == 1, f"{self.folder.name}/{frame}.csv: {len(lines)} lines with {where}"
        return Figure(lines[column].iloc[0])

    def lines(self, frame: str, **where: object) -> pd.DataFrame:
        """Lines whose columns are as given."""
        found = read(self.folder / f"{frame}.csv")
        for column, value in where.items():
            found = found[found[column] == value]
        return found

    def retain(self, row: str, target: float, match: str = "pooled") -> Figure:
        """In percent, mean over seeds."""
        return self.figure("retain", "retain", row=row, target=target, match=match)

    def lead(
        self, row: str, other: str, target: float, measure: str = "retain", match: str = "pooled"
    ) -> Lead:
        """``row`` - ``other``; one of the two is the row that the frame holds others against."""
        turned = self.lines("differences", row=row, against=other, measure=measure).empty
        if turned:
            return -self.lead(other, row, target, measure, match)
        where = {"row": row, "against": other, "target": target, "measure": measure, "match": match}
        names = ("difference", "low", "high")
        return Lead(*(self.figure("differences", name, **where) for name in names))

    @property
    def runs(self) -> Figure:
        """How many records made the frames."""
        return Figure(json.loads((self.folder / "source.json").read_text())["runs"])


@cache
def read(file: Path) -> pd.DataFrame:
    """A frame; the oldest ones know one protocol and do not say it."""
    frame = pd.read_csv(file)
    return frame if "match" in frame else frame.assign(match="pooled")


def right(row: str, budget: float | None = None) -> tuple[Figure, Figure]:
    """Least and most percent of validation answers over the grid of learning rates.

    Args:
        row: As in the file of tries.
        budget: Only tries that met it within a point.
    """
    tries = yaml.safe_load(TRIES.read_text())["tries"][row]
    met = [t["right"] for t in tries if budget is None or abs(t["skip"] - budget) <= TOLERANCE]
    return Figure(100 * min(met)), Figure(100 * max(met))


def claims() -> dict[Path, list[str]]:
    """Page -> its claims; each must stand there once."""
    parts = {
        ROOT / "README.md": (first,),
        REFERENCE / "headline/README.md": (
            where,
            order,
            further,
            uses,
            seeds,
            short,
            again,
            healed,
        ),
        REFERENCE / "memory_cpu/README.md": (memory,),
        REFERENCE / "parts/README.md": (frame_parts,),
        REFERENCE / "prompt_loss/README.md": (losses,),
    }
    return {page: [c for part in made for c in part()] for page, made in parts.items()}


def first() -> Iterator[str]:
    """What the first screen says."""
    frames, clock = Frames("headline"), {"row": "hero", "mode": "decode", "case": "1x128"}
    kept = {
        match: [
            frames.figure("retain", name, row="hero", target=25, match=match)
            for name in ("retain", "retain_low", "retain_high", "skip_prompt", "skip_deciding")
        ]
        for match in ("pooled", "each")
    }
    pooled, each = kept["pooled"], kept["each"]
    second = frames.lead("hero", "skipgpt-joint", 25, match="pooled")
    yield (
        f"HeRo keeps {pooled[0]:.1f} % of the dense scores ({pooled[1]:.1f} to {pooled[2]:.1f}), "
        f"{second.points:.1f} points more than SkipGPT-Joint ({second.low:.1f} to "
        f"{second.high:.1f})"
    )
    healed = frames.lead("llm-pruner+lora", "hero", 25, match="each")
    yield (
        f"skips {pooled[3]:.1f} % on prompts and {pooled[4]:.1f} % where output is scored. With "
        f"both at the budget it keeps {each[0]:.1f} % ({each[1]:.1f} to {each[2]:.1f}); "
        f"LLM-Pruner, narrowed once and healed with the same training, keeps "
        f"{healed.points:.1f} points more ({healed.low:.1f} to {healed.high:.1f})"
    )
    speed, low, high, bound = (
        Frames("demo").figure("speeds", name, **clock)
        for name in ("speed", "speed_low", "speed_high", "bound")
    )
    prompts = Frames("demo").figure("speeds", "bound", row="hero", mode="prefill")
    yield (
        f"HeRo decodes at {speed:.2f} of dense speed on a CPU ({low:.2f} to {high:.2f}), where the "
        f"work that is left would allow {bound:.2f} ({prompts:.2f} for prompts)"
    )
    file = REFERENCE / "hero_cpu_llama31_8b_epyc.json"
    step = json.loads(file.read_text())["lines"][3]
    bypass, took, least = (Figure(step[name]) for name in ("bypass", "over_dense", "bound"))
    yield (
        f"bypasses {Figure(100 * bypass):.0f} % of its routed FFNs takes {took:.2f} of the dense "
        f"time on one thread of an AMD EPYC, of a possible {least:.2f}"
    )


def where() -> Iterator[str]:
    """Where a router skips, and what it keeps where it may not choose."""
    frames = Frames("headline")
    pooled, each = ({"target": 25, "match": match} for match in ("pooled", "each"))

    def of(row: str, column: str, at: dict[str, object], frame: str = "retain") -> Figure:
        return frames.figure(frame, column, row=row, **at)

    yield (
        f"HeRo skips {of('hero', 'skip_prompt', pooled):.1f} % of the parameters on prompt tokens "
        f"and {of('hero', 'skip_deciding', pooled):.1f} % on deciding ones, and keeps "
        f"{of('hero', 'retain', pooled):.1f} %"
    )
    yield f"it keeps {of('hero', 'retain', each):.1f} %."
    yield f"it skips {of('mod-d', 'skip_prompt', each):.1f} % there"
    for title, row in ROUTERS.items():
        yield (
            f"| {title} | {of(row, 'skip_prompt', pooled):.1f} | "
            f"{of(row, 'skip_deciding', pooled):.1f} | {of(row, 'retain', pooled):.1f} | "
            f"{of(row, 'retain', each):.1f} |"
        )
    yield (
        f"| HeRo | {of('hero', 'skip_prompt', pooled):.1f} | "
        f"{of('hero', 'skip_deciding', pooled):.1f} | {of('hero', 'retain', pooled):.1f} | "
        f"{of('hero', 'retain', each):.1f} |"
    )


def order() -> Iterator[str]:
    """Who stands where under either protocol."""
    frames = Frames("headline")
    second = frames.lead("hero", "skipgpt-joint", 25, match="pooled")
    yield (
        f"Pooled, HeRo stands {second.points:.1f} points above SkipGPT-Joint "
        f"({second.low:.1f} to {second.high:.1f})"
    )
    joint, alone = (
        frames.lead(row, "hero", 25, match="each") for row in ("skipgpt-joint", "skipgpt-rt")
    )
    yield (
        f"SkipGPT-Joint stands {joint.points:.1f} points above HeRo ({joint.low:.1f} to "
        f"{joint.high:.1f}) and SkipGPT-RT {alone.points:.1f} ({alone.low:.1f} to {alone.high:.1f})"
    )
    second, alone = (frames.lead("hero", f"skipgpt-{stage}", 40) for stage in ("joint", "rt"))
    yield (
        f"pooled it stands {second.points:.1f} above SkipGPT-Joint ({second.low:.1f} to "
        f"{second.high:.1f}) and {alone.points:.1f} above SkipGPT-RT ({alone.low:.1f} to "
        f"{alone.high:.1f})"
    )
    joint = frames.lead("skipgpt-joint", "hero", 40, match="each")
    alone = frames.lead("hero", "skipgpt-rt", 40, match="each")
    yield (
        f"HeRo {joint.points:.1f} below SkipGPT-Joint ({joint.low:.1f} to {joint.high:.1f}) and "
        f"{alone.points:.1f} above SkipGPT-RT ({alone.low:.1f} to {alone.high:.1f})"
    )
    kept = [frames.figure("retain", "retain", row="hero", target=t, match="each") for t in (40, 25)]
    yield f"keeps {kept[0]:.1f} % there, and {kept[1]:.1f} % at 25 %"
    beside = [
        frames.figure(
            "paper_agreement", name, paper_backbone="Llama-3.1-8B", target=25, match=match
        )
        for match in ("pooled", "each")
        for name in ("tau", "p")
    ]
    yield (
        f"by a Kendall's tau of {beside[0]:.2f} pooled (exact p = {beside[1]:.3f}) and of "
        f"{beside[2]:.2f} matched where it counts (p = {beside[3]:.3f})"
    )
    pruner = frames.lead("hero", "llm-pruner", 25, match="each")
    yield (
        f"HeRo stands {pruner.points:.1f} points above LLM-Pruner, the paper's best without "
        f"training ({pruner.low:.1f} to {pruner.high:.1f})"
    )
    flap, here = (frames.lead("hero", "flap", 25, match=match) for match in ("pooled", "each"))
    yield (
        f"keeps {frames.retain('flap', 25):.1f} % at 25 %: {flap.points:.1f} points below HeRo "
        f"pooled ({flap.low:.1f} to {flap.high:.1f}) and {-here.points:.1f} above it where it "
        f"counts ({-here.high:.1f} to {-here.low:.1f})"
    )
    yield f"it keeps {frames.retain('flap-one-list', 25):.1f} %"
    skipping = [frames.retain("ffn-skipllm", 25, match) for match in ("pooled", "each")]
    yield f"keeps {skipping[0]:.1f} % pooled and {skipping[1]:.1f} % where it counts"
    at_40 = [frames.retain(row, 40) for row in ("flap", "ffn-skipllm")]
    yield f"At 40 % FLAP keeps {at_40[0]:.1f} %, FFN-SkipLLM {at_40[1]:.1f} %"


def further() -> Iterator[str]:
    """Routers that the paper does not compare with."""
    frames = Frames("headline")
    trained = frames.lines("costs", target=25, match="pooled").set_index("row")
    numbers = Figure(trained["trained_parameters"]["mindskip-block"])
    mind = [frames.retain("mindskip-block", 25, match) for match in ("pooled", "each")]
    above = frames.lead("hero", "mindskip-block", 25)
    deciding = frames.figure(
        "retain", "skip_deciding", row="mindskip-block", target=25, match="pooled"
    )
    yield (
        f"MindSkip trains one vector per layer, {numbers:.0f} numbers, and keeps {mind[0]:.1f} % "
        f"pooled, {above.points:.1f} points below HeRo ({above.low:.1f} to {above.high:.1f})"
    )
    yield f"skipping {deciding:.1f} % of deciding tokens; where it counts it keeps {mind[1]:.1f} %"
    for title, row in (("FlexiDepth", "flexidepth"), ("DiffSkip", "diffskip")):
        kept = [frames.retain(row, 25, match) for match in ("pooled", "each")]
        yield f"{title} keeps {kept[0]:.1f} and {kept[1]:.1f} %"


def uses() -> Iterator[str]:
    """What HeRo's router uses."""
    frames = Frames("headline")
    kind, token = (
        frames.lead("hero", f"hero-by-{name}", 25, match="each") for name in ("kind", "token")
    )
    yield (
        f"HeRo stands {token.points:.1f} points above `hero-by-token` ({token.low:.1f} to "
        f"{token.high:.1f}) and {kind.points:.1f} above `hero-by-kind` ({kind.low:.1f} to "
        f"{kind.high:.1f})"
    )
    kind, token = (
        frames.lead("hero", f"hero-by-{name}", 25, match="pooled") for name in ("kind", "token")
    )
    yield f"Pooled, the two stand {token.points:.1f} and {kind.points:.1f} points below it."


def seeds() -> Iterator[str]:
    """How far a seed moves a trained row."""
    frames = Frames("headline")
    rows = [*ROUTERS.values(), "hero"]
    pooled, each = (
        [frames.figure("retain", "retain_std", row=row, target=25, match=match) for row in rows]
        for match in ("pooled", "each")
    )
    yield (
        f"pooled by {min(pooled):.1f} to {max(pooled):.1f} points (standard deviation over five "
        f"seeds), matched where it counts by {min(each):.1f} to {max(each):.1f}."
    )
    noise = frames.lines("training_noise")
    hero, mod_d = (
        Figure(noise.loc[noise["row"] == row, "difference"].abs().max())
        for row in ("hero", "mod-d")
    )
    yield f"moves HeRo by up to {hero:.1f} points and MoD-D by up to {mod_d:.1f}."


def short() -> Iterator[str]:
    """Which rows of the demo, trained for fewer updates, lie below their intervals here."""
    long, less, inside = Frames("headline"), list[str](), list[str]()
    titles = {row: title for title, row in {"LoRA": "lora", **ROUTERS, "HeRo": "hero"}.items()}
    for line in Frames("demo").lines("retain").to_dict("records"):
        if (row := line["row"]) in titles:
            at = {"row": row, "match": "pooled"} | ({} if row == "lora" else {"target": 25})
            low, high = (long.figure("retain", f"retain_{end}", **at) for end in ("low", "high"))
            kept = Figure(line["retain"])
            if kept < low:
                less.append(f"{titles[row]} {kept:.1f} % (here {low:.1f} to {high:.1f})")
            elif kept <= high:
                inside.append(titles[row])
    assert len(less) == 2
    yield f"two keep less: {', '.join(less)}."
    yield f"{', '.join(inside[:-1])} and {inside[-1]} lie within their intervals here."


def again() -> Iterator[str]:
    """What another instruction set leaves as it is."""
    counts = read(REFERENCE / "agreement_avx2.csv").set_index("rows")
    runs, weights, items = (Figure(counts.at["untrained", n]) for n in ("runs", "weights", "items"))
    moved = Figure(counts.at["trained", "retain"])
    yield (
        f"Of {runs:g} untrained runs at 25 % made again under AVX2 in place of AVX-512, {items:g} "
        f"score every item alike and {weights:g} have the same weights to the bit"
    )
    yield f"LoRA scores every item alike as well, HeRo keeps {moved:.1f} points more."


def memory() -> Iterator[str]:
    """Does memory help? HeRo above its ablations and controls."""
    frames = Frames("memory_cpu")
    for name in ("no-memread", "same-size", "no-history", "by-token", "random", "static"):
        cells = [above(frames, f"hero-{name}", target) for target in (25, 40)]
        yield f"| `hero-{name}` | {cells[0]} | {cells[1]} |"
    history = [frames.lead("hero", "hero-no-history", t, match="each").points for t in (25, 40)]
    yield (
        f"HeRo stands {history[0]:.1f} points above `hero-no-history` at 25 % and "
        f"{history[1]:.1f} at 40 %;"
    )
    spread = [frames.figure("retain", "retain_std", row="hero", target=t) for t in (25, 40)]
    yield f"(HeRo by {spread[0]:.1f} points at 25 % and {spread[1]:.1f} at 40 %)"


def frame_parts() -> Iterator[str]:
    """Which part of HeRo's frame earns the retain?"""
    frames = Frames("parts")
    for row in frames.lines("retain", kind="dynamic", match="each")["row"]:
        if row != "hero":
            cells = [above(frames, row, 25, match) for match in ("pooled", "each")]
            yield f"| `{row}` | {cells[0]} | {cells[1]} |"
    for words, first, second in (
        ("the FFN, not the whole layer", "ffn", "block"),
        ("an adapter where a token skips", "", "-bare"),
        ("a gate that reads the history, not the state", "history", "state"),
        ("a gate that reads the state, not the difference", "state", "difference"),
    ):
        cells = [gained(frames, first, second, match) for match in ("pooled", "each")]
        yield f"| {words} | {cells[0]} | {cells[1]} |"


def losses() -> Iterator[str]:
    """What rows skip and keep with the loss of all tokens and with that of the demo's suites."""
    frames = Frames("prompt_loss")
    rows = {name: (f"{name}-whole-loss", name) for name in ("hero", "skipgpt-joint")}
    skips, kept = {}, {}
    for name, both in rows.items():
        skips[name] = [
            frames.figure("retain", f"skip_{kind}", row=row, target=25, match="pooled")
            for row in both
            for kind in ("prompt", "deciding")
        ]
        kept[name] = [
            frames.retain(row, 25, match) for match in ("pooled", "each") for row in both[::-1]
        ]
    (a, b, c, d), joint = skips["hero"], skips["skipgpt-joint"]
    yield (
        f"HeRo still skips {a:.1f} % on prompts and {b:.1f} % on deciding tokens ({c:.1f} and "
        f"{d:.1f} with a tenth), SkipGPT-Joint {joint[0]:.1f} and {joint[1]:.1f} ({joint[2]:.1f} "
        f"and {joint[3]:.1f})"
    )
    hero, joint = kept["hero"], kept["skipgpt-joint"]
    yield (
        f"pooled HeRo {hero[0]:.1f} against {hero[1]:.1f} %, SkipGPT-Joint {joint[0]:.1f} against "
        f"{joint[1]:.1f} %; where it counts {hero[2]:.1f} against {hero[3]:.1f} % and "
        f"{joint[2]:.1f} against {joint[3]:.1f} %"
    )


def gained(frames: Frames, first: str, second: str, match: str) -> str:
    """Points between rows of `parts` that differ in one part, by its names; least to most."""
    names = {
        (unit, read, bare): "hero" if name == "ffn-history" else name
        for unit in ("ffn", "block")
        for read in ("history", "state", "difference")
        for bare in ("", "-bare")
        if (name := f"{unit}-{read}{bare}")
    }
    found = []
    for parts, name in names.items():
        if first in parts:
            other = names[tuple(second if part == first else part for part in parts)]  # type: ignore[index]
            found.append(frames.retain(name, 25, match) - frames.retain(other, 25, match))
    mean = Figure(sum(found) / len(found))
    return f"{mean:.1f} ({Figure(min(found)):.1f} to {Figure(max(found)):.1f})"


def above(frames: Frames, row: str, target: float, match: str = "each") -> str:
    """Points of HeRo above a row with the interval; a dash where it has no record."""
    if frames.lines("differences", row=row, against="hero", target=target, match=match).empty:
        return "–"
    lead = frames.lead("hero", row, target, match=match)
    return f"{lead.points:.1f} ({lead.low:.1f} to {lead.high:.1f})"


def healed() -> Iterator[str]:
    """What training alone gives static rows, and learning rates."""
    frames = Frames("headline")
    trained = frames.lines("costs", target=25, match="pooled").set_index("row")
    parameters = trained["trained_parameters"]
    more = [100 * parameters[f"{row}+lora"] / parameters["hero"] - 100 for row in STATIC.values()]
    yield f"parameters {Figure(min(more)):.0f} to {Figure(max(more)):.0f} % more than HeRo's"
    gains, kept = [], {}
    for title, row in STATIC.items():
        alone, after = frames.retain(row, 25), frames.retain(f"{row}+lora", 25)
        yield f"| {title} | {alone:.1f} | {after:.1f} |"
        gains.append(after - alone)
        kept[after] = f"{row}+lora"
    yield f"gives a static row {min(gains):.0f} to {max(gains):.0f} points.**"
    kept_most = max(kept)
    best = kept[kept_most]
    pooled, each = (frames.lead("hero", best, 25, match=match) for match in ("pooled", "each"))
    yield (
        f"stands {pooled.points:.1f} points below HeRo as the paper matches ({pooled.low:.1f} to "
        f"{pooled.high:.1f}) and {-each.points:.1f} above it where it counts ({-each.high:.1f} to "
        f"{-each.low:.1f})"
    )
    routing = frames.retain("skipgpt-joint", 25, "each")
    yield f"at {kept_most:.1f} above every row that routes (SkipGPT-Joint keeps {routing:.1f})"
    for words, row in (
        ("SkipGPT-Joint gets", "skipgpt-joint"), ("SkipGPT-RT", "skipgpt-rt"), ("MoD-D", "mod-d"),
        ("D-LLM", "d-llm"), ("a healed LLM-Pruner", "llm-pruner+lora"),
    ):  # fmt: skip
        least, most = right(row)
        of = " % of the validation split's answers right" if row == "skipgpt-joint" else ""
        yield f"{words} {least:.0f} to {most:.0f}{of}"
    least, most = right("hero", budget=0.25)
    yield f"HeRo {least:.0f} to {most:.0f} where it meets its budget"
