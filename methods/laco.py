"""LaCo: merge runs of layers into one while the last hidden states stay close."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from tqdm import tqdm
from transformers import PreTrainedModel

from methods.api import (
    Backbone,
    Batch,
    Cost,
    Data,
    Fitted,
    Method,
    Request,
    check_least,
    decoder,
    layers,
    layers_alike,
    layers_shortfall,
    layers_to_remove,
    merge_layers,
    remove_layers,
    replace_layers,
)

HALVINGS = 12


class LaCo(Method):
    """Walks from late to early layers and merges C of them into one if the model changes little.

    It compares the last hidden states of some sentences with those of the dense model. Nothing is
    trained.

    Formula: M is the dense model, M* the current one, F the last hidden states after the final
    norm, flattened over all tokens of a sentence. Start at layer l = H - C. As a trial, merge the
    m = min(C - 1, len(M*) - l - 1) layers after l into l. If the mean over sentences of
    cos(F_M, F_trial) > T, the trial becomes M* and l falls by I; else l falls by 1. Stop at l < Lw.
    The paper's merge is theta*_l = theta_l + sum over k = 1..m of (theta_{l+k} - theta_l). The
    authors' notebook overwrites theta_l while it adds. The result is theta_{l+m}: layers l to
    l+m-1 are dropped, and layer l+m takes the norms of l. Both are equal for m = 1.

    Args of ``Params``:
        merge: ``"reference"``: the notebook's merge, which made the published numbers; ``"rdsc"``:
            the paper's formula.
        C: Layers per merge. None: C - 1 divides the number of layers to remove and needs at least
            two merges; of such C the nearest to L / 8 (the paper's 4 of 32), of two the larger.
            With C = 2 both formulas are equal.
        H: The first trial merges the last C of layers 0 to H - 1. None: L - 1, as the
            notebook's 39 of 40, and at least C.
        Lw: Lowest layer to merge into; 0 in the notebook.
        I: How far l falls after a merge; 1 in the notebook.
        T: Threshold. None: the highest that removes the number of layers, by halving [0, 1]; if
            even 0 removes too few, by halving [-1, 0].
        layers: Number of layers to remove; None: the number nearest to the budget. The walk ends
            at this number, and the last merge may be smaller. With T pinned and ``layers`` None the
            budget is ignored and the walk goes on to Lw.
        clamp: Whether l <= len(M*) - C after a merge, as in the paper; the notebook lacks it.
        sentences: How many calibration documents are used, from the first on; None: all.
        length: Tokens taken from the start of each document (at most ``max_length``); shorter
            documents are left out. None: whole documents.

    The defaults of H, Lw and I are the notebook's, because its merge ran with them; counted from
    the ends they fit any L. The paper has H = L, Lw = 1, I = 2.

    Memory: the model, the last hidden states of the sentences and the weights of each merged layer
    (436 MB at 8B in bfloat16 under rdsc; reference shares tensors and adds none): about 17 GB.

    Source: Yang et al., LaCo: Large Language Model Pruning via Layer Collapse, arXiv 2402.11187,
        algorithm 1.
    Differs from upstream: a trial shares all modules with the model except the merged layer.
        Documents are batched, and pads do not count. Sentences come from the calibration documents.
        rdsc adds up in float32. T is searched for a number of layers, at which the walk ends.
    """

    title = "LaCo ({merge})"
    source = "arXiv 2402.11187"
    kind = "static"
    trained = False
    stochastic = False
    budgeted = True
    causal = True

    @dataclass(frozen=True)
    class Params:
        """See the class. The authors use 5 sentences of 8 to 25 tokens; the letters are theirs."""

        merge: Literal["reference", "rdsc"] = "reference"
        C: int | None = None
        H: int | None = None
        Lw: int = 0
        I: int = 1  # noqa: E741
        T: float | None = None
        layers: int | None = None
        clamp: bool = False
        sentences: int | None = None
        length: int | None = None

        def __post_init__(self) -> None:
            check_least(self, 2, "C")
            check_least(self, 1, "I", "sentences", "length")
            check_least(self, 0, "Lw")
            check_least(self, -1, "T")

    def skip_reason(self, backbone: Backbone, request: Request) -> str | None:
        """Nothing says how much to merge, or the layers are of different kinds."""
        params = self.params
        if backbone.layer_count < 2:
            return "it merges layers, and there is only one"
        if not layers_alike(backbone.config):
            return "its layers attend in different ways (layer_types), merging needs equal ones"
        if request.budget is None and params.layers is None and None in (params.C, params.T):
            return "neither a budget nor param 'layers', nor 'C' and 'T', say what to merge"
        if request.budget is None or params.layers is not None or None not in (params.C, params.T):
            return None
        return layers_shortfall(backbone, request.budget)

    def fit(self, backbone: Backbone, data: Data, request: Request) -> Fitted:
        """Walk with the pinned threshold, or search the threshold that meets the target."""
        params = self.params
        target: int | None = None
        sizes: list[dict[str, float]] = []
        if params.T is None or params.C is None or params.layers is not None:
            target, sizes = layers_to_remove(backbone, request.budget, params.layers)
        settings = self._settings(backbone.layer_count, target)
        texts = list(data.calibration(rows=params.sentences, length=params.length, opening=True))
        trials = Trials(backbone.model, texts, params.merge, params.clamp)
        if params.T is None:
            assert target is not None
            walk, thresholds = search(trials, settings, target)
        else:
            stop = None if params.layers is None else target
            walk, thresholds = trials.walk(settings, stop), []
        decisions = {
            "settings": dataclasses.asdict(walk.settings),
            "merges": walk.merges,
            "groups": walk.groups,
            "budget_search": sizes,
            "threshold_search": thresholds,
        }
        origins = [group[0] for group in walk.groups]
        model = replace_layers(backbone.model, walk.stack, origins)
        removed = [layer for group in walk.groups for layer in group[1:]]
        return Fitted(model, {"removed_layers": removed}, decisions)

    def build(self, backbone: Backbone, structure: Mapping[str, Any]) -> nn.Module:
        """The backbone with one layer per group of merged ones; a file fills in its weights."""
        return remove_layers(backbone.model, structure["removed_layers"])

    def cost(self, backbone: Backbone, request: Request) -> Cost:
        """About one trial for every layer: walks at other thresholds repeat most of them."""
        params = self.params
        return Cost(backbone.layer_count, texts=params.sentences, length=params.length)

    def _settings(self, total: int, target: int | None) -> Settings:
        """The paper's letters, with defaults in place of None.

        Raises:
            ValueError: The first window does not lie inside the model.
        """
        params = self.params
        width = params.C
        if width is None:
            assert target is not None
            width = merge_width(target, total)
        if width > total:
            raise ValueError(f"param 'C' is {width}, must be at most {total}, the number of layers")
        high = max(width, total - 1) if params.H is None else params.H
        if not width <= high <= total:
            raise ValueError(f"param 'H' is {high}, must be from C = {width} to {total}")
        return Settings(width, high, params.Lw, params.I, params.T or 0.0)


@dataclass(frozen=True)
class Settings:
    """The paper's letters, as in the params of :class:`LaCo`."""

    C: int
    H: int
    Lw: int
    I: int  # noqa: E741
    T: float


@dataclass
class Walk:
    """The state of one walk.

    Args:
        settings: Of the walk.
        stack: The current layers.
        groups: The original layers that each of them stands for, 0-based.
        merges: Every trial in its order, as JSON rows: ``layer`` is l in the current model,
            ``merged`` is m, ``group`` are the original layers of the merged one, ``accepted`` says
            whether it stayed.
    """

    settings: Settings
    stack: list[nn.Module]
    groups: list[list[int]]
    merges: list[dict[str, Any]] = field(default_factory=list)

    @property
    def removed(self) -> int:
        """Layers removed so far."""
        return sum(len(group) for group in self.groups) - len(self.groups)


class Trials:
    """Walks over one model. Similarities are cached: walks at near thresholds share trials.

    Args:
        model: Dense model; afterwards it has the layers of the last trial.
        texts: Sentences, right-padded.
        merge: ``"reference"`` or ``"rdsc"``.
        clamp: Whether the paper's bound holds.
    """

    def __init__(
        self, model: PreTrainedModel, texts: Sequence[Batch], merge: str, clamp: bool
    ) -> None:
        self.model, self.texts, self.merge, self.clamp = model, texts, merge, clamp
        self.layers = list(layers(model))
        self.dense = [last_states(model, batch) for batch in texts]
        self.similarities: dict[tuple[tuple[int, int], ...], float] = {}

    def walk(self, settings: Settings, target: int | None) -> Walk:
        """Walk down from H - C to Lw, or until ``target`` layers are gone."""
        walk = Walk(settings, self.layers, [[n] for n in range(len(self.layers))])
        layer = settings.H - settings.C
        while layer >= settings.Lw and walk.removed != target:
            merged = min(settings.C - 1, len(walk.stack) - layer - 1)
            if target is not None:
                merged = min(merged, target - walk.removed)
            if not self._try(walk, layer, merged):
                layer -= 1
                continue
            layer -= settings.I
            if self.clamp:
                layer = min(layer, len(walk.stack) - settings.C)
        return walk

    def _try(self, walk: Walk, layer: int, merged: int) -> bool:
        """Merge the ``merged`` layers after ``layer`` into it if the model stays close."""
        stack, end = walk.stack, layer + merged + 1
        whole = merge_layers(stack[layer], stack[layer + 1 : end], self.merge)
        trial = [*stack[:layer], whole, *stack[end:]]
        before = tuple((row["layer"], row["merged"]) for row in walk.merges if row["accepted"])
        similarity = self._similarity(trial, (*before, (layer, merged)))
        accepted = similarity > walk.settings.T
        group = [number for part in walk.groups[layer:end] for number in part]
        walk.merges.append(
            {"layer": layer, "merged": merged, "group": group}
            | {"similarity": similarity, "accepted": accepted}
        )
        if accepted:
            walk.stack = trial
            walk.groups = [*walk.groups[:layer], group, *walk.groups[end:]]
        return accepted

    def _similarity(self, trial: list[nn.Module], key: tuple[tuple[int, int], ...]) -> float:
        """Mean over sentences of the cosine to the dense model; ``key``: the trial's merges."""
        if key not in self.similarities:
            decoder(self.model).layers = nn.ModuleList(trial)
            now = [last_states(self.model, batch) for batch in self.texts]
            cosines = [sentence_cosines(a, b) for a, b in zip(self.dense, now, strict=True)]
            self.similarities[key] = float(torch.cat(cosines).mean())
        return self.similarities[key]


def search(
    trials: Trials, settings: Settings, target: int
) -> tuple[Walk, list[dict[str, float | int]]]:
    """The walk at the highest threshold that removes ``target`` layers, and the trace.

    A higher T mostly removes fewer layers, but not always; halving finds one of the thresholds
    where the number changes. If even T = -1 removes too few, its walk is the nearest.
    """
    trace: list[dict[str, float | int]] = []

    def walk_at(threshold: float) -> Walk:
        walk = trials.walk(dataclasses.replace(settings, T=threshold), target)
        trace.append({"T": threshold, "layers_removed": walk.removed})
        return walk

    low, high, best = 0.0, 1.0, walk_at(0.0)
    if best.removed < target:
        low, high, best = -1.0, 0.0, walk_at(-1.0)
    for _ in tqdm(range(HALVINGS), desc="thresholds", mininterval=2, file=sys.stderr):
        middle = (low + high) / 2
        walk = walk_at(middle)
        if walk.removed == target:
            low, best = middle, walk
        else:
            high = middle
    return best, trace


def merge_width(target: int, total: int) -> int:
    """The default of C to remove ``target`` of ``total`` layers; see :class:`LaCo`."""
    widths = range(2, max(2, target // 2 + 1) + 1)
    fits = [width for width in widths if target % (width - 1) == 0]
    return min(fits, key=lambda width: (abs(width - total / 8), -width))


@torch.no_grad()
def last_states(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Hidden states after the final norm (B, T, D), zero on pads."""
    ids, valid = batch.ids.to(model.device), batch.valid.to(model.device)
    states = decoder(model)(input_ids=ids, use_cache=False).last_hidden_state
    return states * valid[..., None]


def sentence_cosines(dense: Tensor, trial: Tensor) -> Tensor:
    """Cosine per sentence (B,) of states (B, T, D); a sentence is one vector."""
    return cosine_similarity(dense.flatten(1).double(), trial.flatten(1).double())
