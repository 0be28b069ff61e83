"""HeRo's router: a gate per token and routed FFN from a path vector, a memory and the state.

Symbols are the paper's. Its block j = 1..R is the j-th routed FFN here, and hbar_j is the residual
stream after the attention of the same layer. The router computes in float32 throughout and decides
before any cast, because gates in 16 bits would flip decisions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from methods.api import Context, Gate, Tokens, Unit, draw_linear
from methods.hero.adapter import AdaptedRouter
from methods.hero.heads import LOCAL, TWINS, Sizes, cosine, history_parameters, mlp, mlp_parameters
from methods.hero.host import HostSteps
from methods.hero.merged import (
    HostWeights,
    MergedWeights,
    host_weights,
    kernel_weights,
    merge,
)
from methods.hero.reading import PathState, Reading, read_by_kernels, read_plainly
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
from methods.kernels.hero.operands import KernelWeights
from methods.kernels.hero.router import KernelSteps, router_workspace


class Trace(NamedTuple):
    """Every intermediate of one gate, for tests: context (B, T, M), path (B, T, 6), rest (B, T).

    ``similarity`` is the cosine of W_n s_j and W_c c_j.
    """

    gate: Tensor
    history_logit: Tensor
    local_logit: Tensor
    p: Tensor
    m: Tensor
    similarity: Tensor
    context: Tensor
    path: Tensor

    @property
    def novelty(self) -> Tensor:
        """One minus the similarity."""
        return 1 - self.similarity


class HeroRouter(AdaptedRouter):
    """Gate g_j = sigmoid(a_j + b_j): a from history, b from the state alone; execute at g >= 0.5.

    After training the calibrated threshold stands in place of 0.5.

    Formula (per token; x_j the path vector, c_j the memory's answer to W_q s_j):
        x_j = [j/R, (R-j)/R, ||delta_j||, cos(delta_j, delta_{j-1}), p_{j-1}, m_{j-1}]
        s_j = [W_hu SiLU(W_hd RMSNorm(hbar_j)) ; MLP_path(x_j)]
        nu_j = 1 - cos(W_n s_j, W_c c_j) for j > 1, else 0
        a_j = MLP_hist([s_j ; c_j ; nu_j]),  b_j = MLP_local(hbar_j)
        p_j = sigmoid(a_j / 0.9),  m_j = m_{j-1} p_j
    The path records p and its product, never g or the decision: later FFNs see the decision only
    through delta.

    Args:
        units: R feed-forward networks.
        sizes: Widths.
        eps: Of the RMSNorm; the backbone's.
        variant: ``"full"`` or an ablation. ``"no-history"`` has the local head alone.
            ``"no-memread"`` sets c and nu to zero, ``"no-aux"`` the output of the path MLP,
            ``"no-position"`` the first four path features. ``"same-size"`` has a second local head
            of as many parameters in place of the history; ``"difference"`` too, and both heads
            read what attention added, divided by its root mean square.
        initial_bias: Of the local head, so that every gate starts at sigmoid(2) = 0.88.
        generator: Of the initial values; None: torch's own.
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
        self.add_adapters(units, sizes, generator)
        self.threshold = 0.5
        self._host: HostWeights | None = None
        self._kernels: KernelWeights | None = None

    def _initialise(self, bias: float, generator: torch.Generator | None) -> None:
        """Torch's initial values of linear layers, but small last layers and a positive bias."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                draw_linear(module, generator)
        for name in ("local_head", "second_head", "history_head"):
            last = getattr(self, name)[2] if hasattr(self, name) else None
            if last is not None and not last.weight.is_meta:
                nn.init.normal_(last.weight, std=0.01, generator=generator)
                nn.init.constant_(last.bias, bias if name == "local_head" else 0.0)
        if hasattr(self, "path_mlp"):
            # ||delta|| grows with sqrt(D): its column starts as if it were a root mean square.
            with torch.no_grad():
                mlp_parameters(self.path_mlp, "path")["path_W1"][:, 2] /= math.sqrt(
                    self.sizes.hidden
                )

    @property
    def by_kernels(self) -> bool:
        """The kernels are for gates with a history."""
        return self.variant not in LOCAL

    def start(
        self, tokens: Tokens, hidden: Tensor, at: Context
    ) -> PathState | HostSteps | KernelSteps:
        """p_0 = m_0 = 1, empty memory."""
        if self.by_kernels and use_host(hidden, self.norm_weight):
            return HostSteps(self._host_weights(first=not tokens.positions.item()))
        if self.by_kernels and use_device(hidden):
            return self._kernel_steps(hidden)
        self._host = None
        if self.training:
            self._kernels = None
        return self.empty(hidden)

    def empty(self, hidden: Tensor) -> PathState:
        """The state of tokens (B, T, D) that have passed no FFN."""
        ones = torch.ones(hidden.shape[:2], dtype=torch.float32, device=hidden.device)
        weights = None
        if self.variant not in LOCAL:
            parted = use_streams(hidden) and hidden.dtype is torch.bfloat16
            weights = merge(self.formula_parameters(), self.eps, parted)
        return PathState(weights, ones, ones)

    def _host_weights(self, first: bool) -> HostWeights:
        """Weights for one token on a CPU, merged once per sequence and then cached.

        As with a cache of keys and values: after a change of the weights, start a new sequence.
        """
        if first or self._host is None:
            self._host = host_weights(merge(self.formula_parameters(), self.eps), self.variant)
        return self._host

    def _kernel_steps(self, hidden: Tensor) -> KernelSteps:
        """The steps of a pass by kernels, whose weights every prompt renews.

        They are renewed in place, because a CUDA graph holds their addresses. After a change of the
        weights, start with a prompt of at least two tokens.
        """
        if self._kernels is None or self._kernels.wide.device != self.norm_weight.device:
            self._kernels = self._kernel_weights()
        elif hidden.shape[1] > 1:
            self._kernels.renew(self._kernel_weights())
        workspace = router_workspace(hidden.shape[:2].numel(), self._kernels)
        return KernelSteps(self._kernels, workspace, [])

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
        """Decide FFN j = index + 1 from hbar (B, T, D)."""
        assert post_attention is not None
        if not isinstance(state, PathState):
            return state.decide(index, post_attention, self.threshold), state
        trace, after = self.step(index, self.read(block_input, post_attention), state)
        return Gate(trace.gate, "gate"), after

    def read(self, before: Tensor, now: Tensor) -> Tensor:
        """What the heads read of the stream (B, T, D), which attention changed from ``before``."""
        if self.variant != "difference":
            return now
        change = now.float() - before.float()
        return change * torch.rsqrt(change.pow(2).mean(-1, keepdim=True) + self.eps)

    def step(self, index: int, hbar: Tensor, state: PathState) -> tuple[Trace, PathState]:
        """One gate with every intermediate, in float32; the state for the next FFN."""
        streams = (*state.streams[-1:], hbar) if torch.is_grad_enabled() else ()
        with torch.autocast(hbar.device.type, enabled=False):
            if self.variant in LOCAL:
                hbar = hbar.float()
                local = self.local_head(hbar).squeeze(-1)
                zero = torch.zeros_like(local)
                extra = zero if self.variant == "no-history" else self.second_head(hbar).squeeze(-1)
                gate = torch.sigmoid(local + extra)
                return Trace(gate, extra, local, zero, zero, zero, zero, zero), state
            weights = state.weights
            assert weights is not None
            if use_streams(hbar):
                reading = read_by_kernels(hbar, state, weights)
            else:
                reading, state = read_plainly(hbar, state, weights)
            trace, after = self._history_step(index, reading, state, weights)
            return trace, after._replace(streams=streams)

    def _history_step(
        self, index: int, reading: Reading, state: PathState, weights: MergedWeights
    ) -> tuple[Trace, PathState]:
        path, inner = self._path(index, reading, state, weights), [reading.hidden]
        if weights.path is not None:
            inner.append(linear(path, weights.path, weights.path_bias))
        s = linear(silu(torch.cat(inner, dim=-1)), weights.encoder, weights.encoder_bias)
        memory, head = self.sizes.memory, self.sizes.head
        query_key, value, from_state, first = linear(
            s, weights.readers, weights.readers_bias
        ).split([2 * memory, memory + 1, STATE, head], dim=-1)
        query, key = phi(query_key).chunk(2, dim=-1)
        if index > 0 and self.variant != "no-memread":
            context = state.memory.read(query, weights.decays[index, :index])
            answer = linear(context, weights.answers, weights.answers_bias)
            from_context, more = answer.split([STATE, head], dim=-1)
            sizes = from_state.norm(dim=-1), from_context.norm(dim=-1)
            similarity = cosine((from_state * from_context).sum(-1), *sizes, weights.eps)
            first = torch.addcmul(first + more, similarity[..., None], weights.novelty, value=-1)
        else:
            context, similarity = torch.zeros_like(query), torch.ones_like(state.p)
        hidden = silu(torch.cat([first, reading.local], dim=-1))
        logits = linear(hidden, weights.heads, weights.heads_bias)
        a, b = logits[..., :2].unbind(-1)
        p, gate = torch.sigmoid(logits[..., 2:]).unbind(-1)
        m = state.m * p
        trace = Trace(gate, a, b, p, m, similarity, context, path)
        return trace, state._replace(p=p, m=m, memory=state.memory.write(key, value))

    def _path(
        self, index: int, reading: Reading, state: PathState, weights: MergedWeights
    ) -> Tensor:
        """The path vector x_j (B, T, 6)."""
        features = [weights.place[index].expand(*state.p.shape, 2)]
        features += [each[..., None] for each in (reading.distance, reading.bend)]
        if self.variant == "no-position":
            features = [torch.zeros_like(state.p)[..., None].expand(-1, -1, 4)]
        return torch.cat([*features, state.p[..., None], state.m[..., None]], dim=-1)

    def formula_parameters(self) -> dict[str, Tensor]:
        """Parameters under the names of the formulas: weights are (out, in)."""
        local = mlp_parameters(self.local_head, "local")
        if self.variant == "no-history":
            return local
        if self.variant in TWINS:
            return local | mlp_parameters(self.second_head, "second")
        return {
            "rms_w": self.norm_weight,
            "W_hd": self.hidden_down.weight,
            "W_hu": self.hidden_up.weight,
            **({} if self.variant == "no-aux" else mlp_parameters(self.path_mlp, "path")),
            "W_q": self.query.weight,
            "W_k": self.key.weight,
            "W_v": self.value.weight,
            "W_n": self.novelty_state.weight,
            "W_c": self.novelty_context.weight,
            **mlp_parameters(self.history_head, "hist"),
            **local,
            "eta": self.eta,
        }
