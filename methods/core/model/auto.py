"""How ``AutoModelForCausalLM`` reads a folder whose config is a ``SkipbenchConfig``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from methods.core.model.pretrained import SkipbenchConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Options of from_pretrained that are so in every load here, or that the Auto class adds.
ALWAYS_SO = {
    "adapter_kwargs", "local_files_only", "low_cpu_mem_usage", "trust_remote_code",
    "use_safetensors",
}  # fmt: skip
# The revision that lm-eval names for a folder too.
DEFAULT_REVISION = "main"
# What a config has from elsewhere than its file and the user.
OTHER_SOURCES = {"dtype", "_name_or_path", "_commit_hash"}
SEVERAL_DEVICES = ("balanced", "balanced_low_0", "sequential")


class SkipbenchForCausalLM:
    """What ``AutoModelForCausalLM`` calls for such a folder; the model has its family's class."""

    config_class = SkipbenchConfig

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        config: SkipbenchConfig | None = None,
        dtype: Any = None,
        torch_dtype: Any = None,
        device_map: Any = None,
        backbone: str | Path | None = None,
        **options: Any,
    ) -> PreTrainedModel:
        """The model in ``folder``, in eval mode.

        Args:
            folder: Output of the fit step or of ``save_pretrained``.
            config: Of the folder; the Auto class writes some options of a user into it.
            dtype: Of the model, one of torch's or its name; None and ``"auto"``: as it is stored.
            torch_dtype: The older name of ``dtype`` in transformers.
            device_map: None, one device, ``{"": device}`` or ``"auto"``.
            backbone: Where the dense backbone is now, if it was moved.
            options: Of transformers; only those of ``ALWAYS_SO`` may be set.

        Raises:
            ValueError: An option would change the model, or the folder cannot be read.
        """
        # Not at the top: this module is imported while the Auto classes are still being imported.
        from methods.core.model.checkpoint import load

        if not Path(folder).is_dir():
            raise ValueError(
                f"{folder} is no folder here: a model of the hub is fetched first, by hf download"
            )
        if options.get("revision") == DEFAULT_REVISION:
            del options["revision"]
        names = {name for name, value in options.items() if value and name[0] != "_"}
        refused = names - ALWAYS_SO | _changes(config, folder)
        if refused:
            raise ValueError(
                f"{folder} loads as it was saved: option '{min(refused)}' is not supported"
            )
        device = _device(device_map)
        moved = None if backbone is None else Path(backbone)
        return load(Path(folder), moved, device, torch_dtype if dtype is None else dtype).model

    @classmethod
    def _from_config(cls, config: SkipbenchConfig, **options: Any) -> NoReturn:
        """What ``from_config`` calls.

        Raises:
            ValueError: Always.
        """
        raise ValueError("a config alone makes no compressed model: use from_pretrained")


def _changes(config: SkipbenchConfig | None, folder: str | Path) -> set[str]:
    """The options that the Auto class has written into the config of a folder."""
    if config is None:
        return set()
    stored = vars(SkipbenchConfig.from_pretrained(folder))
    changed = {name for name, value in vars(config).items() if stored.get(name) != value}
    return {n.removeprefix("_").removesuffix("_internal") for n in changed - OTHER_SOURCES}


def _device(device_map: Any) -> str:
    """The one device of a device map.

    Raises:
        ValueError: The map spreads the model over several devices.
    """
    if device_map == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if isinstance(device_map, dict) and set(device_map) == {""}:
        device_map = device_map[""]
    if isinstance(device_map, dict) or device_map in SEVERAL_DEVICES:
        raise ValueError(f"device_map {device_map} spreads a model that goes to one device")
    if isinstance(device_map, int):
        return f"cuda:{device_map}"
    return "cpu" if device_map is None else str(device_map)
