"""LoRA: the dense model trained on the same data without skipping, to show what training gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from methods.api import (
    ATTENTION,
    FFN,
    Backbone,
    Cost,
    Data,
    Fitted,
    Method,
    Ranks,
    Request,
    Trainer,
    TrainingParams,
    add_lora,
    candidate_layers,
    check_least,
    lora_sizes,
    nearest_ranks,
    thin,
)

MODULES: dict[str, tuple[str, ...]] = {
    "mlp_candidates": FFN,
    "attn_all": ATTENTION,
    "qv_all": ("q_proj", "v_proj"),
    "mlp_all": FFN,
    "all": (*ATTENTION, *FFN),
}


# Of the HeRo paper's LoRA rows.
RANK = 128


class Lora(Method):
    """Trains low-rank adapters on the frozen backbone, with the data and updates of other rows.

    It skips nothing. HeRo minus LoRA is the cost of skipping; LoRA minus dense is what the data
    bring.

    Formula: y = W x + (alpha / r) B A x, A (r, in), B (out, r), B = 0 at the start.

    Args of ``Params`` (besides those of ``TrainingParams``):
        modules: ``"mlp_candidates"`` (gate, up, down of the latter half of the layers),
            ``"attn_all"``, ``"qv_all"``, ``"mlp_all"`` or ``"all"`` (all seven of every layer).
        rank: r; None: 128, or what ``parameters`` says.
        parameters: How many parameters to train, within 2 %. The matrices have ranks r or r + 1,
            chosen so that the total is nearest: r + 1 for the last ones, by layer and then in the
            order q, k, v, o, gate, up, down. Excludes ``rank``. None: ``rank`` says it.
        alpha: Of the scale alpha / r, one for all matrices; None: r, hence a scale of one.
    Source: Hu et al., LoRA, arXiv 2106.09685; the LoRA rows of the HeRo paper (r = 128).
    Differs from upstream: the HeRo paper does not name the modules of its LoRA rows.
        ``mlp_candidates`` takes the modules that HeRo routes; on Llama-3.1-8B it trains as many
        parameters as HeRo, within 6 %.
    """

    title = "LoRA"
    source = "arXiv 2106.09685"
    kind = "reference"
    trained = True
    stochastic = True
    budgeted = False
    causal = True

    @dataclass(frozen=True)
    class Params(TrainingParams):
        """See the class."""

        modules: Literal["mlp_candidates", "attn_all", "qv_all", "mlp_all", "all"] = (
            "mlp_candidates"
        )
        rank: int | None = None
        parameters: int | None = None
        alpha: int | None = None

        def __post_init__(self) -> None:
            super().__post_init__()
            check_least(self, 1, "rank", "parameters", "alpha")
            if self.rank is not None and self.parameters is not None:
                raise ValueError(
                    f"params 'rank' ({self.rank}) and 'parameters' ({self.parameters}) exclude "
                    "each other: leave one out, or make it null"
                )

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Train the adapters."""
        structure = {"seed": request.seed}
        model = self.build(backbone, structure)
        trainer = Trainer(model, self.params, data.training(), request.seed, request.workdir)
        return Fitted(model, structure, {"training": thin(trainer.run())})

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The frozen backbone with adapters; only these need gradients."""
        params, layers = self.params, self._layers(backbone.layer_count)
        model, projections = backbone.model, MODULES[params.modules]
        rank: int | Ranks = RANK if params.rank is None else params.rank
        if params.parameters is not None:
            rank = nearest_ranks(lora_sizes(model, projections, layers), params.parameters)
        return add_lora(model, projections, layers, rank, params.alpha, structure["seed"])

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """Gradients go down to the first layer with adapters."""
        depth = len(self._layers(backbone.layer_count))
        model = self.build(backbone, {"seed": request.seed})
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return Cost(layers=depth, trained=trained)

    def _layers(self, total: int) -> list[int]:
        """The layers with adapters: all, or the last ones."""
        late = self.params.modules == "mlp_candidates"
        return candidate_layers(total, 0.25) if late else list(range(total))
