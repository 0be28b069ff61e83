"""SliceGPT as the paper runs it: every half layer is sliced first, then run on coordinates.

Written as loops over single documents and dense matrices, in float64, with its own norm and its own
attention mask. Nothing of ``methods`` is used.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel


def covariance_basis(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Falling eigenvalues (H,) and eigenvectors (H, H) of the damped sum of x^T x."""
    total = sum(row[:, None] * row[None] for document in documents for row in document)
    assert isinstance(total, Tensor)
    damped = total + 0.01 * total.diagonal().mean() * torch.eye(len(total)).double()
    values, vectors = torch.linalg.eigh(damped)
    order = values.argsort(descending=True)
    return values[order], vectors[:, order]


class SlicedByHand:
    """A float64 Llama, sliced while the documents run through it.

    Args:
        model: Dense causal LM in float64; consumed.
        documents: Token ids.
        width: Directions kept at every cut but the last, which keeps all.
    """

    def __init__(self, model: PreTrainedModel, documents: list[list[int]], width: int) -> None:
        self.model, self.width = model, width
        self.full, self.eps = model.config.hidden_size, model.config.rms_norm_eps
        self.shortcuts: list[tuple[Tensor, Tensor]] = []
        self.eigenvalues: list[list[float]] = []
        with torch.no_grad():
            self._fold()
            self._slice([torch.tensor([ids]) for ids in documents])

    def norm(self, x: Tensor) -> Tensor:
        return x / (x.pow(2).sum(-1, keepdim=True) / self.full + self.eps).sqrt()

    def _fold(self) -> None:
        for layer in self.model.model.layers:
            mixer, network = layer.self_attn, layer.mlp
            for matrix in (mixer.q_proj, mixer.k_proj, mixer.v_proj):
                matrix.weight.data = matrix.weight * layer.input_layernorm.weight
            for matrix in (network.gate_proj, network.up_proj):
                matrix.weight.data = matrix.weight * layer.post_attention_layernorm.weight
        head = self.model.lm_head
        head.weight.data = head.weight * self.model.model.norm.weight

    def _basis(self, documents: list[Tensor]) -> Tensor:
        values, vectors = covariance_basis([document[0] for document in documents])
        self.eigenvalues.append(values.tolist())
        return vectors

    def _attention(self, layer: torch.nn.Module, x: Tensor, shortcut: Tensor) -> Tensor:
        length = x.shape[1]
        hidden = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)
        rotary = self.model.model.rotary_emb(x, position_ids=torch.arange(length)[None])
        mixed, _ = layer.self_attn(
            self.norm(x), position_embeddings=rotary, attention_mask=hidden[None, None]
        )
        return mixed + x @ shortcut

    def _slice(self, documents: list[Tensor]) -> None:
        embed, kept = self.model.model.embed_tokens, self.width
        stream = [embed(ids) for ids in documents]
        basis = self._basis(stream)
        embed.weight.data = (embed.weight @ basis)[:, :kept]
        stack = self.model.model.layers
        for number, layer in enumerate(stack):
            last = self.full if number == len(stack) - 1 else kept
            stream, basis = self._slice_layer(layer, stream, basis, last)
        self.model.lm_head.weight.data = self.model.lm_head.weight @ basis

    def _slice_layer(
        self, layer: torch.nn.Module, stream: list[Tensor], basis: Tensor, last: int
    ) -> tuple[list[Tensor], Tensor]:
        kept, mixer, network = self.width, layer.self_attn, layer.mlp
        for matrix in (mixer.q_proj, mixer.k_proj, mixer.v_proj):
            matrix.weight.data = (matrix.weight @ basis)[:, :kept]
        first = basis.T[:kept]
        inputs = [(x @ basis)[..., :kept] for x in stream]
        middle = self._basis([self._attention(layer, x, first) for x in inputs])
        first = first @ middle[:, :kept]
        mixer.o_proj.weight.data = (middle.T @ mixer.o_proj.weight)[:kept]
        for matrix in (network.gate_proj, network.up_proj):
            matrix.weight.data = (matrix.weight @ middle)[:, :kept]
        second = middle.T[:kept]
        halves = [self._attention(layer, x, first) for x in inputs]
        outputs = [network(self.norm(h)) + h @ second for h in halves]
        after = self._basis(outputs)
        network.down_proj.weight.data = (after.T @ network.down_proj.weight)[:last]
        self.shortcuts.append((first, (second @ after)[:, :last]))
        return outputs, after

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        x = self.model.model.embed_tokens(ids)
        for layer, (first, second) in zip(self.model.model.layers, self.shortcuts, strict=True):
            middle = self._attention(layer, x, first)
            x = layer.mlp(self.norm(middle)) + middle @ second
        return self.model.lm_head(self.norm(x))
