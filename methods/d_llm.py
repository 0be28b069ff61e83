"""D-LLM: each token skips whole layers, and leaves no key and value in a layer that it skips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.api import (
    MATCH_KINDS,
    Backbone,
    Context,
    Data,
    Document,
    FixedWeight,
    Gate,
    Gates,
    LoraSpec,
    Penalty,
    Plan,
    Rates,
    Request,
    RoutedMethod,
    Router,
    Target,
    Tokens,
    TrainingParams,
    Unit,
    aim_of,
    attention_kinds,
    block_units,
    check_least,
    decide_gates,
    draw_linear,
    evicting_units,
    generator,
    hashed_noise,
    lay_out,
    logistic_noise,
    mean_deviation,
    sample_gates,
    task_weights,
)

MODULES = {"qkv": ("q_proj", "k_proj", "v_proj"), "qv": ("q_proj", "v_proj")}


class DLLM(RoutedMethod):
    """A router per layer lets each token skip the layer; later tokens cannot attend to it there.

    Routers and LoRA on every layer are trained together; the backbone stays frozen.

    Formula: z = W2 SiLU(RMSNorm(W1 h)), where h (B, T, D) is the raw input of the layer; component
    1 of z stands for run. In training w is sampled with Gumbel noise at T = 1 and has a
    straight-through gradient:
        out = w Block(h) + (1 - w) h; attention weights are multiplied by w of their key and
        normalised again
        loss = LM + lambda(e) mean over tokens of |mean over all layers of w - Omega|
        lambda(e) = lambda_max sin(pi/2 e), with e the progress of training
    The mean leaves out the first tokens, which always run. Inference: a layer runs where
    softmax(z)_1 >= 1/2.

    Args of ``Params`` (besides those of ``TrainingParams``):
        omega: Share of layers that a token should run, a fraction; None: from the budget. If it is
            set, the row is the authors' and nothing is calibrated.
        start_layer: First routed layer, 0-based, at least 1 with eviction; None: the authors' 2 of
            32, in proportion to the depth.
        reserved: How many tokens at the start of a sequence always run.
        evict: Whether tokens leave no key and value in layers that they skip. If not, the cache
            stays complete.
        router: ``"mlp"``; or ``"linear"``: D to 2, as in the re-implementation by the authors of
            SkipGPT. They do not publish its initial values, so they are those of ``"mlp"``. It
            learned little in 500 updates of the demo if half of the layers ran at the start, as in
            SkipGPT.
        router_width: Of the hidden layer; None: the authors' 512 at D = 4096, D / 8 below, at
            least 32.
        penalty: ``"token"``: pulls every token to Omega; ``"batch"``: pulls their mean.
        penalty_weight: lambda_max.
        ramp: ``"sine"``; or ``"constant"``: lambda_max throughout.
        evaluation: ``"argmax"``; or ``"sample"``: noise in inference too, from a hash of the token.
        modules: Projections with LoRA, in every layer: ``"qkv"`` or ``"qv"``.
        rank: Of LoRA.
        lora_alpha: LoRA is scaled by lora_alpha / rank; None: the rank, hence a scale of one.
    Source: Wang et al., D-LLM: A Token Adaptive Computing Resource Allocation Strategy for Large
        Language Models, NeurIPS 2024, and its code.
    Differs from upstream: inference does not run a skipped layer, in prefill neither; the authors
        run it and mask the result. Reserved tokens are counted from the first real token, not from
        column 0. With a budget, Omega follows from the budget and the share of reserved tokens and
        is corrected by what inference skips, and the threshold is calibrated on the probe texts.
        Under ``match: split`` prompt tokens and answer tokens have an Omega each, and
        the threshold is calibrated on answer tokens. Data, tokens in the loss, optimizer and
        initial values of LoRA are those of every trained row, and there is no dropout.
    """

    title = "D-LLM"
    source = "NeurIPS 2024"
    kind = "dynamic"
    trained = True
    stochastic = True
    budgeted = True
    causal = True

    @dataclass(frozen=True)
    class Params(TrainingParams):
        """See the class."""

        omega: float | None = None
        start_layer: int | None = None
        reserved: int = 2
        evict: bool = True
        router: Literal["mlp", "linear"] = "mlp"
        router_width: int | None = None
        penalty: Literal["token", "batch"] = "token"
        penalty_weight: float = 5.0
        ramp: Literal["sine", "constant"] = "sine"
        evaluation: Literal["argmax", "sample"] = "argmax"
        modules: Literal["qkv", "qv"] = "qkv"
        rank: int = 8
        lora_alpha: int | None = None

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.omega is not None and not 0 < self.omega < 1:
                raise ValueError(f"param 'omega' is {self.omega}, must be between 0 and 1")
            if self.start_layer is not None and self.start_layer < int(self.evict):
                raise ValueError(
                    f"param 'start_layer' is {self.start_layer}, must be at least 1 with eviction, "
                    "0 without"
                )
            check_least(self, 1, "router_width", "rank", "lora_alpha")
            check_least(self, 0, "reserved", "penalty_weight")

    knob = "omega"
    parts = "layers"

    @property
    def reserved(self) -> int:
        """Param ``reserved``."""
        return int(self.params.reserved)

    def layers(self, backbone: Backbone, budget: float | None) -> list[int]:
        """All layers from param ``start_layer`` on."""
        total, start = backbone.layer_count, self.params.start_layer
        if start is None:
            start = max(1, round(2 * total / 32))
        elif start >= total:
            raise ValueError(f"param 'start_layer' is {start}, the last layer is {total - 1}")
        return list(range(start, total))

    def units(self, backbone: Backbone, layers: list[int]) -> list[Unit]:
        """Whole layers."""
        return (evicting_units if self.params.evict else block_units)(backbone.model, layers)

    def router(
        self, backbone: Backbone, units: list[Unit], structure: Mapping[str, Any]
    ) -> EvictingRouter:
        """A router per layer."""
        width, eps = int(backbone.config.hidden_size), float(backbone.config.rms_norm_eps)
        return EvictingRouter(units, width, eps, self.params, structure["seed"])

    def lora(self) -> LoraSpec:
        """On every layer."""
        rank, alpha = self.params.rank, self.params.lora_alpha
        return LoraSpec(MODULES[self.params.modules], rank, rank if alpha is None else alpha)

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """A sliding window, which excludes eviction, or too few routed layers for the budget."""
        if self.params.evict and "sliding_attention" in attention_kinds(backbone.config):
            return "it evicts keys and values, which a sliding window does not allow"
        return super().skip_reason(backbone, request)

    def prepare(self, backbone: Backbone, data: Data, plan: Plan) -> None:
        """Omega of each kind of token: the param, or what the budget leaves to run."""
        budget, omegas = plan.request.budget, dict.fromkeys(MATCH_KINDS[plan.request.match], 0.0)
        for kind in omegas:
            if budget is None:
                omegas[kind] = self.params.omega
            else:
                rest = 1 - reserved_share(data.training(), self.reserved, kind)
                if rest <= 0:
                    raise ValueError(
                        f"no {kind} token of the training texts is beyond the {self.reserved} that "
                        "D-LLM reserves; take longer texts, or a smaller param 'reserved'"
                    )
                held = rest * float(plan.shares.sum())
                if held < budget:
                    raise ValueError(
                        f"a budget of {budget:.1%} is more than {kind} tokens may skip, "
                        f"{held:.1%}: of each text D-LLM reserves {self.reserved} tokens; take "
                        "longer texts, or a smaller param 'reserved'"
                    )
                omegas[kind] = omega_for(budget / rest, plan.shares, backbone.layer_count)
        plan.decisions |= {"omega": omegas}

    def weight(self, target: Target | None) -> FixedWeight:
        """lambda_max, because the penalty itself measures the distance to Omega."""
        return FixedWeight(self.params.penalty_weight, target)

    def penalty(self, kind: str, target: Target | None, plan: Plan) -> Penalty:
        """The distance of tokens, or of their mean, from Omega, times the ramp."""
        params, skip = self.params, 1 - plan.decisions["omega"][kind]
        total = plan.structure["layers"][-1] + 1
        sizes = torch.full_like(plan.shares, 1 / total)

        def pull(gates: Gates) -> Tensor:
            aim = aim_of(skip, target)
            if params.penalty == "batch":
                return mean_deviation(gates.soft, gates.counted, sizes, aim)
            return depth_deviation(gates.soft, gates.counted, 1 - aim, total)

        if params.ramp == "constant":
            return pull
        return lambda gates: ramp(gates.progress) * pull(gates)

    def authors_skip(self, rates: Rates) -> float:
        """The share of all layers that a token skips."""
        return sum(1 - share for share in rates.executed) / rates.ledger.dense_layers


def omega_for(budget: float, shares: Tensor, layers: int) -> float:
    """Share of all layers to run so that tokens skip ``budget`` of the dense parameters.

    Args:
        budget: Fraction to skip.
        shares: Share of the dense parameters in each routed layer (U,), all equal.
        layers: Number of all layers.
    """
    return 1 - budget / (float(shares.mean()) * layers)


def reserved_share(
    documents: Sequence[Document], reserved: int, kind: str, sample: int = 2000
) -> float:
    """Share of a kind of tokens that are among the first ``reserved`` of their document.

    Over the first ``sample`` documents; if none has such a token, over the first that have.
    """
    held = {"pooled": "ids", "prompt": "prompting", "answer": "answers"}[kind]
    part = documents[:sample]
    if not any(getattr(document, held) for document in part):
        part = list(islice((one for one in documents if getattr(one, held)), sample))
    rows = lay_out(part, 0, 1.0, task_weights(part) if kind == "answer" else None)
    weights = rows.share(kind) * (rows.positions < reserved)
    return float(weights.sum() / rows.share(kind).sum())


def depth_deviation(soft: Tensor, weights: Tensor, omega: float, layers: int) -> Tensor:
    """Sum over positions of |share of all layers that run - omega|.

    Args:
        soft: Gates (B, U, T) of the routed layers, 0 or 1 with a soft gradient; others always run.
        weights: How much each position counts (B, T); reserved ones do not.
        omega: Share of layers that a token should run.
        layers: Number of all layers.
    """
    use = (soft.sum(dim=1) + layers - soft.shape[1]) / layers
    return ((use - omega).abs() * weights).sum()


def ramp(progress: float) -> float:
    """sin(pi/2 progress): 0 at the first update, 1 after the last."""
    return math.sin(math.pi / 2 * progress)


class EvictingRouter(Router):
    """One router per routed layer, which reads the raw input of the layer.

    Args:
        units: U units.
        width: D.
        eps: Of the RMSNorm; the backbone's.
        params: Of the method.
        seed: Of the initial values, and of the noise in inference (``"sample"``).
    """

    def __init__(
        self, units: list[Unit], width: int, eps: float, params: DLLM.Params, seed: int
    ) -> None:
        super().__init__()
        self.units, self.params, self.seed, self.threshold = units, params, seed, 0.5
        hidden = params.router_width or min(512, max(32, width // 8))
        if params.router == "linear":
            routers: list[nn.Module] = [nn.Linear(width, 2) for _ in units]
        else:
            routers = [
                nn.Sequential(
                    nn.Linear(width, hidden), nn.RMSNorm(hidden, eps=eps), nn.SiLU(),
                    nn.Linear(hidden, 2),
                )
                for _ in units
            ]  # fmt: skip
        self.routers = nn.ModuleList(routers)
        self._initialise()

    def _initialise(self) -> None:
        """Torch's initial values, but output biases of (0.1, 2.0): 0.87 of the layers run."""
        rng = generator(self.seed, "initial values")
        for linear in (m for m in self.modules() if isinstance(m, nn.Linear)):
            draw_linear(linear, rng)
            if linear.out_features == 2 and not linear.bias.is_meta:
                linear.bias.data = torch.tensor([0.1, 2.0])

    def start(self, tokens: Tokens, hidden: Tensor, at: Context) -> tuple[Tensor, Any]:
        """Which tokens always run (B, T); the noise of all units (B, U, T) or None."""
        always = tokens.valid & (tokens.positions < self.params.reserved)
        if at.generator is None and self.params.evaluation == "sample":
            return always, hashed_noise(self.seed, len(self.units), tokens)
        return always, logistic_noise(len(self.units), tokens, at)

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, Any]:
        """Decide from the input of the layer, in float32; reserved tokens run, without gradient."""
        always, noise = state
        with torch.autocast(block_input.device.type, enabled=False):
            logits = self.routers[index](block_input.float())
            difference = logits[..., 1] - logits[..., 0]
            if at.generator is not None:
                execute, soft = sample_gates(difference, noise[:, index], 1.0)
                soft = torch.where(always, 1.0, soft)
                return Gate(soft, "straight-through", execute | always), state
            if noise is not None:
                difference = difference + noise[:, index]
            execute = decide_gates(difference, self.threshold)
            return Gate(execute=execute | always), state
