"""HeRo's router without gradients, by kernels; the host sees no decision.

``HeroRouter.step`` takes about forty operations per FFN; here they are two launches:

    project  the two wide projections of hbar as one matrix, [sqrt(D) W_hd diag(w) ; W_local1] hbar
    decide   everything else: path, state, memory read over the list of earlier FFNs, novelty,
             both heads, gate, decision, memory append, p and m

For up to 16 tokens, a step of decoding, the first launch also makes the sums for RMSNorm,
||delta|| and cos(delta, previous delta), and the second has a program per token. For more, prompts,
the first is a product of cuBLAS and the second takes sixteen tokens per program.

W_hd RMSNorm(hbar) = (sqrt(D) W_hd diag(w)) hbar / sqrt(||hbar||^2 + D eps): the matrix is made
beforehand, and the division comes after the product. All is float32, and decisions are taken before
any cast. A prompt in bfloat16 is multiplied by two bfloat16 matrices in its place, see ``streams``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from methods.core.routing.router import Gate
from methods.kernels.choose import MOST_ROWS, can_depend, use_triton
from methods.kernels.decode import check_tensors
from methods.kernels.hero.formulas import EPS, PATH_OUT, TEMPERATURE, phi
from methods.kernels.hero.operands import KernelWeights, RouterWorkspace
from methods.kernels.hero.streams import path_sums, product


def router_workspace(tokens: int, router: KernelWeights) -> RouterWorkspace:
    """Buffers for ``tokens`` tokens; one set serves all routed FFNs and every step."""
    entries = (tokens, len(router.decays), len(router.key))
    empty = router.wide.new_empty
    return RouterWorkspace(
        key=empty(entries),
        value=empty(entries),
        p=empty(tokens),
        m=empty(tokens),
        gate=empty(tokens),
        scale=empty(tokens),
        execute=torch.empty(tokens, dtype=torch.bool, device=router.wide.device),
    )


class KernelSteps(NamedTuple):
    """The gates of one pass, FFN by FFN from the first, on the device.

    ``streams`` are hbar of the last three FFNs, the newest last.
    """

    router: KernelWeights
    space: RouterWorkspace
    streams: list[Tensor]

    def decide(self, index: int, hbar: Tensor, threshold: float) -> Gate:
        """Decide FFN j = ``index`` + 1 from hbar (B, T, D)."""
        self.streams[:] = [*self.streams[-2:], hbar.flatten(0, 1).contiguous()]
        # New tensors: the decision is still used when the next FFN is decided.
        results = (self.space.execute, self.space.scale, self.space.gate)
        execute, scale, gate = map(torch.empty_like, results)
        space = self.space._replace(execute=execute, scale=scale, gate=gate)
        router_step(index, self.streams, self.router, space, threshold)
        shape = hbar.shape[:2]
        return Gate(gate.view(shape), scale.view(shape), execute.view(shape))


def router_step(
    index: int,
    streams: Sequence[Tensor],
    router: KernelWeights,
    workspace: RouterWorkspace,
    threshold: float = 0.5,
    triton: bool | None = None,
) -> None:
    """Decide routed FFN ``index`` for every token: ``gate``, ``execute``, ``scale``.

    FFNs are decided in order from 0, which starts a new step. Nothing reaches the host.

    Args:
        index: j - 1, 0-based among the R routed FFNs.
        streams: Residual stream after attention (N, D), of one dtype, of this FFN and of up to
            two FFNs before it, the newest last.
        router: Of ``kernel_weights`` in ``methods/hero/merged.py``.
        workspace: Of :func:`router_workspace`; results and state are written there.
        threshold: Executes at gate >= threshold.
        triton: True forces the kernels, False the twin; None lets the device decide.

    Raises:
        ValueError: Shapes do not fit, or there is no FFN ``index``.
        RuntimeError: ``triton`` is True where no kernel can run.
    """
    hbar = streams[-1]
    tokens, width = hbar.shape
    if not 0 <= index < len(router.decays):
        raise ValueError(f"there are {len(router.decays)} routed FFNs, none has index {index}")
    if len(streams) != min(index, 2) + 1:
        raise ValueError(f"FFN {index} takes {min(index, 2) + 1} streams, not {len(streams)}")
    entries = (tokens, len(router.decays), len(router.key))
    check_tensors(
        {
            **{f"streams[{n}]": (each, hbar.shape, hbar.dtype) for n, each in enumerate(streams)},
            "wide": (router.wide, (len(router.wide), width), torch.float32),
            "workspace.key": (workspace.key, entries, torch.float32),
            "workspace.execute": (workspace.execute, (tokens,), torch.bool),
        }
    )
    if not use_triton(router.wide, triton):
        router_step_reference(index, streams, router, workspace, threshold)
    elif tokens <= MOST_ROWS:
        from methods.kernels.hero.router_triton import launches

        dependent = can_depend(hbar)
        for launch in launches(index, streams, router, workspace, threshold, dependent):
            launch.run()
    else:
        from methods.kernels.hero.prompt_triton import prompt_launch

        projected = project(hbar, router)
        prompt_launch(index, streams, projected, router, workspace, threshold).run()


def project(hbar: Tensor, router: KernelWeights) -> Tensor:
    """``wide`` times a prompt (N, D), float32: (N, 2H), or (N, 4H) whose halves are to be added.

    The latter where hbar is bfloat16, by ``parts``.
    """
    if hbar.dtype is torch.bfloat16:
        return product(hbar, router.parts.T)
    return linear(hbar.float(), router.wide)


def router_step_reference(
    index: int,
    streams: Sequence[Tensor],
    router: KernelWeights,
    workspace: RouterWorkspace,
    threshold: float = 0.5,
) -> None:
    """The twin of :func:`router_step`, on the same buffers."""
    space = workspace
    hbar, sums = streams[-1].float(), path_sums(streams, kernel=False)
    projected = linear(hbar, router.wide)
    s = _state(index, router, space, projected, sums, hbar.shape[-1])
    novelty, context = torch.zeros_like(space.p), torch.zeros_like(space.key[:, 0])
    if router.query is not None and index > 0:
        context = _read(index, router, space, linear(s, router.query))
        here, there = linear(s, router.novelty_state), linear(context, router.novelty_context)
        size = here.norm(dim=-1) * there.norm(dim=-1)
        novelty = 1 - (here * there).sum(-1) / (size + EPS)
    first = linear(s, router.history_state) + linear(context, router.history_context)
    first = first + novelty[:, None] * router.history_novelty + router.history_bias
    a = silu(first) @ router.history_out + router.last_biases[0]
    local = projected[:, len(router.local_out) :] + router.local_bias
    b = silu(local) @ router.local_out + router.last_biases[1]

    p = torch.sigmoid(a / TEMPERATURE)
    space.m.copy_(p * space.m if index > 0 else p)
    space.p.copy_(p)
    space.gate.copy_(torch.sigmoid(a + b))
    space.execute.copy_(space.gate >= threshold)
    space.scale.copy_(torch.where(space.execute, space.gate, 1 - space.gate))
    space.key[:, index] = phi(linear(s, router.key))
    space.value[:, index] = linear(s, router.value)


def _state(
    index: int,
    router: KernelWeights,
    space: RouterWorkspace,
    projected: Tensor,
    sums: Tensor,
    width: int,
) -> Tensor:
    """s_j (N, 64) from the projections (N, 2H) and the path vector.

    ``sums`` (N, 4) over D are of hbar^2, delta^2, delta * previous delta, previous delta^2.
    """
    heads = len(router.local_out)
    factor = torch.rsqrt(sums[:, :1] + width * router.eps)
    z_hidden = linear(silu(projected[:, :heads] * factor), router.hidden_up)
    if router.path_in is None or router.path_out is None:
        return torch.cat([z_hidden, z_hidden.new_zeros(len(z_hidden), PATH_OUT)], dim=-1)
    _, size, product, before = sums.unbind(-1)
    bend = product / (size.sqrt() * before.sqrt() + EPS)
    position = torch.full_like(size, (index + 1) / len(router.decays))
    features = [position, 1 - position, size.sqrt(), bend]
    features += [space.p, space.m] if index > 0 else [torch.ones_like(size)] * 2
    hidden = silu(linear(torch.stack(features, dim=-1), router.path_in, router.path_in_bias))
    return torch.cat([z_hidden, linear(hidden, router.path_out, router.path_out_bias)], dim=-1)


def _read(index: int, router: KernelWeights, space: RouterWorkspace, query: Tensor) -> Tensor:
    """c_j (N, M) from the entries of the FFNs before ``index``."""
    alike = torch.einsum("bm,bim->bi", phi(query), space.key[:, :index])
    weights = router.decays[index, :index] * alike
    above = torch.einsum("bi,bim->bm", weights, space.value[:, :index])
    return above / (weights.sum(-1, keepdim=True) + EPS)
