"""FFN-SkipLLM: a token skips feed-forward networks once one of them hardly changed it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from methods.api import (
    Backbone,
    Cost,
    Data,
    Document,
    Fitted,
    Method,
    Rates,
    Request,
    Router,
    WeightedDocuments,
    calibrate,
    calibrate_threshold,
    check_least,
    decoder,
    ffn_units,
    generator,
    route,
    router_of,
    score_answers,
    shortfall,
    unit_shares,
    weigh,
)
from methods.ffn_skipllm.router import SkippingRouter, ffn_turns

# Settings are compared on so many documents; the best is then calibrated on all of them.
SAMPLE = 512


class Setting(NamedTuple):
    """How many first and last layers always run their FFN; how many FFNs are skipped in a row."""

    first: int
    last: int
    run_length: int

    def most_skips(self, total: int) -> int:
        """How many FFNs of ``total`` layers a token can skip: one must run before each row."""
        middle = max(0, total - self.first - self.last)
        return middle - math.ceil(middle / (self.run_length + 1))


class FfnSkipLlm(Method):
    """Once an FFN hardly turns the hidden states of a token, the token skips the next few FFNs.

    Attention always runs. Nothing replaces a skipped FFN, and nothing is trained.

    Formula: x are the hidden states that enter the FFN of layer l, after attention, and
    y = x + FFN(norm(x)). The rule holds in the middle layers s <= l < e and for tokens at positions
    p >= w. If the FFN ran and cos(x, y) >= tau, the token skips the FFNs of the next k middle
    layers; then an FFN runs and is measured again.

    The authors published no code, and the text does not fix k, s and e. Params that are None are
    chosen on validation documents, as learning rates are. First k, then s, then L - e takes the
    value that meets the budget within a point and gives most right answers; of equal values the one
    with the lowest loss.

    Args of ``Params``:
        tau: The cosine from which FFNs are skipped; None: searched for the budget. If tau is set,
            ``run_length`` must be too, and the budget is ignored.
        run_length: k; None: 8, 4, 2 and 1 are tried.
        cold: s and L - e: how many first and last layers always run their FFN. None: round(L / 8)
            and round(L / 16). Unless tau is set, round(L / 16) and round(L / 4) are also tried for
            s, and 0 for L - e.
        warmup: w: at the first w positions of a sequence all FFNs run. None: 5 % of the mean length
            of the probe documents, at least 1. (The paper's 25 to 30 tokens are 5 to 10 % of its
            longest sequences.)

    Memory: the model. Time: about five runs through 512 probe documents for each of seven settings.

    Source: Jaiswal et al., FFN-SkipLLM: A Hidden Gem for Autoregressive Decoding with Adaptive Feed
        Forward Skipping, arXiv 2404.03865.
    Differs from upstream: there is no code to compare with. Prefill and decoding follow the same
        rule, and w counts from the start of a sequence, so that cached decoding equals the full
        forward pass. tau is searched for a budget in parameters; k, s, e and w as above.
    """

    title = "FFN-SkipLLM"
    source = "arXiv 2404.03865"
    kind = "dynamic"
    trained = False
    stochastic = False
    budgeted = True
    causal = True

    @dataclass(frozen=True)
    class Params:
        """See the class."""

        tau: float | None = None
        run_length: int | None = None
        cold: tuple[int, int] | None = None
        warmup: int | None = None

        def __post_init__(self) -> None:
            check_least(self, 1, "run_length")
            check_least(self, 0, "warmup")
            if self.cold is not None and (len(self.cold) != 2 or min(self.cold) < 0):
                raise ValueError(f"param 'cold' is {self.cold}, must be two numbers from 0 or null")
            if self.tau is not None and self.run_length is None:
                raise ValueError("param 'tau' is pinned, so param 'run_length' must be")

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """Neither a budget nor tau is set, or too few FFNs may be skipped, warm-up left out."""
        if self.params.tau is not None:
            return None
        if request.budget is None:
            return "neither a budget nor param 'tau' says how much to skip"
        total = backbone.layer_count
        values = self._alternatives(total)
        most = widest(values).most_skips(total) * ffn_units(backbone.model, [0])[0].parameters
        return shortfall("skippable FFNs", most / backbone.parameters, request.budget)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Choose the params that are None and calibrate tau on the probe documents."""
        values = self._alternatives(backbone.layer_count)
        turns = ffn_turns(backbone, data.calibration())
        study = Study(self, backbone, turns, self._warmup(data))
        decisions: dict[str, Any] = {"choice": []}
        setting = Setting(**{name: several[0] for name, several in values.items()})
        if self.params.tau is None and max(map(len, values.values())) > 1:
            setting = study.choose(setting, values, Trial.of(data, request))
            decisions["choice"] = [one._asdict() | result for one, result in study.results.items()]
        router, structure = study.route(setting)
        if self.params.tau is None:
            decisions |= calibrate(backbone.model, data, study.shares(router), request)
            structure["tau"] = router.tau
        decisions |= {key: structure[key] for key in structure if key != "spread"}
        middle = range(*structure["region"])
        medians = [1 - float(by_token.median()) for by_token in turns]
        decisions["similarity"] = [c if n in middle else None for n, c in enumerate(medians)]
        return Fitted(backbone.model, structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The routed backbone; nothing is trained, so nothing needs a gradient."""
        units = ffn_units(backbone.model, range(*structure["region"]))
        options = {key: value for key, value in structure.items() if key != "region"}
        return route(backbone.model.requires_grad_(False), SkippingRouter(units, **options))

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """Seven settings are tried, each some five times, and the best is calibrated."""
        return Cost(passes=1, probe_passes=7 * 5 + 7)

    def authors_skip(self, rates: Rates) -> float:
        """FFNs that were skipped over all layers."""
        return sum(1 - ran for ran in rates.executed) / rates.ledger.dense_layers

    def _alternatives(self, total: int) -> dict[str, list[int]]:
        """Field of a setting -> the values to try; the first is the default.

        Raises:
            ValueError: Param ``cold`` leaves no layer to skip.
        """
        run_length, cold = self.params.run_length, self.params.cold
        if cold is not None and sum(cold) >= total:
            raise ValueError(f"param 'cold' is {cold}, must leave some of {total} layers")
        sixteenth, eighth, quarter = (round(total / part) for part in (16, 8, 4))
        return {
            "run_length": [8, 4, 2, 1] if run_length is None else [run_length],
            "first": [eighth, sixteenth, quarter] if cold is None else [cold[0]],
            "last": [sixteenth, 0] if cold is None else [cold[1]],
        }

    def _warmup(self, data: Data) -> int:
        """Param ``warmup``, or its default for the probe documents."""
        if self.params.warmup is not None:
            return int(self.params.warmup)
        documents = data.probe()
        return max(1, round(0.05 * sum(len(d.ids) for d in documents) / len(documents)))


def widest(values: Mapping[str, Sequence[int]]) -> Setting:
    """The setting that may skip most FFNs."""
    return Setting(min(values["first"]), min(values["last"]), max(values["run_length"]))


class Trial(NamedTuple):
    """What settings are compared on: probe documents for tau, validation documents for answers."""

    probe: WeightedDocuments
    validation: Sequence[Document]
    budget: float

    @classmethod
    def of(cls, data: Data, request: Request) -> Trial:
        """A fixed random sample of documents: evenly spaced ones could be of a few tasks only."""
        assert request.budget is not None
        parts = []
        for texts in (data.probe(), data.validation()):
            order = torch.randperm(len(texts), generator=generator(0, "documents to compare on"))
            parts.append([texts[n] for n in order[:SAMPLE].tolist()])
        kind = "answer" if request.match == "split" else "pooled"
        return cls(weigh(parts[0], kind), parts[1], request.budget)

    def share_from(self, position: int) -> float:
        """Weighted share of the probe's tokens at ``position`` or later."""
        weights = self.probe.weights
        return float(sum(w[position:].sum() for w in weights) / sum(w.sum() for w in weights))


class Study:
    """Routes a backbone by one setting after another, and keeps their results.

    Args:
        method: With its params.
        backbone: Dense.
        turns: Of :func:`ffn_turns`.
        warmup: w.
    """

    def __init__(
        self, method: FfnSkipLlm, backbone: Backbone, turns: Sequence[Tensor], warmup: int
    ) -> None:
        self.method, self.backbone, self.turns, self.warmup = method, backbone, turns, warmup
        self.dense = decoder(backbone.model)
        self.results: dict[Setting, dict[str, float]] = {}

    def route(self, setting: Setting) -> tuple[SkippingRouter, dict[str, Any]]:
        """Put the router of a setting into the backbone; the router and its structure."""
        region = [setting.first, len(self.turns) - setting.last]
        middle = torch.cat(list(self.turns[slice(*region)]))
        # Above 0, because tau is measured in units of the spread.
        spread = max(float(middle.median()), torch.finfo(torch.float32).eps)
        pinned = self.method.params.tau
        structure = {
            "region": region,
            "run_length": setting.run_length,
            "warmup": self.warmup,
            "tau": 1 - spread if pinned is None else pinned,
            "spread": spread,
        }
        self.backbone.model.model = self.dense
        router = router_of(self.method.build(self.backbone, structure))
        assert isinstance(router, SkippingRouter)
        return router, structure

    def shares(self, router: Router) -> Tensor:
        """The share of the dense parameters in each unit (U,)."""
        return unit_shares(router.units, self.backbone.parameters)

    def choose(
        self, setting: Setting, values: Mapping[str, Sequence[int]], trial: Trial
    ) -> Setting:
        """The best setting, chosen field by field among those that can reach the budget.

        Where only all fields together reach it, the widest.
        """

        def merit(one: Setting) -> tuple[bool, float, float]:
            result = self.results[one]
            return abs(result["skip"] - trial.budget) < 0.01, result["right"], -result["loss"]

        for name, several in values.items():
            for other in [setting._replace(**{name: value}) for value in several]:
                self._try(other, trial)
            if self.results:
                setting = max(self.results, key=merit)
        return setting if self.results else widest(values)

    def _try(self, setting: Setting, trial: Trial) -> None:
        """Search tau for the budget and measure the answers."""
        router, _ = self.route(setting)
        shares = self.shares(router)
        most = setting.most_skips(len(self.turns)) * float(shares.max())
        if setting in self.results or most * trial.share_from(self.warmup) < trial.budget:
            return
        model = self.backbone.model
        _, rates = calibrate_threshold(model, router, trial.probe, shares, trial.budget)
        right, loss = score_answers(model, trial.validation)
        result = {"tau": router.tau, "skip": float(rates @ shares), "right": right, "loss": loss}
        self.results[setting] = result
