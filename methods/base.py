"""The contract of a method: what it is, what it decides, how its model is built again.

A method turns a dense backbone into a model and says why. It never counts, times, scores or saves
anything: the core counts what runs, the harness scores, the steps write files.

A file in ``methods/`` holds one class that derives from :class:`Method`. Its class attributes are
literals: :func:`methods.discover` reads them from the syntax tree, so that a job list imports
neither the file nor torch.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    from torch import nn

    from methods.core.data import Data
    from methods.core.model.backbone import Backbone
    from methods.core.model.ledger import Rates

P = TypeVar("P")
# Types of a param beside Literal, and lists of these.
PLAIN = (bool, int, float, str, list, dict, type(None))


@dataclass(frozen=True)
class Request:
    """What a run asks of a method.

    Args:
        budget: Fraction in (0, 1) of the dense parameters that a token should skip; None: the
            params alone decide.
        seed: Of every generator of the fit, through ``(seed, purpose)``.
        workdir: Folder for checkpoints of a long fit; it survives an interrupted run.
        match: Which tokens should meet the budget. ``"pooled"``: all of them in the mean, as in the
            papers. ``"split"``: prompt tokens and answer tokens each; only the output of answer
            tokens is scored.
        lender: Folder of another row's fitted model, for a control that copies its rates.
    """

    budget: float | None
    seed: int
    workdir: Path
    match: Literal["pooled", "split"] = "pooled"
    lender: Path | None = None

    def pinned(self) -> Request:
        """The same request without a budget, for a row whose params say how much to skip."""
        return dataclasses.replace(self, budget=None, match="pooled")


@dataclass
class Fitted:
    """What a fit returns.

    Args:
        model: Causal LM, ready to score.
        structure: JSON value; :meth:`Method.build` needs only this and the backbone.
        decisions: JSON value; the reasons: scores, order of removal, trace of the budget search.
    """

    model: nn.Module
    structure: dict[str, Any]
    decisions: dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """What a fit takes; the plan multiplies it by the suite's texts and updates.

    Args:
        passes: Forward passes over the calibration texts; a backward pass counts as two.
        texts: Calibration texts that it reads, the first ones; None: all.
        length: Tokens that it reads of each; None: all.
        batch: Calibration texts whose hidden states are in memory at a time; None: all.
        probe_passes: Forward passes over the probe texts.
        layers: Layers that gradients flow through in training, the last ones; 0: nothing trains.
        trained: Trained parameters.
    """

    passes: float = 0
    texts: int | None = None
    length: int | None = None
    batch: int | None = 16
    probe_passes: int = 0
    layers: int = 0
    trained: int = 0


class Method(ABC):
    """One paper, one control or one reference.

    Class attributes (literals):
        title: Name in tables, no two rows share one; may use the fields of ``Params``, as in
            ``"Random skip ({unit})"``.
        source: The paper, with its address, or what a control is for.
        kind: ``"reference"`` skips nothing; ``"static"`` changes weights once and stores a whole
            model; ``"dynamic"`` decides per token and stores only what it trained.
        trained: Whether :meth:`fit` trains on ``data.training()``.
        stochastic: Whether the seed changes the result; other rows run the first seed only.
        budgeted: Whether a budget applies.
        causal: Whether cached decoding equals the full forward pass and pads change nothing. If it
            depends on params, override :meth:`batchable`.
        rows: The rows that this file makes, each with its params.
        borrows: Whether a fit may read ``request.lender``; the default is no.
    """

    title: ClassVar[str]
    source: ClassVar[str]
    kind: ClassVar[Literal["reference", "static", "dynamic"]]
    trained: ClassVar[bool]
    stochastic: ClassVar[bool]
    budgeted: ClassVar[bool]
    causal: ClassVar[bool]
    rows: ClassVar[dict[str, dict[str, Any]]]
    borrows: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Params:
        """Hyper-parameters; bad values raise ValueError.

        Defaults are the authors', unless the class says otherwise; those of training
        (``TrainingParams``) all trained rows share.
        """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        """Check ``params`` against ``Params``.

        Raises:
            ValueError: A name is unknown, or a value has the wrong type or range.
        """
        self.params: Any = make_params(self.Params, params or {})

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """Why the method cannot run here, or None. A reason becomes a record, not a failure.

        The backbone may be without numbers (meta): a plan asks too.
        """
        return None

    @abstractmethod
    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Search, calibrate or train; may change ``backbone.model``.

        A method that trains leaves ``requires_grad`` on exactly what it trained, and its ``Params``
        derive from ``TrainingParams``.

        Raises:
            ValueError: The request cannot be met; the message names the parameter.
        """

    @abstractmethod
    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The fitted model again, without data; also on meta tensors.

        Static methods return the shape, and a file fills in the weights. Dynamic methods wrap
        ``backbone.model``, and ``requires_grad`` is set exactly on what they train.
        """

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """What :meth:`fit` takes, estimated before anything runs; ``skip_reason`` is None.

        The default is one pass over the calibration texts, or, if ``trained``, gradients through
        every layer.

        Args:
            backbone: Without numbers (meta); may be consumed.
            request: As for :meth:`fit`.
        """
        return Cost(layers=backbone.layer_count) if self.trained else Cost(passes=1)

    def batchable(self) -> bool:
        """Whether sequences of different lengths may share a batch, because pads change nothing."""
        return self.causal

    def authors_skip(self, rates: Rates) -> float:
        """The skip as the method's authors count it, from what ran; a fraction."""
        return rates.skip


