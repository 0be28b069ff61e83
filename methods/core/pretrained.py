"""What transformers sees of a compressed model: a folder with a ``model_type`` of its own.

Under its family's type a changed model would be read as the dense one, or with random numbers where
a layer is not what the config says. So ``save_pretrained`` writes a plain folder only where the
config alone rebuilds the model. Any other folder has the type below, which the Auto classes refuse
until ``methods`` is imported, and then read with :func:`methods.load_model`.
"""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig

from methods.core.jsonfile import cut, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CARD = "skipbench.json"
# What a card says of a run and of its backbone, with the types of the values.
RUN_TYPES: dict[str, Any] = {"row": str, "params": dict, "seed": int, "backbone": dict}
BACKBONE_TYPES: dict[str, Any] = {
    "path": str, "relative_path": str, "hash": str, "parameters": int, "layers": int, "dtype": str,
    "config": dict,
}  # fmt: skip


class SkipbenchConfig(PreTrainedConfig):
    """``config.json`` of a folder that only :func:`methods.load_model` understands.

    Args:
        row: The row that made the model; everything else is in ``skipbench.json`` beside it.
        hidden_size: Nothing, at which the classes of the families stop when they are told to read
            the folder whatever its type.
    """

    model_type = "skipbench"
    row: str = ""
    hidden_size: None = None

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON; the architecture is no family's: a pipeline would try that class."""
        named: dict[str, Any] = super().to_dict()
        return named | {"architectures": ["SkipbenchForCausalLM"]}


def guard(model: PreTrainedModel, card: dict[str, Any] | None = None) -> None:
    """Let ``save_pretrained`` write the model as what it is, or refuse.

    Args:
        model: Causal LM; it may change later.
        card: Content of ``skipbench.json``; None: the model is the backbone, as far as is known.
    """
    model.save_pretrained = partial(_save, model, card)  # type: ignore[method-assign]


def _save(
    model: PreTrainedModel,
    card: dict[str, Any] | None,
    folder: str | Path,
    *arguments: Any,
    **options: Any,
) -> None:
    """``save_pretrained`` of a guarded model; the card comes last.

    Raises:
        ValueError: The model is not what its config says, and no card says what it is.
    """
    held = model.config
    if not is_plain(model):
        if card is None:
            raise ValueError(
                "this model is not what its config says: write it with the compress step or with "
                "methods.core.checkpoint.save"
            )
        model.config = SkipbenchConfig(row=card["row"])
    try:
        type(model).save_pretrained(model, folder, *arguments, **options)
    finally:
        model.config = held
    if card is not None:
        text = json.dumps(card, indent=1, allow_nan=False, ensure_ascii=False)
        (Path(folder) / CARD).write_text(text + "\n", encoding="utf-8")


def is_plain(model: PreTrainedModel) -> bool:
    """Whether its own class makes the same modules and shapes from its config alone."""
    with torch.device("meta"):
        stock = type(model)(copy.deepcopy(model.config))
    return _parts(stock) == _parts(model)


def _parts(model: torch.nn.Module) -> tuple[dict[str, type], dict[str, torch.Size]]:
    modules = {name: type(module) for name, module in model.named_modules()}
    return modules, {name: parameter.shape for name, parameter in model.named_parameters()}


def read_card(folder: Path) -> dict[str, Any]:
    """The card in a compressed model's folder.

    Raises:
        ValueError: There is none, or it is damaged.
    """
    file = folder / CARD
    if not file.is_file():
        raise ValueError(f"{folder} is no compressed model: it has no {CARD}")
    card = read_json(file)
    if card.get("format") != 1:
        raise ValueError(f"{file} has format {card.get('format')!r}, this version reads format 1")
    _check_types(card, {"start": (dict, NoneType), "budget": (float, NoneType)}, file)
    made = {} if "not_applicable" in card else {"structure": dict}
    for part in (card, card["start"] or card):
        _check_types(part, RUN_TYPES | made, file)
        _check_types(part["backbone"], BACKBONE_TYPES, f"{file}, backbone")
    return card


def _check_types(held: dict[str, Any], types: dict[str, Any], where: object) -> None:
    for key, kind in types.items():
        if key not in held:
            raise ValueError(f"{where} lacks '{key}'")
        if not isinstance(held[key], kind):
            raise ValueError(f"{where}: '{key}' is {cut(repr(held[key]))}, a value of another type")
