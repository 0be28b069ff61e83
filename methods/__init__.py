"""The methods under comparison: one file (or folder) per paper.

``discover()`` reads the literals of each method class from its syntax tree; it imports neither
torch nor the methods. ``load_method(row)`` imports the one file that a row needs.
``load_model(folder)`` loads the model that a ``fit`` step wrote. After ``import methods``
transformers' ``AutoModelForCausalLM`` can load it too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from methods.discovery import LITERALS, ROOT, Row, discover, find_row, load_method
from methods.order import ORDER
from methods.registration import register_with_transformers

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = [
    "LITERALS", "ORDER", "ROOT", "Row", "discover", "find_row", "load_method", "load_model",
]  # fmt: skip

register_with_transformers()


def load_model(
    folder: str | Path,
    backbone: str | Path | None = None,
    dtype: torch.dtype | str | None = None,
) -> PreTrainedModel:
    """The compressed model that ``fit`` wrote to ``folder``, as a causal LM in eval mode.

    Args:
        folder: Output of the fit step, or of ``save_pretrained`` of a loaded model.
        backbone: Folder of the dense backbone, if it has moved; its hash must match.
        dtype: Of the model, such as ``"bfloat16"``; None: as it is stored. Routers stay in float32.

    Raises:
        ValueError: The folder is no such output, the backbone is another one, or models cannot be
            computed in ``dtype``.
    """
    from methods.core.model.checkpoint import load

    return load(Path(folder), None if backbone is None else Path(backbone), dtype=dtype).model