def make_params(cls: type[P], values: Mapping[str, Any]) -> P:
    """An instance of the params class ``cls``, with ``values`` in place of defaults.

    Raises:
        ValueError: Unknown name, wrong type, or a value outside its Literal; or the class has a
            param without a default, or of a type that no JSON value is checked against.
    """
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = [field.name for field in fields]
    for field in fields:
        if field.default is dataclasses.MISSING:
            raise ValueError(f"param '{field.name}' has no default that is a literal, such as None")
        if not _known(hints[field.name]):
            raise ValueError(
                f"param '{field.name}' is declared as {hints[field.name]}; known are bool, int, "
                "float, str, None, Literal, list, dict, and lists and tuples of one of these"
            )
    for name, value in values.items():
        if name not in names:
            allowed = ", ".join(names) or "none"
            raise ValueError(f"unknown param '{name}' (allowed: {allowed})")
        if not _fits(value, hints[name]):
            raise ValueError(f"param '{name}' is {value!r}, expected {_describe(hints[name])}")
    return cls(**{name: _typed(value, hints[name]) for name, value in values.items()})


def check_least(params: object, least: int, *names: str) -> None:
    """Check params against the least value that is allowed; None passes.

    Raises:
        ValueError: A param is less, or NaN; the message names the first.
    """
    for name in names:
        value = getattr(params, name)
        if value is not None and not value >= least:
            null = " or null" if getattr(type(params), name, None) is None else ""
            raise ValueError(f"param '{name}' is {value}, must be at least {least}{null}")


def check_protect(protect: tuple[int, int]) -> None:
    """Check param ``protect``: how many first and how many last layers stay.

    Raises:
        ValueError: It is not two numbers from 0.
    """
    if len(protect) != 2 or min(protect) < 0:
        raise ValueError(f"param 'protect' is {protect}, must be two numbers from 0")


def _typed(value: Any, hint: Any) -> Any:
    """A list from JSON as a tuple, where the hint says so."""
    origins = [typing.get_origin(option) for option in _options(hint)]
    return tuple(value) if isinstance(value, list) and tuple in origins else value


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _known(hint: Any) -> bool:
    """Whether :func:`_fits` can check a value against a type hint."""
    for option in _options(hint):
        origin, parts = typing.get_origin(option), typing.get_args(option)
        if origin in (list, tuple):
            if not _known(parts[0]) or any(part not in (parts[0], ...) for part in parts):
                return False
        elif origin is not Literal and option not in PLAIN:
            return False
    return True


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value fits a type hint: scalars, Literal, unions and lists of them."""
    for option in _options(hint):
        origin = typing.get_origin(option)
        if origin is Literal:
            if value in typing.get_args(option):
                return True
        elif origin in (list, tuple):
            parts = typing.get_args(option)
            length = None if origin is list or ... in parts else len(parts)
            if (
                isinstance(value, list | tuple)
                and length in (None, len(value))
                and all(_fits(item, parts[0]) for item in value)
            ):
                return True
        elif option in (int, float):
            number = isinstance(value, int) or (option is float and isinstance(value, float))
            if number and not isinstance(value, bool):
                return True
        elif isinstance(value, option):
            return True
    return False


def _describe(hint: Any) -> str:
    words = []
    for option in _options(hint):
        if typing.get_origin(option) is Literal:
            words.append("one of " + ", ".join(map(repr, typing.get_args(option))))
        elif option is type(None):
            words.append("null")
        else:
            words.append(getattr(option, "__name__", str(option)))
    return " or ".join(words)
