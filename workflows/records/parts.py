"""What a record is made of, each part a typed value that JSON can hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Signs that end a line or steer a terminal.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def one_line(text: str) -> str:
    """A text with spaces for its control characters, as a record wants it."""
    return CONTROL.sub(" ", text)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Skip on one kind of token; shares of the dense parameters, means over tokens.

    Args:
        tokens: Scored tokens of the kind.
        skip: What did not run.
        skip_net: ``skip`` minus the parameters that the method adds.
        skip_std: Standard deviation of ``skip`` over tokens.
    """

    tokens: int
    skip: float
    skip_net: float
    skip_std: float


# Kind of token -> its rate. "all" is always there.
Rates = Mapping[str, Rate]


def to_rates(entries: Mapping[str, Mapping[str, Any]]) -> Rates:
    """Rates from their JSON."""
    return {kind: Rate(**rate) for kind, rate in entries.items()}


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of one task.

    Args:
        task: Name of the task.
        metric: Name of the metric.
        filter: The harness's filter of answers.
        primary: Whether this is the headline metric, the one of a task's metrics that tables show.
        higher_is_better: False for a perplexity, for example.
        value: The score, as the harness gives it.
        n: Items.
        k: Items that were solved; None where items are not right or wrong.
        stderr: Standard error over items; None where the harness gives none.
        chance: Score of a guess; None where nothing says it, as of a perplexity.
        shots: Demonstrations in the prompt.
        split: Where the items come from.
        chat_template: Whether prompts are in the model's chat template.
        version: Version of the task.
        prompt_hash: Hash of all prompts.
        doc_hash: Hash of all documents, with choices and right answers; None in older records.
        rates: Skip on the tokens of the task.
    """

    task: str
    metric: str
    filter: str
    primary: bool
    higher_is_better: bool
    value: float
    n: int
    k: int | None
    stderr: float | None
    chance: float | None
    shots: int
    split: str
    chat_template: bool
    version: str | float
    prompt_hash: str
    doc_hash: str | None = None
    rates: Rates

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> Score:
        """A score from its JSON."""
        return cls(**{**entries, "rates": to_rates(entries["rates"])})


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """A task that the machine could not run, and why, in one line."""

    task: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", one_line(self.reason))


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of the model that a token may skip.

    Args:
        layer: Its dense layer.
        kind: ``attention``, ``ffn``, ``block`` (a layer), ``evicting`` (one without keys, values).
        parameters: Its size.
        executed: Share of the scored tokens that ran it.
    """

    layer: int
    kind: str
    parameters: int
    executed: float


@dataclass(frozen=True, kw_only=True)
class Route:
    """What ran for each token of one prompt.

    Args:
        task: The prompt is the first item of this task, with its answer.
        tokens: The last ones, as text.
        first_answer: Index of the first token whose output is scored.
        executed: Per unit of the record a string of ``0`` and ``1``, one per token.
    """

    task: str
    tokens: Sequence[str]
    first_answer: int
    executed: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """The dense model that the row starts from.

    Args:
        name: Its name in the suite.
        path: Its folder: below the working folder, else the folder's name alone.
        revision: Its commit on the hub; None where it is not known.
        hash: Hash of its weights.
        parameters: How many it has.
        layers: How many it has.
    """

    name: str
    path: str
    revision: str | None
    hash: str
    parameters: int
    layers: int


@dataclass(frozen=True, kw_only=True)
class Start:
    """The fitted model that another fit started from, as in ``shortgpt+lora``.

    Args:
        row: Its row.
        params: Of that row.
        seed: Of that fit.
    """

    row: str
    params: Mapping[str, Any]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What the fit cost and where it ended.

    Args:
        seconds: Time of the fit.
        peak_memory_mb: Of the process, or of the GPU (2^20 bytes).
        device: Where it ran.
        threads: Of torch.
        cpu_capability: The instruction set that torch used.
        trained_parameters: How many were trained; 0 where nothing was.
        trained_skip: Kind of token -> skip at the end of training; None without a router.
        threshold: The calibrated gate value from which a unit runs; None where there is none.
    """

    seconds: float
    peak_memory_mb: float
    device: str
    threads: int | None
    cpu_capability: str
    trained_parameters: int
    trained_skip: Mapping[str, float] | None = None
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Decoder layers.

    Args:
        kept: Layers of the fitted model.
        dense: Layers of the backbone.
        removed: Numbers of the dense layers that the fit removed.
    """

    kept: int = 0
    dense: int = 0
    removed: Sequence[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How the row was scored, and what scoring cost.

    Args:
        batch_size: Sequences per pass.
        equal_lengths: Whether batches have no pads, which would change the model's decisions.
        share_prefix: Whether a context ran once for all its answers.
        max_length: Tokens of the context window.
        end_tokens: Ids of the tokens that end a generated text.
        device: Where it ran.
        threads: Of torch.
        seconds: Time of scoring.
        peak_memory_mb: Of the process, or of the GPU (2^20 bytes).
    """

    batch_size: int = 0
    equal_lengths: bool = False
    share_prefix: bool = False
    max_length: int = 0
    end_tokens: Sequence[int] = field(default_factory=list)
    device: str = ""
    threads: int | None = None
    seconds: float = 0.0
    peak_memory_mb: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far the next-token distributions of a row lie from the dense model's, text by text.

    Args:
        skip: Share of the dense parameters that did not run for these tokens.
        tokens: Compared tokens of each text.
        kl: KL(dense, row) in nats, summed over the tokens of each text.
        agreement: Tokens of each text for which both have the same likeliest next token.
    """

    skip: float
    tokens: Sequence[int]
    kl: Sequence[float]
    agreement: Sequence[int]

    @property
    def mean_kl(self) -> float:
        """Nats per token."""
        return sum(self.kl) / sum(self.tokens)

    @property
    def mean_agreement(self) -> float:
        """Share of the tokens."""
        return sum(self.agreement) / sum(self.tokens)


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """A row held against the dense model on texts that no fit has read.

    Args:
        texts: Hash of the tokens that both read.
        seconds: Time that it took, with loading the dense model.
        distances: Kind of token -> distance. ``"all"`` is always there, ``"answer"`` where texts
            have answers.
    """

    texts: str
    seconds: float
    distances: Mapping[str, Distance]

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> Fidelity:
        """From its JSON."""
        distances = {kind: Distance(**part) for kind, part in entries["distances"].items()}
        return cls(**{**entries, "distances": distances})
