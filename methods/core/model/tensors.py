"""Safetensors files: names, shapes and dtypes from their headers, and tensors after checks."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from methods.core.jsonfile import first_line
from methods.core.model.finite import check_finite

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The names of these dtypes in a header.
STORED = ("F32", "BF16", "F16")


def read_shapes(file: Path) -> dict[str, list[int]]:
    """Name -> shape of the tensors in a file.

    Raises:
        ValueError: The file is damaged, or a tensor has a dtype that is not in ``DTYPES``.
    """
    shapes: dict[str, list[int]] = {}
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                part = tensors.get_slice(name)
                check_dtype(part.get_dtype(), STORED, f"{file}: tensor '{name}'")
                shapes[name] = list(part.get_shape())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged or incomplete: {first_line(error)}") from error
    return shapes


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """The tensors in a file.

    Raises:
        ValueError: See :func:`read_shapes`; or a number is NaN or infinite.
    """
    read_shapes(file)
    try:
        # Tensors of a mapped file start at odd addresses, which changes the last bits of products.
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged or incomplete: {error}") from error
    check_finite(tensors, str(file))
    return tensors


def share(folder: Path) -> None:
    """Give files of weights the mode of any new file: safetensors lets only their owner read."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o666 & ~mask)


def check_dtype(dtype: object, allowed: object, what: str) -> None:
    """Refuse a dtype that is not supported.

    Args:
        dtype: Of torch or of a header.
        allowed: The supported ones, in the same form.
        what: The tensor, for the message.

    Raises:
        ValueError: It is not allowed.
    """
    if dtype not in allowed:  # type: ignore[operator]
        raise ValueError(
            f"{what} is in {dtype}, and weights must be in {', '.join(DTYPES)}: "
            "dequantize or convert the model first"
        )
