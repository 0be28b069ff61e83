"""What transformers sees of a compressed model: a folder with a ``model_type`` of its own.

Under its family's type a changed model would be read as the dense one, or with random numbers where
a layer is not what the config says. So ``save_pretrained`` writes a plain folder only where the
config alone rebuilds the model. Any other folder has the type below, which the Auto classes refuse
until ``methods`` is imported, and then read with :func:`methods.load_model`.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.utils import GENERATION_CONFIG_NAME

from methods.core.model.card import CARD
from methods.core.model.tensors import DTYPES, check_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


def guard(model: PreTrainedModel) -> None:
    """Let ``save_pretrained`` write a model that is its backbone, or refuse what it is no longer.

    A compressed model has a guard of its own, in ``whole.py``.
    """
    model.save_pretrained = partial(_save, model)  # type: ignore[method-assign]


def _save(model: PreTrainedModel, folder: str | Path, *arguments: Any, **options: Any) -> None:
    """``save_pretrained`` of a model without a card; a card of another model there goes.

    Raises:
        ValueError: The model is not what its config says.
    """
    check_storable(model)
    if not is_plain(model):
        raise ValueError(
            "this model is not what its config says: write it with the fit step or with "
            "methods.core.model.checkpoint.save"
        )
    write_plainly(model, folder, *arguments, **options)
    (Path(folder) / CARD).unlink(missing_ok=True)


def write_plainly(
    model: PreTrainedModel, folder: str | Path, *arguments: Any, **options: Any
) -> None:
    """Transformers' own ``save_pretrained``, with the generation settings as they were read.

    transformers before 5.23 refuses to write some settings that published backbones ship.
    """
    settings = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        type(model).save_pretrained(model, folder, *arguments, **options)
    finally:
        model.generation_config = settings
    settings.to_json_file(Path(folder) / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def check_storable(model: PreTrainedModel) -> None:
    """Hold a model against what can be read again, and let its config say whether it is tied.

    Raises:
        ValueError: A parameter is in a dtype that is not read.
    """
    for name, parameter in model.named_parameters():
        check_dtype(parameter.dtype, DTYPES.values(), f"parameter '{name}'")
    untie_own_head(model)


def untie_own_head(model: PreTrainedModel) -> None:
    """Let the config of a model whose head differs from its embedding say so.

    transformers loads such a head under ``tie_word_embeddings``, and whatever ties by the config
    afterwards, lm-eval among them, would put the embedding in its place.
    """
    head = model.get_output_embeddings().get_parameter("weight")
    embedding = model.get_input_embeddings().get_parameter("weight")
    if model.config.tie_word_embeddings and head is not embedding:
        model.config.tie_word_embeddings = torch.equal(head, embedding)


def is_plain(model: PreTrainedModel) -> bool:
    """Whether its own class makes the same modules and shapes from its config alone."""
    with torch.device("meta"):
        stock = type(model)(copy.deepcopy(model.config))
    return odd_part(model, stock) is None


def odd_part(model: torch.nn.Module, other: torch.nn.Module) -> str | None:
    """The first module of another type, or parameter of another shape, than in ``other``."""
    modules = [{name: type(module) for name, module in m.named_modules()} for m in (model, other)]
    shapes = [{name: p.shape for name, p in m.named_parameters()} for m in (model, other)]
    pairs: list[list[dict[str, Any]]] = [modules, shapes]
    odd = (name for a, b in pairs for name in sorted({*a, *b}) if a.get(name) != b.get(name))
    return next(odd, None)
