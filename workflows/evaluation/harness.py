"""lm-eval on any causal LM, counting exactly which units ran for which tokens.

``CountingLM`` is lm-eval's own Hugging Face class. It reads the decisions of every forward pass and
adds them to a tally per kind of token:

- Log-likelihood. Batches are padded on the right. Tokens are told from pads by the length of the
  row, because the id of a pad may also be that of a token.
- Generation. Batches are padded on the left, with a mask. A row counts until its first stop string.
- A token counts once if it was computed once. lm-eval scores answers of one token with the same
  context from one forward pass. With ``share_prefix`` this holds for answers of any length.

Two other places count into the same tallies: ``prefix.py``, where answers share a context, and
``perplexity.py``, which reads a text in windows.

Every model decodes greedily, whatever its folder says; only ``generation_kwargs`` of a task can
change that.
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
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from methods.core.model.finite import check_finite
from methods.core.model.folder import window_of
from methods.core.model.ledger import Ledger, Tally
from methods.core.routing.routed import RoutedDecoder, RoutedOutput, router_of
from methods.core.routing.router import Context
from methods.core.tokens import Encoder
from workflows.evaluation.chat import task_prompt
from workflows.evaluation.ends import end_tokens, greedy
from workflows.evaluation.prefix import answer_requests, check_lengths

# Kinds of tokens. The output of an answer token is scored: it predicts a token of an answer that is
# compared by likelihood, or of one that is generated. All other tokens are prompt tokens.
ANSWER = ("likelihood", "generated")
KINDS = ("prompt", *ANSWER)


class ExecutionLog:
    """Collects the decisions (B, U, T) of every forward pass of a model; None without a router.

    A forward hook on the decoder reads its output, so the model itself stores nothing.
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


