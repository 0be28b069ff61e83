"""The models that are timed in turn: dense, a row, and dense without what the row may skip."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from methods import load_method
from methods.core.model.backbone import Backbone, count, shape_config
from methods.core.model.tensors import DTYPES
from methods.core.routing.routed import router_of
from methods.core.surgery.layers import remove_sublayers
from methods.core.training.method import RoutedMethod


class Models(NamedTuple):
    """``row`` is made from ``dense``; ``bare`` is dense without the sublayers of row's units."""

    dense: PreTrainedModel
    row: PreTrainedModel
    bare: PreTrainedModel | None

    @classmethod
    def of(cls, dense: PreTrainedModel, row: PreTrainedModel) -> Models:
        """With a bare model on the weights of ``dense``.

        None for a row that skips nothing, and where attention may be skipped in a model whose
        layers attend in different ways.
        """
        router = router_of(row)
        if router is None:
            return cls(dense, row, None)
        removed = {
            kind: [unit.layer for unit in router.units if unit.kind != other]
            for kind, other in (("attention", "ffn"), ("ffn", "attention"))
        }
        bare = copy.deepcopy(dense, {id(weight): weight for weight in dense.parameters()})
        try:
            return cls(dense, row, remove_sublayers(bare, removed["attention"], removed["ffn"]))
        except ValueError:
            return cls(dense, row, None)


def build_pair(
    row: str, shape: str, budget: float, dtype: str, device: str
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Dense and routed model of a shape; they share every weight of the backbone.

    Raises:
        ValueError: The shape is unknown, or the row has no router, or none without a fit.
    """
    config = shape_config(shape)
    with torch.device(device):
        dense = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    dense.eval().requires_grad_(False)
    # A second causal LM with the dense model's own modules: routing replaces its decoder alone.
    with torch.device("meta"):
        twin = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()
    for name, module in dense.named_children():
        setattr(twin, name, module)
    backbone = Backbone(twin, None, Path(), None, "", count(dense))
    method, structure = load_method(row), {"layers": list[int](), "seed": 0, "threshold": 0.5}
    if isinstance(method, RoutedMethod):
        structure["layers"] = method.layers(backbone, budget)
    try:
        routed = method.build(backbone, structure)
    except KeyError as error:
        raise ValueError(f"row '{row}' needs {error} of a fit; measure it with --model") from error
    if router_of(routed) is None:
        raise ValueError(f"row '{row}' is not routed; measure it with --model")
    return dense, routed.eval()  # type: ignore[return-value]
