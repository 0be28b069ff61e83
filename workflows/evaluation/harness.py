"""lm-eval on any causal LM, counting exactly which units ran for which tokens.

``CountingLM`` is lm-eval's own Hugging Face class with four hooks. Log-likelihood batches are right
padded and pads are told apart by length, never by id; generation is left padded with a mask, and a
row counts until its first stop. What is counted is what was computed, once: answers of one token
that share a context are scored from one forward pass, with ``share_prefix`` all that share one
(``shared.py``). Every model writes greedily, whatever settings its folder ships; the
``generation_kwargs`` of a task go over that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import lm_eval.evaluator
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from methods.core.model.finite import check_finite
from methods.core.model.folder import window_of
from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.routed import RoutedDecoder, RoutedOutput, router_of
from methods.core.routing.router import Context
from methods.core.tokens import Encoder
from workflows.evaluation.chat import task_prompt
from workflows.evaluation.shared import answer_requests, check_lengths

# A token is an answer token where its output is scored: it predicts a token of an answer that is
# compared, or of one that is generated. The others are prompt.
ANSWER = ("likelihood", "generated")
KINDS = ("prompt", *ANSWER)


class ExecutionLog:
    """Collects the decisions (B, U, T) of every forward pass of a model.

    It listens from outside: a forward hook on the routed decoder reads the output, the model
    itself keeps nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self.passes: list[Tensor | None] = []
        self.routed = isinstance(model.model, RoutedDecoder)
        inner = model.model
        assert isinstance(inner, nn.Module)
        inner.register_forward_hook(self._note)

    def _note(self, module: nn.Module, inputs: Any, output: Any) -> None:
        check_finite(output.last_hidden_state[:, -1], "what the last layer returns")
        self.passes.append(output.executed if isinstance(output, RoutedOutput) else None)


