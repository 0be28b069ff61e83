"""Lets transformers' Auto classes read compressed models, without importing transformers.

The import takes seconds and loads torch, and a job list needs neither. So the types are registered
at once if the modules of the Auto classes are loaded, or else when they are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType

CONFIGS = "transformers.models.auto.configuration_auto"
MODELS = "transformers.models.auto.modeling_auto"


def register_with_transformers() -> None:
    """Register the types now if the Auto classes are loaded, or else once they are."""
    for name in (CONFIGS, MODELS):
        if name in sys.modules:
            _register(sys.modules[name])
    if MODELS not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register(module: ModuleType) -> None:
    from methods.core.model.auto import SkipbenchForCausalLM
    from methods.core.model.pretrained import SkipbenchConfig

    if module.__name__ == CONFIGS:
        kind = SkipbenchConfig.model_type
        module.AutoConfig.register(kind, SkipbenchConfig, exist_ok=True)
    else:
        causal = module.AutoModelForCausalLM
        causal.register(SkipbenchConfig, SkipbenchForCausalLM, exist_ok=True)


class _Loader(SourceFileLoader):
    """Loads a module of the Auto classes, then registers the types with it."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _register(module)


class _Finder(MetaPathFinder):
    """Finds the two modules of the Auto classes, where Python finds them, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in (CONFIGS, MODELS) else None
        if spec is None or spec.origin is None:
            return None
        loader = _Loader(fullname, spec.origin)
        return spec_from_file_location(fullname, spec.origin, loader=loader)