class AnswerMarker:
    """Marks the answer tokens of a batch for a control whose router reads them.

    All other routers see the tokens alone.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        # Column of the first answer token of the current batch, which predicts the answer's first
        # token.
        self.first = 0
        router = router_of(model)
        self.active = router is not None and router.reads_kinds
        if self.active:
            inner = model.model
            assert isinstance(inner, nn.Module)
            self._hook = inner.register_forward_pre_hook(self._mark, with_kwargs=True)

    def remove(self) -> None:
        """Leave the model to callers that mark answer tokens themselves."""
        if self.active:
            self._hook.remove()

    def _mark(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        cache, ids = kwargs.get("past_key_values"), kwargs["input_ids"]
        past = 0 if cache is None else cache.get_seq_length()
        columns = torch.arange(past, past + ids.shape[1], device=ids.device).expand_as(ids)
        return args, kwargs | {"context": Context(answers=(columns >= self.first).float())}


class CountingLM(HFLM):
    """A causal LM in lm-eval that counts what ran, for each kind of tokens.

    Args:
        model: On its device; its generation config is replaced by :func:`greedy`.
        tokenizer: Of the model.
        ledger: Sizes of the model's units.
        batch_size: Fixed, because another batch size changes last bits.
        max_length: Context window, at most the config's; None: the config's.
        batchable: Whether sequences of different lengths may share a batch.
        share_prefix: Run a context once for all its answers. It has no effect unless ``batchable``,
            because later tokens may then change the decision about earlier ones.

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
        batchable: bool = True,
        share_prefix: bool = False,
    ) -> None:
        own = window_of(model.config)
        if max_length is not None and max_length > own:
            raise ValueError(f"max_length is {max_length}, the model's window is {own} tokens")
        # In 16 bits the logits of a long answer are multiples of 0.5, and choices tie.
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=batch_size,
            max_length=max_length,
            softmax_dtype="float32",
        )
        self.ledger = ledger
        self.batchable = batchable
        self.share_prefix = share_prefix and batchable
        model.generation_config = greedy(model)
        # lm-eval's own end of text also ends a text: lm-eval passes it as a stop string.
        self.ends = {*end_tokens(model), self.eot_token_id} - {None}
        self.log = ExecutionLog(model)
        self.marker = AnswerMarker(model)
        self._row = 0
        self.reset()

    def reset(self) -> None:
        """Set the tallies and the counts of requests to zero, before a task."""
        self.tallies = {kind: Tally(self.ledger) for kind in KINDS}
        # All requests, and those that are longer than the context window and lose their beginning.
        self.requests = self.long_requests = 0

    def get_model_info(self) -> dict[str, Any]:
        """Nothing: records have the model's identity, and lm-eval would ask the hub for it."""
        return {}

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt of a task in the tokenizer's chat template."""
        return task_prompt(self.tokenizer, chat_history, add_generation_prompt)

    def loglikelihood(self, requests: list[Any], **options: Any) -> list[Any]:
        """lm-eval's own method; an answer that has no token gets one sentence as its error.

        Without a context lm-eval takes the first token of the answer as the context.
        """
        for context, answer in (request.args for request in requests):
            if not context and not self.tok_encode(answer, add_special_tokens=False):
                check_lengths(0, 0, self.max_length)
        return list(super().loglikelihood(requests, **options))

    def _loglikelihood_tokens(self, requests: list[Any], **options: Any) -> list[Any]:
        self._count_requests([len(context) + len(answer) - 1 for _, context, answer in requests])
        for _, context, answer in requests:
            check_lengths(len(context), len(answer), self.max_length)
        answers = self._likelihoods(requests, **options)
        check_finite([float(value) for value, _ in answers], "log-likelihood of a request")
        return answers

    def _count_requests(self, lengths: Sequence[int], what: str = "prompt") -> None:
        """Count requests, and those that do not fit into the context window.

        Args:
            lengths: Tokens of each request.
            what: What has so many tokens, for the message.

        Raises:
            ValueError: No request fits.
        """
        if lengths and min(lengths) > self.max_length:
            raise ValueError(
                f"every {what} is longer than the context window of {self.max_length} tokens"
            )
        self.requests += len(lengths)
        self.long_requests += sum(length > self.max_length for length in lengths)

    def _likelihoods(self, requests: list[Any], **options: Any) -> list[Any]:
        """Log-likelihoods, in batches that the model's router allows.

        A batch has one length where pads would change routes, and one column of the first answer
        token where the router reads the marks.
        """
        if self.share_prefix:
            return answer_requests(self, requests, bool(options.get("disable_tqdm")))

        def length(request: tuple[Any, list[int], list[int]]) -> int:
            return len(request[1]) + len(request[2])

        def first(request: tuple[Any, list[int], list[int]]) -> int:
            return min(length(request) - 1, self.max_length) - len(request[2])

        def answer(part: list[Any], **options: Any) -> list[Any]:
            self.marker.first = first(part[0]) if part else 0
            return super(CountingLM, self)._loglikelihood_tokens(part, **options)

        keys = [
            first(r) if self.marker.active else 0 if self.batchable else length(r) for r in requests
        ]
        return self._answer_by_key(answer, requests, keys, options)

    def generate_until(self, requests: list[Any], **options: Any) -> list[Any]:
        """lm-eval's own method, on batches in which either all contexts begin with a BOS or none.

        lm-eval adds a BOS to a whole batch or to no context of it. Where pads would change routes,
        a batch has contexts of one length.
        """
        lengths = [len(self.tok_encode(request.args[0])) for request in requests]
        if not all(lengths):
            raise ValueError(
                "a prompt has no token, and a model writes from one; this tokenizer adds none"
            )
        # lm-eval has several names for the largest number of generated tokens.
        settings = [normalize_gen_kwargs(r.args[1], self.max_gen_toks) for r in requests]
        limits = [kwargs["max_gen_toks"] for kwargs in settings]
        self._count_requests(
            [length + limit for length, limit in zip(lengths, limits, strict=True)],
            "prompt with the tokens to generate (max_gen_toks)",
        )
        begins = Encoder(self.tokenizer).begins
        has_bos = [begins(request.args[0]) for request in requests]
        keys = [(bos, 0 if self.batchable else n) for bos, n in zip(has_bos, lengths, strict=True)]
        return self._answer_by_key(super().generate_until, requests, keys, options)

    def _answer_by_key(
        self,
        answer: Callable[..., list[Any]],
        requests: list[Any],
        keys: Sequence[Hashable],
        options: dict[str, Any],
    ) -> list[Any]:
        """Results in the order of requests; only requests with the same key share a batch.

        Args:
            answer: lm-eval's method.
            requests: Of lm-eval.
            keys: One per request.
            options: More arguments of ``answer``.
        """
        groups = defaultdict(list)
        for number, key in enumerate(keys):
            groups[key].append(number)
        results: dict[int, Any] = {}
        for numbers in groups.values():
            group = answer([requests[number] for number in numbers], **options)
            results |= dict(zip(numbers, group, strict=True))
        return [results[number] for number in range(len(requests))]

    def _model_call(self, inps: Tensor, attn_mask: Any = None, labels: Any = None) -> Tensor:
        self.log.passes.clear()
        self._row = 0
        return super()._model_call(inps, attn_mask, labels)

    def _select_cont_toks(
        self, logits: Tensor, contlen: int | None = None, inplen: int | None = None
    ) -> Tensor:
        # lm-eval calls this once per row of the batch, in order; inplen has no pads.
        assert contlen is not None
        assert inplen is not None
        executed = self.log.passes[-1]
        row = None if executed is None else executed[self._row, :, :inplen]
        split = inplen - contlen
        self.tallies["prompt"].add(None if row is None else row[:, :split], split)
        self.tallies["likelihood"].add(None if row is None else row[:, split:], contlen)
        self._row += 1
        return super()._select_cont_toks(logits, contlen, inplen)

    def _model_generate(
        self, context: Tensor, max_length: int, stop: list[str], **generation_kwargs: Any
    ) -> Tensor:
        for name in ("num_beams", "num_return_sequences"):
            if generation_kwargs.get(name, 1) != 1:
                raise ValueError(f"generation_kwargs of a task: {name} must be 1 to count what ran")
        self.log.passes.clear()
        self.marker.first = context.shape[1] - 1
        output = super()._model_generate(context, max_length, stop, **generation_kwargs)
        mask = generation_kwargs["attention_mask"].bool()
        ends = self._ends(generation_kwargs.get("eos_token_id"))
        first, later = self.log.passes[0], self.log.passes[1:]
        for row in range(len(context)):
            real = mask[row]
            prompt = None if first is None else first[row][:, real]
            split = int(real.sum()) - 1
            self.tallies["prompt"].add(None if prompt is None else prompt[:, :split], split)
            # The last token, which completes a stop string or is the end, is not fed to the model.
            length = self._length(output[row, context.shape[1] :], stop, ends)
            fed = max(0, min(len(later), length - 1))
            steps = [p[row] for p in later[:fed] if p is not None]
            # The first generated token is predicted by the last token of the context.
            executed = None if prompt is None else torch.cat([prompt[:, split:], *steps], dim=1)
            self.tallies["generated"].add(executed, 1 + fed)
        return output

    def _ends(self, override: int | list[int] | None) -> set[int]:
        """Tokens at which a text ends; a task's ``generation_kwargs`` may override the model's."""
        if override is None:
            return self.ends
        return {*(override if isinstance(override, list) else [override]), self.eot_token_id}

    def _length(self, tokens: Tensor, stop: Sequence[str], ends: Collection[int]) -> int:
        """Number of generated tokens of one row, up to and with the end of its first stop."""
        ids = tokens.tolist()
        ids = ids[: next((n + 1 for n, token in enumerate(ids) if token in ends), len(ids))]

        def has_stop(length: int) -> bool:
            # lm-eval's stopping rule keeps special tokens too, because some are stop strings.
            text = self.tok_decode(ids[:length], skip_special_tokens=False)
            return any(word and word in text for word in stop)

        # A text that has a stop string still has it when it grows, so bisection finds the first.
        lengths = range(1, len(ids) + 1)
        return (
            1 + bisect_left(lengths, True, key=has_stop) if ids and has_stop(len(ids)) else len(ids)
        )


def without_environment_report(results: dict[str, Any]) -> None:
    """Replaces lm-eval's report of the environment, which runs ``pip list`` at every call."""


lm_eval.evaluator.add_env_info = without_environment_report
simple_evaluate: Callable[..., Any] = lm_eval.evaluator.simple_evaluate
