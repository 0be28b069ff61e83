"""What transformers sees of a compressed model: a folder with a ``model_type`` of its own.

If the folder had the type of the model's family, transformers would read the changed model as a
dense one, and would fill layers that do not fit the config with random numbers. So
``save_pretrained`` writes the family's type only if the config alone rebuilds the model. Any other
folder has the type below. The Auto classes refuse it until ``methods`` is imported, and then read
it by :func:`methods.load_model`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.utils import (
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
)

from methods.core.model.card import CARD
from methods.core.model.tensors import DTYPES, check_dtype, share

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SkipbenchConfig(PreTrainedConfig):
    """``config.json`` of a folder that only :func:`methods.load_model` can read.

    Args:
        row: The row that made the model; everything else is in ``skipbench.json``.
        vocab_size: Of the model; peft reads it when it saves an adapter.
        intermediate_size: Always -1. So a family's own class, such as Llama's, fails at once when a
            user calls it on the folder.
    """

    model_type = "skipbench"
    row: str = ""
    vocab_size: int = 0
    intermediate_size: int = -1

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON.

        Its architecture is not that of a family, whose class a pipeline would then try.
        """
        entries: dict[str, Any] = super().to_dict()
        return entries | {"architectures": ["SkipbenchForCausalLM"]}


def guard(model: PreTrainedModel) -> None:
    """Let ``save_pretrained`` write a dense model, and refuse it if the model was changed.

    ``guard_whole`` in ``whole.py`` does this for a compressed model.
    """
    guard_by(model, _save)


def guard_by(model: PreTrainedModel, write: Callable[..., None]) -> None:
    """Let ``save_pretrained`` call ``write(model, folder, **options)``."""
    model.save_pretrained = partial(_save_by, write, model)  # type: ignore[method-assign]


def _save_by(
    write: Callable[..., None],
    model: PreTrainedModel,
    folder: str | Path,
    is_main_process: bool = True,
    state_dict: dict[str, Any] | None = None,
    push_to_hub: bool = False,
    **options: Any,
) -> None:
    """``save_pretrained`` as transformers calls it; only the main process writes.

    Raises:
        ValueError: The folder would be uploaded before it is whole, or have a second set of
            weights.
    """
    if push_to_hub:
        raise ValueError("option 'push_to_hub' is not taken: call model.push_to_hub with a name")
    if options.get("variant"):
        raise ValueError("a folder has one set of weights: option 'variant' is not taken")
    if is_main_process:
        write(model, folder, state_dict=state_dict, **options)
    else:
        # Processes that share the weights gather them together.
        type(model).save_pretrained(model, folder, False, state_dict, **options)


def _save(model: PreTrainedModel, folder: str | Path, **options: Any) -> None:
    """``save_pretrained`` of a model without a card; it removes another model's card.

    Raises:
        ValueError: The model is not what its config says.
    """
    check_storable(model)
    if not is_plain(model):
        raise ValueError(
            "this model is not what its config says: write it with the fit step or with "
            "methods.core.model.checkpoint.save"
        )
    write_plainly(model, folder, **options)
    (Path(folder) / CARD).unlink(missing_ok=True)


def write_plainly(model: PreTrainedModel, folder: str | Path, **options: Any) -> None:
    """Transformers' own ``save_pretrained``, but generation settings are written unchanged.

    Before version 5.23 transformers refuses to write some settings of published backbones. It also
    leaves the single file or the index of an earlier model, which readers would take.
    """
    index = Path(folder) / SAFE_WEIGHTS_INDEX_NAME
    index.unlink(missing_ok=True)
    settings = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        type(model).save_pretrained(model, folder, **options)
    finally:
        model.generation_config = settings
    if index.is_file():
        (Path(folder) / SAFE_WEIGHTS_NAME).unlink(missing_ok=True)
    share(Path(folder))
    settings.to_json_file(Path(folder) / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def check_storable(model: PreTrainedModel) -> None:
    """Check that a model can be read again, and let its config say whether the head is tied.

    Raises:
        ValueError: A parameter has a dtype that cannot be read.
    """
    for name, parameter in model.named_parameters():
        check_dtype(parameter.dtype, DTYPES.values(), f"parameter '{name}'")
    untie_own_head(model)


def untie_own_head(model: PreTrainedModel) -> None:
    """Set ``tie_word_embeddings`` to False if the head differs from the embedding.

    transformers loads such a head although the config says that it is tied. Later code that ties by
    the config, such as lm-eval, would replace the head by the embedding.
    """
    head = model.get_output_embeddings().get_parameter("weight")
    embedding = model.get_input_embeddings().get_parameter("weight")
    if model.config.tie_word_embeddings and head is not embedding:
        model.config.tie_word_embeddings = torch.equal(head, embedding)


def is_plain(model: PreTrainedModel) -> bool:
    """Whether the model's class makes the same modules and shapes from the config alone."""
    with torch.device("meta"):
        stock = type(model)(copy.deepcopy(model.config))
    return odd_part(model, stock) is None


def odd_part(
    model: torch.nn.Module, other: torch.nn.Module, settings: Collection[str] = ()
) -> str | None:
    """The first part that is not as in ``other``.

    Args:
        model: Any model.
        other: One that should be like it.
        settings: Names of attributes whose values must be equal where a module has them.

    Returns:
        Name of a module of another type, of a parameter of another shape, or of an attribute.
    """
    modules = [{name: type(module) for name, module in m.named_modules()} for m in (model, other)]
    shapes = [{name: p.shape for name, p in m.named_parameters()} for m in (model, other)]
    values = [
        {
            f"{place}.{name}": json.dumps(value)
            for place, module in m.named_modules()
            for name, value in vars(module).items()
            if name in settings
        }
        for m in (model, other)
    ]
    pairs: list[list[dict[str, Any]]] = [modules, shapes, values]
    odd = (name for a, b in pairs for name in sorted({*a, *b}) if a.get(name) != b.get(name))
    return next(odd, None)
