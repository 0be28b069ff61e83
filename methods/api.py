"""All that a method file imports: ``from methods.api import Method, ...``.

A file in ``methods/`` is one paper. It holds one class that derives from :class:`Method` or
:class:`RoutedMethod`; no other file changes. Its class attributes (``title`` and so on, see
:class:`Method`) are literals, because they are read from the syntax tree: a job list imports no
method and no torch. ``Params`` is a frozen dataclass; ``rows = {"name": {params}}`` makes several
rows from one file. The three files of tests/examples use the names that most methods need.

A **static** method changes the weights once:

    fit(backbone, data, request) -> Fitted    decides; returns the model, its structure, the reasons
    build(backbone, structure) -> module      the same model again, without data; also on meta.
                                              The structure is JSON, with text for keys

A **routed** method lets a router decide per token; the base class fits, builds and calibrates:

    units(backbone, layers) -> [Unit]         what a token may skip in these layers
    router(backbone, units, structure)        a Router: start(tokens, hidden, at) -> state,
                                              gate(index, block_input, post_attention, state, at)
                                              -> (Gate, state); a Gate is a value in [0, 1] and how
                                              it scales what runs
    layers, prepare, lora                     if the defaults do not fit
    target, weight, penalty                   training adds weight * penalty / positions to the
                                              loss. A penalty is a function of Gates alone: a sum
                                              over positions, each weighted by ``counted``. A target
                                              is the skip rate that training aims at
    knob                                      name of the param that fixes how much is skipped, in
                                              place of the budget; the default None: there is none
    parts                                     what tokens may skip, in the plural, for messages
    stand_ins, reserved, batchable, authors_skip    rarely: see RoutedMethod and Method

A routed model is stored as its structure and the parameters that train; whatever else a fit
changes in a router is lost. Both kinds say in ``skip_reason`` why they cannot run on a backbone or
at a budget. Where the default is wrong, ``cost`` says what a fit takes, so that a suite can be
planned. A method never counts, times, scores or saves anything. Defaults of ``Params`` are literals
too. Randomness comes from ``generator(seed, purpose)``; a bad value raises a ``ValueError`` that
names the param.
"""

from __future__ import annotations

from methods.base import Cost, Fitted, Method, Request, check_least, check_protect
from methods.core.budget import (
    Candidates,
    layers_shortfall,
    layers_to_remove,
    nearest,
    out_of_reach,
    routed_layers,
    shortfall,
    unremovable,
)
from methods.core.data import Batch, Data, Document, batches, task_weights
from methods.core.jsonfile import read_json
from methods.core.model.backbone import (
    Backbone,
    Widths,
    attention,
    attention_kinds,
    attention_norm,
    count,
    decoder,
    ffn,
    ffn_entry,
    ffn_norm,
    last_module,
    layers,
    layers_alike,
    norm_behind,
    projection_weights,
    projections,
    widths,
)
from methods.core.model.card import read_card
from methods.core.model.checkpoint import DECISIONS
from methods.core.model.checkpoint import load as load_fitted
from methods.core.model.families import Sublayer, embedding_factor, factor_of, norm_offset
from methods.core.model.ledger import Rates
from methods.core.model.shapes import ATTENTION, FFN, candidate_layers
from methods.core.routing.calibration import (
    WeightedDocuments,
    calibrate,
    calibrate_threshold,
    weigh,
)
from methods.core.routing.gates import decide_gates, hashed_noise, logistic_noise, sample_gates
from methods.core.routing.hashing import uniform_hash
from methods.core.routing.inputs import attention_masks
from methods.core.routing.recompute import Derived
from methods.core.routing.routed import route, router_of
from methods.core.routing.router import (
    Context,
    Gate,
    Router,
    Tokens,
    Unit,
    attention_units,
    block_units,
    evicting_units,
    ffn_units,
    module_units,
)
from methods.core.routing.slim import SlimRouter
from methods.core.routing.steering import (
    Controller,
    FixedWeight,
    Gates,
    Penalty,
    Target,
    Weight,
    aim_of,
    mean_deviation,
    squared_use,
    unit_shares,
)
from methods.core.seeds import draw_linear, generator, seed_for
from methods.core.surgery.greedy import Part, Round, greedy_passes, greedy_rounds, perplexities
from methods.core.surgery.layers import (
    MIXED_KINDS,
    WRITERS,
    NoAttention,
    NoFfn,
    add_output_biases,
    head_and_channel_sizes,
    merge_layers,
    missing_biases,
    narrow,
    narrow_reason,
    remove_layers,
    remove_sublayers,
    replace_layers,
    sublayer_size,
)
from methods.core.surgery.layerwise import (
    LayerGradients,
    gradient_reason,
    layer_gradients,
    observe,
)
from methods.core.surgery.sliced import (
    absorb_output_basis,
    by_rows,
    ffn_writer,
    fuse_norms,
    slice_hidden_states,
    sliced_parameters,
)
from methods.core.training.loop import Trainer, thin
from methods.core.training.lora import Ranks, add_lora, lora_sizes, nearest_ranks
from methods.core.training.losses import score_answers
from methods.core.training.method import LoraSpec, Plan, RoutedMethod
from methods.core.training.objective import MATCH_KINDS
from methods.core.training.packing import lay_out
from methods.core.training.params import TrainingParams
from methods.core.training.processes import rank_and_world, sum_over_processes

__all__ = [
    "ATTENTION", "DECISIONS", "FFN", "MATCH_KINDS", "MIXED_KINDS", "WRITERS", "Backbone", "Batch",
    "Candidates", "Context", "Controller", "Cost", "Data", "Derived", "Document", "Fitted",
    "FixedWeight", "Gate", "Gates", "LayerGradients", "LoraSpec", "Method", "NoAttention", "NoFfn",
    "Part", "Penalty", "Plan", "Ranks", "Rates", "Request", "Round", "RoutedMethod", "Router",
    "SlimRouter", "Sublayer", "Target", "Tokens", "Trainer", "TrainingParams", "Unit", "Weight",
    "WeightedDocuments", "Widths", "absorb_output_basis", "add_lora", "add_output_biases", "aim_of",
    "attention", "attention_kinds", "attention_masks", "attention_norm", "attention_units",
    "batches", "block_units", "by_rows", "calibrate", "calibrate_threshold", "candidate_layers",
    "check_least", "check_protect", "count", "decide_gates", "decoder", "draw_linear",
    "embedding_factor", "evicting_units", "factor_of", "ffn", "ffn_entry", "ffn_norm", "ffn_units",
    "ffn_writer", "fuse_norms", "generator", "gradient_reason", "greedy_passes", "greedy_rounds",
    "hashed_noise", "head_and_channel_sizes", "last_module", "lay_out", "layer_gradients", "layers",
    "layers_alike", "layers_shortfall", "layers_to_remove", "load_fitted", "logistic_noise",
    "lora_sizes", "mean_deviation", "merge_layers", "missing_biases", "module_units", "narrow",
    "narrow_reason", "nearest", "nearest_ranks", "norm_behind", "norm_offset", "observe",
    "out_of_reach", "perplexities", "projection_weights", "projections", "rank_and_world",
    "read_card", "read_json", "remove_layers", "remove_sublayers", "replace_layers", "route",
    "routed_layers", "router_of", "sample_gates", "score_answers", "seed_for", "shortfall",
    "slice_hidden_states", "sliced_parameters", "squared_use", "sublayer_size",
    "sum_over_processes", "task_weights", "thin", "uniform_hash", "unit_shares", "unremovable",
    "weigh", "widths",
]  # fmt: skip
