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
    count,
    decoder,
    ffn,
    ffn_units,
    generator,
    layers,
    route,
    router_of,
    score_answers,
    shortfall,
    unit_shares,
    weigh,
)
from methods.ffn_skipllm.router import SkippingRouter, ffn_turns

# Documents on which settings are compared; the one that is chosen is calibrated on all.
COMPARED = 512


class Setting(NamedTuple):
    """Layers at the start and at the end whose FFNs always run, FFNs that are skipped in a run."""

    first: int
    last: int
    run_length: int

    def most_skipped(self, total: int) -> int:
        """FFNs that a token may skip in ``total`` layers: every run takes one that is executed."""
        middle = max(0, total - self.first - self.last)
        return middle - math.ceil(middle / (self.run_length + 1))


class FfnSkipLlm(Method):
    """Once an FFN hardly turns a token's residual stream, the next few FFNs are skipped for it.

    Attention always runs, nothing replaces a skipped FFN, nothing is trained.

    Formula: x enters the FFN of layer l behind attention and y = x + FFN(norm(x)). In the middle
    layers s <= l < e, for tokens at positions p >= w: where the FFN ran and cos(x, y) >= tau, the
    FFNs of the next k layers of the middle are skipped; then one runs and is measured again.

    Its authors published no code, and what is known of the text does not settle k, s and e. What is
    not pinned is chosen on validation documents, as learning rates are: one after the other, k, s
    and L - e take the value at which most answers are right (then: the loss least) at the budget.

    Args of ``Params``:
        tau: Cosine from which on FFNs are skipped; None: searched for the budget. Pinned it needs
            ``run_length`` and ignores the budget.
        run_length: k; None: 8, 4, 2 and 1 are tried.
        cold: s and L - e, layers at the start and at the end whose FFNs always run. None:
            round(L / 8) and round(L / 16), where round(L / 16) and round(L / 4) are tried in place
            of the former and 0 in place of the latter unless tau is pinned.
        warmup: w, first positions of a sequence whose FFNs all run; None: 5 % of the mean length
            of the probe documents, at least one (the paper's 25 to 30 tokens are 5 to 10 % of its
            longest sequences).

    Memory: the model. Time: some five runs through 512 probe documents for each of seven settings.

    Source: Jaiswal et al., FFN-SkipLLM: A Hidden Gem for Autoregressive Decoding with Adaptive Feed
        Forward Skipping, arXiv 2404.03865.
    Differs from upstream: there is no code to differ from; prefill and decoding follow one rule,
        and w counts from the start of a sequence, so that decoding with a cache equals a full
        forward; tau is searched for a budget of parameters; k, s, e and w as above.
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
            """Check ranges.

            Raises:
                ValueError: A number is out of its range.
            """
            check_least(self, 1, "run_length")
            check_least(self, 0, "warmup")
            if self.cold is not None and (len(self.cold) != 2 or min(self.cold) < 0):
                raise ValueError(f"param 'cold' is {self.cold}, must be two numbers from 0 or null")
            if self.tau is not None and self.run_length is None:
                raise ValueError("param 'tau' is pinned, so param 'run_length' must be")

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """Something must say how much is skipped, and enough FFNs must be there to skip."""
        if self.params.tau is not None:
            return None
        if request.budget is None:
            return "neither a budget nor param 'tau' says how much to skip"
        total = backbone.layer_count
        values = self._alternatives(total)
        widest = Setting(min(values["first"]), min(values["last"]), max(values["run_length"]))
        held = widest.most_skipped(total) * count(ffn(layers(backbone.model)[0]))
        return shortfall("skippable FFNs", held / backbone.parameters, request.budget)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Choose what is not pinned and calibrate tau on the probe documents."""
        values = self._alternatives(backbone.layer_count)
        turns = ffn_turns(backbone, data.calibration())
        study = Study(self, backbone, turns, self._warmup(data.probe()))
        decisions: dict[str, Any] = {"choice": []}
        setting = Setting(**{name: several[0] for name, several in values.items()})
        if self.params.tau is None and max(map(len, values.values())) > 1:
            setting = study.choose(setting, values, Trial.of(data, request))
            decisions["choice"] = [one._asdict() | told for one, told in study.tried.items()]
        router, structure = study.routed(setting)
        if self.params.tau is None:
            decisions |= calibrate(backbone.model, data, study.shares(router), request)
            structure["tau"] = router.tau
        decisions |= {key: structure[key] for key in structure if key != "spread"}
        middle = range(*structure["region"])
        medians = [1 - float(turned.median()) for turned in turns]
        decisions["similarity"] = [c if n in middle else None for n, c in enumerate(medians)]
        return Fitted(backbone.model, structure, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The routed backbone; nothing is trained, so nothing asks for a gradient."""
        units = ffn_units(backbone.model, range(*structure["region"]))
        given = {key: value for key, value in structure.items() if key != "region"}
        return route(backbone.model.requires_grad_(False), SkippingRouter(units, **given))

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """Seven settings are tried, each some five times, and the best is calibrated."""
        return Cost(passes=1, probe_passes=7 * 5 + 7)

    def authors_skip(self, rates: Rates) -> float:
        """Skipped FFNs over layers."""
        return sum(1 - ran for ran in rates.executed) / rates.ledger.dense_layers

    def _alternatives(self, total: int) -> dict[str, list[int]]:
        """Field of a setting -> the values to try, first the one to begin with.

        Raises:
            ValueError: Param ``cold`` leaves no layer.
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

    def _warmup(self, documents: Sequence[Document]) -> int:
        """Param ``warmup``, or its default for documents such as these."""
        if self.params.warmup is not None:
            return int(self.params.warmup)
        return max(1, round(0.05 * sum(len(d.ids) for d in documents) / len(documents)))


class Trial(NamedTuple):
    """What settings are compared on: documents that tau is searched on, documents with answers."""

    probe: WeightedDocuments
    validation: Sequence[Document]
    budget: float

    @classmethod
    def of(cls, data: Data, request: Request) -> Trial:
        """A fixed draw of documents: evenly spaced ones could all be of a few tasks."""
        assert request.budget is not None
        parts = []
        for texts in (data.probe(), data.validation()):
            drawn = torch.randperm(len(texts), generator=generator(0, "documents to compare on"))
            parts.append([texts[n] for n in drawn[:COMPARED].tolist()])
        kind = "answer" if request.match == "split" else "pooled"
        return cls(weigh(parts[0], kind), parts[1], request.budget)

    def behind(self, position: int) -> float:
        """Weighted share of the probe's tokens that stand at ``position`` or behind it."""
        weights = self.probe.weights
        return float(sum(w[position:].sum() for w in weights) / sum(w.sum() for w in weights))


class Study:
    """Routes a backbone by one setting after another.

    Args:
        method: Whose params hold.
        backbone: Dense.
        turns: What the FFN of each layer turns tokens by, L tensors (N,).
        warmup: w.
    """

    def __init__(
        self, method: FfnSkipLlm, backbone: Backbone, turns: Sequence[Tensor], warmup: int
    ) -> None:
        self.method, self.backbone, self.turns, self.warmup = method, backbone, turns, warmup
        self.dense = decoder(backbone.model)
        self.tried: dict[Setting, dict[str, float]] = {}

    def routed(self, setting: Setting) -> tuple[SkippingRouter, dict[str, Any]]:
        """The router of a setting, now in the backbone, and its structure."""
        region = [setting.first, len(self.turns) - setting.last]
        turned = torch.cat(list(self.turns[slice(*region)]))
        # Not 0, where tau would have no scale.
        spread = max(float(turned.median()), torch.finfo(torch.float32).eps)
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
        """Of the dense parameters in each unit (U,)."""
        return unit_shares(router.units, self.backbone.parameters)

    def choose(
        self, setting: Setting, values: Mapping[str, Sequence[int]], trial: Trial
    ) -> Setting:
        """The best setting, found field by field; those that cannot reach the budget stay out."""

        def merit(one: Setting) -> tuple[bool, float, float]:
            found = self.tried[one]
            return abs(found["skip"] - trial.budget) < 0.01, found["right"], -found["loss"]

        for name, several in values.items():
            for other in [setting._replace(**{name: value}) for value in several]:
                self._try(other, trial)
            if self.tried:
                setting = max(self.tried, key=merit)
        return setting

    def _try(self, setting: Setting, trial: Trial) -> None:
        """Search tau for the budget and measure the answers."""
        router, _ = self.routed(setting)
        shares = self.shares(router)
        most = setting.most_skipped(len(self.turns)) * float(shares.max())
        if setting in self.tried or most * trial.behind(self.warmup) < trial.budget:
            return
        model = self.backbone.model
        _, rates = calibrate_threshold(model, router, trial.probe, shares, trial.budget)
        right, loss = score_answers(model, trial.validation)
        found = {"tau": router.tau, "skip": float(rates @ shares), "right": right, "loss": loss}
        self.tried[setting] = found
