"""The model class ``skipbench`` of lm-eval; an import of this module registers it."""

from __future__ import annotations

from pathlib import Path

import torch
from lm_eval.api.registry import register_model

from workflows.evaluation.harness import CountingLM
from workflows.evaluation.models import harness_arguments, load_any


@register_model("skipbench")
class SkipbenchLM(CountingLM):
    """Any compressed or plain folder under lm-eval, scored as the score step scores it.

    Args:
        pretrained: The folder.
        backbone: Folder of the dense backbone, if it has moved since the fit.
        batch_size: Fixed; lm-eval's own default, and not ``auto``.
        max_length: Context window; None: the config's.
        device: Without a GPU it is always the CPU.
        share_prefix: Run a context once for all its answers.

    Raises:
        ValueError: The folder cannot be read or has no tokenizer, or an argument is wrong.
    """

    def __init__(
        self,
        pretrained: str,
        backbone: str | None = None,
        batch_size: int | str = 1,
        max_length: int | None = None,
        device: str = "cuda",
        share_prefix: bool = False,
    ) -> None:
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise ValueError(f"batch_size is {batch_size}, must be a number of at least 1")
        own_device = device if torch.cuda.is_available() else "cpu"
        moved = None if backbone is None else Path(backbone)
        super().__init__(
            **harness_arguments(load_any(Path(pretrained), moved, own_device)),
            batch_size=int(batch_size),
            max_length=max_length,
            share_prefix=share_prefix,
        )
