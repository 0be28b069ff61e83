"""HeRo's router: a gate per token and routed block from a path vector, a memory and the state.

Symbols as in the paper: block j = 1..R, hbar_j the residual stream behind the attention of block j.
The router computes in float32 throughout and decides before any cast; 16-bit gates flip decisions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from methods.api import Context, Derived, Gate, Router, Tokens, Unit
from methods.hero.branch import Adapter
from methods.hero.heads import LOCAL, TWINS, Sizes, cosine, history_parameters, mlp, named
from methods.hero.host import HostSteps
from methods.hero.memory import Memory
from methods.hero.weights import (
    HostWeights,
    MergedWeights,
    host_weights,
    kernel_weights,
    merge,
)
from methods.kernels.choose import use_device, use_host, use_streams
from methods.kernels.hero.formulas import (
    HIDDEN_OUT,
    PATH,
    PATH_HIDDEN,
    PATH_OUT,
    STATE,
    Variant,
    phi,
)
from methods.kernels.hero.router import KernelSteps, router_workspace
from methods.kernels.hero.streams import read_streams
from methods.kernels.hero.weights import KernelWeights

# Least squared length of a delta that has a slope: of float32, far below any that moves.
LEAST = 1e-30


class PathState(NamedTuple):
    """What a token carries from block to block in one forward pass.

    ``p`` and ``m`` (B, T) are the recorded score and its running product. ``last`` and ``step`` are
    hbar_{j-1} and delta_{j-1} (B, T, D) in float32, ``moved`` (B, T) the length of the latter, None
    where there is none yet; ``streams`` hold hbar_{j-2} and hbar_{j-1} as they were given, where
    gradients flow. ``merged`` are the weights of the pass, None without a history.
    """

    merged: MergedWeights | None
    p: Tensor
    m: Tensor
    memory: Memory = Memory()
    last: Derived | None = None
    step: Derived | None = None
    moved: Tensor | None = None
    streams: tuple[Tensor, ...] = ()


class Reading(NamedTuple):
    """What a gate takes of the residual stream, in float32.

    ``local`` and ``hidden`` (B, T, H), what enters the SiLU of the local head and of the state;
    ``distance`` ||delta_j|| and ``bend`` cos(delta_j, delta_{j-1}), (B, T).
    """

    local: Tensor
    hidden: Tensor
    distance: Tensor
    bend: Tensor


class Trace(NamedTuple):
    """Every intermediate of one gate, for tests: context (B, T, M), path (B, T, 6), rest (B, T)."""

    gate: Tensor
    history_logit: Tensor
    local_logit: Tensor
    p: Tensor
    m: Tensor
    known: Tensor
    context: Tensor
    path: Tensor

    @property
    def novelty(self) -> Tensor:
        """One minus the cosine ``known``."""
        return 1 - self.known


class HeroRouter(Router):
    """Gate g_j = sigmoid(a_j + b_j): a from history, b from the state alone; execute at g >= 0.5.

    Formula (per token; x_j the path vector, c_j the memory's answer to W_q s_j):
        x_j = [j/R, (R-j)/R, ||delta_j||, cos(delta_j, delta_{j-1}), p_{j-1}, m_{j-1}]
        s_j = [W_hu SiLU(W_hd RMSNorm(hbar_j)) ; MLP_path(x_j)]
        nu_j = 1 - cos(W_n s_j, W_c c_j) for j > 1, else 0
        a_j = MLP_hist([s_j ; c_j ; nu_j]),  b_j = MLP_local(hbar_j)
        p_j = sigmoid(a_j / 0.9),  m_j = m_{j-1} p_j
    Recorded are p and its product, never g or the decision: later blocks see the decision through
    delta alone.

    Args:
        units: R feed-forward networks.
        sizes: Widths.
        eps: Of the RMSNorm; the backbone's.
        variant: ``"full"`` or an ablation: ``"no-history"`` keeps the local head alone,
            ``"no-memread"`` sets c and nu to zero, ``"no-aux"`` has zeros in place of the
            path MLP's output, ``"no-position"`` of the first four path features;
            ``"same-size"`` replaces the history by a second local head of as many parameters,
            ``"difference"`` likewise, both heads on what attention added, over its root mean
            square.
        initial_bias: Of the local head, so that every gate starts at sigmoid(2) = 0.88.
        generator: Of the initial values; None leaves torch's default.
    """

    shared = True
    heavy = True

    def __init__(
        self,
        units: list[Unit],
        sizes: Sizes,
        eps: float,
        variant: Variant,
        initial_bias: float,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.units, self.sizes, self.eps, self.variant = units, sizes, eps, variant
        width, head, memory = sizes.hidden, sizes.head, sizes.memory
        self.local_head = mlp(width, head, 1)
        if variant not in LOCAL:
            self.norm_weight = nn.Parameter(torch.ones(width))
            self.hidden_down = nn.Linear(width, head, bias=False)
            self.hidden_up = nn.Linear(head, HIDDEN_OUT, bias=False)
            if variant != "no-aux":
                self.path_mlp = mlp(PATH, PATH_HIDDEN, PATH_OUT)
            self.query = nn.Linear(STATE, memory, bias=False)
            self.key = nn.Linear(STATE, memory, bias=False)
            self.value = nn.Linear(STATE, memory, bias=False)
            self.novelty_state = nn.Linear(STATE, STATE, bias=False)
            self.novelty_context = nn.Linear(memory, STATE, bias=False)
            self.history_head = mlp(STATE + memory + 1, head, 1)
            self.eta = nn.Parameter(torch.full((len(units),), math.log(0.98 / 0.02)))
        elif variant in TWINS:
            twin = history_parameters(sizes, len(units)) - 1
            self.second_head = mlp(width, max(1, round(twin / (width + 2))), 1)
        self._initialise(initial_bias, generator)
        adapted = units if sizes.adapter else []
        self.adapters = nn.ModuleList(Adapter(width, sizes.adapter, generator) for _ in adapted)
        self.threshold = 0.5
        self._host: HostWeights | None = None
        self._kernels: KernelWeights | None = None

    def _initialise(self, bias: float, generator: torch.Generator | None) -> None:
        """Default linear init; last layers of the heads small, the local bias positive."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and not module.weight.is_meta:
                nn.init.kaiming_uniform_(module.weight, a=5**0.5, generator=generator)
                if module.bias is not None:
                    bound = module.in_features**-0.5
                    nn.init.uniform_(module.bias, -bound, bound, generator=generator)
        for name in ("local_head", "second_head", "history_head"):
            last = getattr(self, name, [None] * 3)[2]
            if isinstance(last, nn.Linear) and not last.weight.is_meta:
                nn.init.normal_(last.weight, std=0.01, generator=generator)
                nn.init.constant_(last.bias, bias if name == "local_head" else 0.0)
        if hasattr(self, "path_mlp"):
            # dist grows with sqrt(D); its column starts as if it were a root mean square.
            with torch.no_grad():
                named(self.path_mlp, "path")["path_W1"][:, 2] /= math.sqrt(self.sizes.hidden)

    def start(
        self, tokens: Tokens, hidden: Tensor, at: Context
    ) -> PathState | HostSteps | KernelSteps:
        """p_0 = m_0 = 1, empty memory."""
        remembers = self.variant not in LOCAL
        if remembers and use_host(hidden, self.norm_weight):
            return HostSteps(self._packed(first=not tokens.positions.item()))
        if remembers and use_device(hidden):
            return self._kernel_steps(hidden)
        self._host = None
        return self.empty(hidden)

    def empty(self, hidden: Tensor) -> PathState:
        """The state of tokens (B, T, D) that have passed no block."""
        ones = torch.ones(hidden.shape[:2], dtype=torch.float32, device=hidden.device)
        merged = None
        if self.variant not in LOCAL:
            parted = use_streams(hidden) and hidden.dtype is torch.bfloat16
            merged = merge(self.formula_parameters(), self.eps, parted)
        return PathState(merged, ones, ones)

    def _packed(self, first: bool) -> HostWeights:
        """Weights packed with the first token decoded behind a prompt, and kept until the next one.

        As a cache of keys and values: weights that change ask for a sequence from its start.
        """
        if first or self._host is None:
            self._host = host_weights(merge(self.formula_parameters(), self.eps), self.variant)
        return self._host

    def _kernel_steps(self, hidden: Tensor) -> KernelSteps:
        """Weights packed once; prompts renew them in place, for a CUDA graph knows the addresses.

        As with a cache of keys and values, weights that change ask for a prompt of two tokens.
        """
        if self._kernels is None or self._kernels.wide.device != self.norm_weight.device:
            self._kernels = self._kernel_weights()
        elif hidden.shape[1] > 1:
            self._kernels.renew(self._kernel_weights())
        return KernelSteps(
            self._kernels, router_workspace(hidden.shape[:2].numel(), self._kernels), []
        )

    def _kernel_weights(self) -> KernelWeights:
        merged = merge(self.formula_parameters(), self.eps)
        return kernel_weights(merged, self.eps, self.variant)

    def gate(
        self,
        index: int,
        block_input: Tensor,
        post_attention: Tensor | None,
        state: Any,
        at: Context,
    ) -> tuple[Gate, PathState | HostSteps | KernelSteps]:
        """Decide block j = index + 1 from hbar (B, T, D)."""
        assert post_attention is not None
        if not isinstance(state, PathState):
            return state.decide(index, post_attention, self.threshold), state
        trace, after = self.step(index, self.read(block_input, post_attention), state)
        return Gate(trace.gate, "gate"), after

    def read(self, before: Tensor, now: Tensor) -> Tensor:
        """What the heads read of a stream (B, T, D) that was ``before``, in float32."""
        if self.variant != "difference":
            return now
        change = now.float() - before.float()
        return change * torch.rsqrt(change.pow(2).mean(-1, keepdim=True) + self.eps)

    def alternative(self, index: int) -> Adapter | None:
        """The adapter of block ``index``."""
        if not len(self.adapters):
            return None
        adapter = self.adapters[index]
        assert isinstance(adapter, Adapter)
        return adapter

    def step(self, index: int, hbar: Tensor, state: PathState) -> tuple[Trace, PathState]:
        """One gate with every intermediate, in float32; the state for the next block."""
        streams = (*state.streams[-1:], hbar) if torch.is_grad_enabled() else ()
        with torch.autocast(hbar.device.type, enabled=False):
            if self.variant in LOCAL:
                hbar = hbar.float()
                local = self.local_head(hbar).squeeze(-1)
                zero = torch.zeros_like(local)
                extra = zero if self.variant == "no-history" else self.second_head(hbar).squeeze(-1)
                gate = torch.sigmoid(local + extra)
                return Trace(gate, extra, local, zero, zero, zero, zero, zero), state
            merged = state.merged
            assert merged is not None
            if use_streams(hbar):
                reading = self._read_by_kernels(hbar, state, merged)
            else:
                reading, state = self._read_plainly(hbar, state, merged)
            trace, after = self._history_step(index, reading, state, merged)
            return trace, after._replace(streams=streams)

    def _read_plainly(
        self, stream: Tensor, state: PathState, merged: MergedWeights
    ) -> tuple[Reading, PathState]:
        """Written out; the state then holds hbar and delta of this block."""
        hbar = stream.float()
        last = Derived(Tensor.float, stream, value=hbar)
        wide = linear(hbar, merged.wide, merged.wide_bias)
        hidden, local = wide.split([self.sizes.head] * 2, dim=-1)
        hidden = hidden / torch.hypot(hbar.norm(dim=-1, keepdim=True), merged.floor)
        if state.last is None:
            none = torch.zeros_like(state.p)
            return Reading(local, hidden, none, none), state._replace(last=last)
        step = hbar - state.last.get()
        moved = step.norm(dim=-1)
        if state.step is None or state.moved is None:
            bend = torch.zeros_like(moved)
        else:
            bend = cosine((step * state.step.get()).sum(-1), moved, state.moved, merged.eps)
        delta = Derived(_delta, stream, *state.streams[-1:], value=step)
        after = state._replace(last=last, step=delta, moved=moved)
        return Reading(local, hidden, moved, bend), after

    def _read_by_kernels(self, hbar: Tensor, state: PathState, merged: MergedWeights) -> Reading:
        """The same of the streams of this block and the two before, each read once."""
        streams = [each.flatten(0, 1).contiguous() for each in (*state.streams, hbar)]
        projected, sums = read_streams(streams, merged.wide, merged.parts)
        wide = projected.unflatten(0, hbar.shape[:2]) + merged.wide_bias
        hidden, local = wide.split([self.sizes.head] * 2, dim=-1)
        sums = sums.unflatten(0, hbar.shape[:2])
        # A root has no slope at zero, where there is no delta.
        size, distance, _, before = sums.clamp(min=LEAST).sqrt().unbind(-1)
        hidden = hidden / torch.hypot(size, merged.floor)[..., None]
        bend = cosine(sums[..., 2], distance, before, merged.eps)
        return Reading(local, hidden, distance, bend)

    def _history_step(
        self, index: int, reading: Reading, state: PathState, merged: MergedWeights
    ) -> tuple[Trace, PathState]:
        path, inner = self._path(index, reading, state, merged), [reading.hidden]
        if merged.path is not None:
            inner.append(linear(path, merged.path, merged.path_bias))
        s = linear(silu(torch.cat(inner, dim=-1)), merged.encoder, merged.encoder_bias)
        memory, head = self.sizes.memory, self.sizes.head
        asked, value, expected, first = linear(s, merged.readers, merged.readers_bias).split(
            [2 * memory, memory + 1, STATE, head], dim=-1
        )
        query, key = phi(asked).chunk(2, dim=-1)
        if index > 0 and self.variant != "no-memread":
            context = state.memory.read(query, merged.decays[index, :index])
            answer = linear(context, merged.answers, merged.answers_bias)
            found, more = answer.split([STATE, head], dim=-1)
            sizes = expected.norm(dim=-1), found.norm(dim=-1)
            known = cosine((expected * found).sum(-1), *sizes, merged.eps)
            first = torch.addcmul(first + more, known[..., None], merged.novelty, value=-1)
        else:
            context, known = torch.zeros_like(query), torch.ones_like(state.p)
        hidden = silu(torch.cat([first, reading.local], dim=-1))
        logits = linear(hidden, merged.heads, merged.heads_bias)
        a, b = logits[..., :2].unbind(-1)
        p, gate = torch.sigmoid(logits[..., 2:]).unbind(-1)
        m = state.m * p
        trace = Trace(gate, a, b, p, m, known, context, path)
        return trace, state._replace(p=p, m=m, memory=state.memory.write(key, value))

    def _path(
        self, index: int, reading: Reading, state: PathState, merged: MergedWeights
    ) -> Tensor:
        """The path vector x_j (B, T, 6)."""
        first = [merged.place[index].expand(*state.p.shape, 2)]
        first += [each[..., None] for each in (reading.distance, reading.bend)]
        if self.variant == "no-position":
            first = [torch.zeros_like(state.p)[..., None].expand(-1, -1, 4)]
        return torch.cat([*first, state.p[..., None], state.m[..., None]], dim=-1)

    def formula_parameters(self) -> dict[str, Tensor]:
        """Parameters under the names of the formulas: weights are (out, in)."""
        local = named(self.local_head, "local")
        if self.variant == "no-history":
            return local
        if self.variant in TWINS:
            return local | named(self.second_head, "second")
        return {
            "rms_w": self.norm_weight,
            "W_hd": self.hidden_down.weight,
            "W_hu": self.hidden_up.weight,
            **({} if self.variant == "no-aux" else named(self.path_mlp, "path")),
            "W_q": self.query.weight,
            "W_k": self.key.weight,
            "W_v": self.value.weight,
            "W_n": self.novelty_state.weight,
            "W_c": self.novelty_context.weight,
            **named(self.history_head, "hist"),
            **local,
            "eta": self.eta,
        }


def _delta(now: Tensor, before: Tensor) -> Tensor:
    """What was added to a stream, in float32."""
    return now.float() - before.float()
