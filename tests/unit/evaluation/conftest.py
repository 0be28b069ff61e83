"""A routed toy and tasks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from methods.core.routing.routed import route
from methods.core.routing.router import ffn_units
from methods.random_skip import RandomRouter
from tests.toys.models import make_model
from tests.toys.tasks import make_tasks


@pytest.fixture(scope="module")
def model() -> Any:
    """A routed toy that writes EOS, stop words and long answers."""
    made = make_model(seed=0)
    return route(made, RandomRouter(ffn_units(made, [1, 2, 3, 4, 5]), seed=9, skips=2.3))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tasks(tmp_path_factory.mktemp("many"), items=30)
