"""The dense backbone, unchanged: the reference of every ratio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from methods.api import Backbone, Cost, Data, Fitted, Method, Request


class Dense(Method):
    """Every parameter runs for every token.

    Formula: the backbone's own forward pass.
    Source: the reference row of every table.
    """

    title = "Dense"
    source = "the backbone itself"
    kind = "reference"
    trained = False
    stochastic = False
    budgeted = False
    causal = True

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Return the backbone as it is."""
        return Fitted(self.build(backbone, {}), structure={}, decisions={})

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """Nothing."""
        return Cost()

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone, frozen, so that a fit stores no weights."""
        return backbone.model.requires_grad_(False)
