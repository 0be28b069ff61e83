"""A dense and a routed model of a published shape, with random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from methods import load_method
from methods.core.model.backbone import Backbone, count, shape_config
from methods.core.model.tensors import DTYPES
from methods.core.routing.routed import router_of
from methods.core.training.method import RoutedMethod


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
    return dense, routed  # type: ignore[return-value]
