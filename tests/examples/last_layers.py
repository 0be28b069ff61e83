"""Last layers: the last layers of the backbone go."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from methods.api import Backbone, Data, Fitted, Method, Request, layers_to_remove, remove_layers


class LastLayers(Method):
    """Deletes the last layers; Formula, Args, Source, Differs from upstream: as in other files."""

    title = "Last layers"
    source = "an example"
    kind = "static"  # reference, static or dynamic
    trained = False  # reads data.training()
    stochastic = False  # the seed changes the result
    budgeted = True  # a skip budget applies
    causal = True  # cached decoding equals the full forward, pads change nothing

    @dataclass(frozen=True)
    class Params:
        """See the class."""

        layers: int | None = None  # None: the number nearest to the budget

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Count the layers that the budget takes."""
        number, trace = layers_to_remove(backbone, request.budget, self.params.layers)
        total = backbone.layer_count
        structure = {"removed_layers": list(range(total - number, total))}
        return Fitted(self.build(backbone, structure), structure, {"budget_search": trace})

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone without them."""
        return remove_layers(backbone.model, structure["removed_layers"])