class KindTeller:
    """Tells a router that asks for it which tokens are answer tokens; no other one can know."""

    def __init__(self, model: PreTrainedModel) -> None:
        # Column of the first answer token in the batch at hand.
        self.first = 0
        self.asked = bool(getattr(router_of(model), "reads_kinds", False))
        if self.asked:
            inner = model.model
            assert isinstance(inner, nn.Module)
            inner.register_forward_pre_hook(self._tell, with_kwargs=True)

    def _tell(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        cache, ids = kwargs.get("past_key_values"), kwargs["input_ids"]
        past = 0 if cache is None else cache.get_seq_length()
        columns = torch.arange(past, past + ids.shape[1], device=ids.device).expand_as(ids)
        return args, kwargs | {"context": Context(answers=(columns >= self.first).float())}


class CountingLM(HFLM):
    """A causal LM under lm-eval with tallies of prompt, answer and generated positions.

    Args:
        model: Ready on its device; its generation config gives way to :func:`greedy`.
        tokenizer: Of the model.
        ledger: Sizes of the model's units.
        batch_size: Fixed; a changed batch size changes last bits.
        max_length: Context window, at most the config's; None: the config's.
        pads: Whether sequences of different lengths may share a batch.
        share_prefix: Run a context once for all its answers; of no effect without ``pads``, where
            what follows a token may decide with it.

    Raises:
        ValueError: The context window is longer than the config's.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        ledger: Ledger,
        batch_size: int,
        max_length: int | None,
        pads: bool = True,
        share_prefix: bool = False,
    ) -> None:
        own = window_of(model.config)
        if max_length is not None and max_length > own:
            raise ValueError(f"max_length is {max_length}, the model's window is {own} tokens")
        super().__init__(
            pretrained=model, tokenizer=tokenizer, batch_size=batch_size, max_length=max_length
        )
        self.ledger = ledger
        self.pads = pads
        self.share_prefix = share_prefix
        model.generation_config = greedy(model)
        # Either ends a text: lm-eval's own end of text stops it as a string.
        self.ends = {*end_tokens(model), self.eot_token_id} - {None}
        self.log = ExecutionLog(model)
        self.kinds = KindTeller(model)
        self._row = 0
        self.reset()

    def reset(self) -> None:
        """Empty the tallies and the counts of requests, before a task."""
        self.tallies = {kind: Tally(self.ledger) for kind in KINDS}
        # Requests, and those of which the context window holds the end alone.
        self.asked = self.cut = 0

    def get_model_info(self) -> dict[str, Any]:
        """Nothing: records carry the model's identity, and lm-eval would ask the hub for it."""
        return {}

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt of a task in the tokenizer's chat template."""
        return task_prompt(self.tokenizer, chat_history, add_generation_prompt)

    def _count(self, kind: str, executed: Tensor | None, tokens: int) -> None:
        self.tallies[kind].add(executed, tokens)

    def loglikelihood(self, requests: list[Any], **options: Any) -> list[Any]:
        """lm-eval's own, which takes the first token of an answer without a context."""
        for context, answer in (request.args for request in requests):
            if not context and not self.tok_encode(answer, add_special_tokens=False):
                check_lengths(0, 0, self.max_length)
        return list(super().loglikelihood(requests, **options))

    def _loglikelihood_tokens(self, requests: list[Any], **options: Any) -> list[Any]:
        self._see([len(context) + len(answer) - 1 for _, context, answer in requests])
        for _, context, answer in requests:
            check_lengths(len(context), len(answer), self.max_length)
        found = self._likelihoods(requests, **options)
        check_finite([float(likelihood) for likelihood, _ in found], "log-likelihood of a request")
        return found

    def _see(self, lengths: Sequence[int]) -> None:
        """Count requests by the tokens that they need of the context window.

        Raises:
            ValueError: None fits.
        """
        if lengths and min(lengths) > self.max_length:
            raise ValueError(
                f"every prompt is longer than the context window of {self.max_length} tokens"
            )
        self.asked += len(lengths)
        self.cut += sum(length > self.max_length for length in lengths)

    def _likelihoods(self, requests: list[Any], **options: Any) -> list[Any]:
        if self.share_prefix and self.pads:
            return answer_requests(self, requests, bool(options.get("disable_tqdm")))

        def length(request: tuple[Any, list[int], list[int]]) -> int:
            return len(request[1]) + len(request[2])

        def first(request: tuple[Any, list[int], list[int]]) -> int:
            return min(length(request) - 1, self.max_length) - len(request[2])

        def answer(part: list[Any], **options: Any) -> list[Any]:
            self.kinds.first = first(part[0]) if part else 0
            return super(CountingLM, self)._loglikelihood_tokens(part, **options)

        key = first if self.kinds.asked else None if self.pads else length
        keys = None if key is None else list(map(key, requests))
        return self._grouped(answer, requests, keys, options)

    def generate_until(self, requests: list[Any], **options: Any) -> list[Any]:
        """lm-eval's own, which adds a BOS to all contexts of a batch or to none.

        One length of contexts follows the other where pads would change routes.
        """
        lengths = [len(self.tok_encode(request.args[0])) for request in requests]
        if not all(lengths):
            raise ValueError(
                "a prompt has no token, and a model writes from one; this tokenizer adds none"
            )
        # A task may call the length by any of the names that lm-eval knows.
        given = [normalize_gen_kwargs(r.args[1], self.max_gen_toks) for r in requests]
        limits = [kwargs["max_gen_toks"] for kwargs in given]
        self._see([length + limit for length, limit in zip(lengths, limits, strict=True)])
        begins = Encoder(self.tokenizer).begins
        own = [begins(request.args[0]) for request in requests]
        keys = [(has, 0 if self.pads else n) for has, n in zip(own, lengths, strict=True)]
        return self._grouped(super().generate_until, requests, keys, options)

    def _grouped(
        self,
        answer: Callable[..., list[Any]],
        requests: list[Any],
        keys: Sequence[Hashable] | None,
        options: dict[str, Any],
    ) -> list[Any]:
        """Results in the order of requests; those of one key share batches, without keys all."""
        if keys is None:
            return answer(requests, **options)
        groups = defaultdict(list)
        for number, key in enumerate(keys):
            groups[key].append(number)
        results: dict[int, Any] = {}
        for numbers in groups.values():
            found = answer([requests[number] for number in numbers], **options)
            results |= dict(zip(numbers, found, strict=True))
        return [results[number] for number in range(len(requests))]

    def _model_call(self, inps: Tensor, attn_mask: Any = None, labels: Any = None) -> Tensor:
        self.log.passes.clear()
        self._row = 0
        return super()._model_call(inps, attn_mask, labels)

    def _select_cont_toks(
        self, logits: Tensor, contlen: int | None = None, inplen: int | None = None
    ) -> Tensor:
        # lm-eval calls this once per row of the batch, in order, with the row's true length.
        assert contlen is not None
        assert inplen is not None
        executed = self.log.passes[-1]
        row = None if executed is None else executed[self._row, :, :inplen]
        split = inplen - contlen
        self._count("prompt", None if row is None else row[:, :split], split)
        self._count("likelihood", None if row is None else row[:, split:], contlen)
        self._row += 1
        return super()._select_cont_toks(logits, contlen, inplen)

    def _model_generate(
        self, context: Tensor, max_length: int, stop: list[str], **generation_kwargs: Any
    ) -> Tensor:
        for name in ("num_beams", "num_return_sequences"):
            if generation_kwargs.get(name, 1) != 1:
                raise ValueError(f"generation_kwargs of a task: {name} must be 1 to count what ran")
        self.log.passes.clear()
        self.kinds.first = context.shape[1] - 1
        output = super()._model_generate(context, max_length, stop, **generation_kwargs)
        mask = generation_kwargs["attention_mask"].bool()
        ends = self._ends(generation_kwargs.get("eos_token_id"))
        first, later = self.log.passes[0], self.log.passes[1:]
        for row in range(len(context)):
            real = mask[row]
            seen = None if first is None else first[row][:, real]
            split = int(real.sum()) - 1
            self._count("prompt", None if seen is None else seen[:, :split], split)
            # The token that completes a stop, or the last one, is never fed back.
            fed = min(len(later), self._length(output[row, context.shape[1] :], stop, ends) - 1)
            steps = [p[row] for p in later[: max(fed, 0)] if p is not None]
            # The last token of the context is what the first generated one is read from.
            ran = None if seen is None else torch.cat([seen[:, split:], *steps], dim=1)
            self._count("generated", ran, 1 + max(fed, 0))
        return output

    def _ends(self, given: int | list[int] | None) -> set[int]:
        """Tokens at which a text ends; those that a task gives take the place of the model's."""
        if given is None:
            return self.ends
        return {*(given if isinstance(given, list) else [given]), self.eot_token_id}

    def _length(self, tokens: Tensor, stop: Sequence[str], ends: Collection[int]) -> int:
        """Generated tokens of one row up to and with the one that completes its first stop."""
        ids = tokens.tolist()
        ids = ids[: next((n + 1 for n, token in enumerate(ids) if token in ends), len(ids))]

        def stopped(length: int) -> bool:
            # As lm-eval's stopping rule reads it, special tokens and all: some are stop strings.
            text = self.tok_decode(ids[:length], skip_special_tokens=False)
            return any(word and word in text for word in stop)

        # Containing a stop string is monotone in the length, so bisection finds the first.
        lengths = range(1, len(ids) + 1)
        return (
            1 + bisect_left(lengths, True, key=stopped) if ids and stopped(len(ids)) else len(ids)
        )


def end_tokens(model: PreTrainedModel) -> list[int]:
    """The ids at which the model ends a text: of its generation config, else of its config."""
    given = model.generation_config.eos_token_id
    found = getattr(model.config, "eos_token_id", None) if given is None else given
    return [] if found is None else list(found) if isinstance(found, list) else [found]


def greedy(model: PreTrainedModel) -> GenerationConfig:
    """Greedy decoding with the model's special tokens and nothing else of its settings."""
    given = model.generation_config
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        bos_token_id=given.bos_token_id,
        pad_token_id=given.pad_token_id,
        eos_token_id=end_tokens(model) or None,
    )


def without_environment_report(results: dict[str, Any]) -> None:
    """Takes the place of lm-eval's report of the environment, which runs ``pip list`` per call."""


lm_eval.evaluator.add_env_info = without_environment_report
simple_evaluate: Callable[..., Any] = lm_eval.evaluator.simple_evaluate
