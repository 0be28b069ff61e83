"""How ``AutoModelForCausalLM`` reads a folder whose config is a ``SkipbenchConfig``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from methods.core.model.pretrained import SkipbenchConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Options of from_pretrained that are accepted and have no effect here.
WITHOUT_EFFECT = {
    "adapter_kwargs", "cache_dir", "config", "force_download", "local_files_only",
    "low_cpu_mem_usage", "proxies", "revision", "token", "trust_remote_code", "use_safetensors",
}  # fmt: skip


class SkipbenchForCausalLM:
    """What ``AutoModelForCausalLM`` calls for such a folder; the model has its family's class."""

    config_class = SkipbenchConfig

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        dtype: Any = None,
        torch_dtype: Any = None,
        device_map: Any = None,
        backbone: str | Path | None = None,
        **options: Any,
    ) -> PreTrainedModel:
        """The model in ``folder``, in eval mode.

        Args:
            folder: Output of the fit step or of ``save_pretrained``.
            dtype: Of the model, one of torch's or its name; None and ``"auto"``: as it is stored.
            torch_dtype: The older name of ``dtype`` in transformers.
            device_map: None, one device, ``{"": device}`` or ``"auto"``.
            backbone: Where the dense backbone is now, if it was moved.
            options: Of transformers; only those of ``WITHOUT_EFFECT`` may be set.

        Raises:
            ValueError: An option would change the model, or the folder cannot be read.
        """
        # Not at the top: this module is imported while the Auto classes are still being imported.
        from methods.core.model.checkpoint import load

        names = {name for name, value in options.items() if value and name[0] != "_"}
        if names - WITHOUT_EFFECT:
            name = min(names - WITHOUT_EFFECT)
            raise ValueError(f"{folder} loads as it was saved: option '{name}' is not supported")
        device = _device(device_map)
        moved = None if backbone is None else Path(backbone)
        return load(Path(folder), moved, device, torch_dtype if dtype is None else dtype).model


def _device(device_map: Any) -> str:
    """The one device of a device map.

    Raises:
        ValueError: The map spreads the model over several devices.
    """
    if device_map == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if isinstance(device_map, dict):
        if set(device_map) != {""}:
            raise ValueError(f"device_map {device_map} spreads a model that goes to one device")
        device_map = device_map[""]
    if isinstance(device_map, int):
        return f"cuda:{device_map}"
    return "cpu" if device_map is None else str(device_map)
