"""Texts that a model writes itself: calibration data that need no data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from methods.core.chat import MARK, apply_template
from methods.core.model.folder import window_of
from methods.core.seeds import seed_for
from methods.core.tokens import Encoder
from workflows.evaluation.ends import end_tokens

# Texts that are written at once. Another number draws other texts.
BATCH = 16


class Writer:
    """Samples texts from a model at temperature 1, without top-k, top-p or penalties.

    A chat model gets the opening of a user turn of its own template and writes the question, then
    it answers it (Magpie, arXiv 2406.08464). A model without a template continues its begin token.
    Pruning calibrated on such texts is as good as on texts of the training data, or better ("Beware
    of calibration data for pruning large language models", arXiv 2410.17711).

    Differs from Magpie: nothing is filtered but conversations with an empty turn.

    Args:
        model: On its device; its generation config is replaced.
        tokenizer: Of the model.
        length: Most tokens of a text, at most the model's window; a question has at most half.
        seed: Of the draws. The same seed gives the same texts on one machine.
        purpose: What the texts are for; another purpose draws other texts.

    Raises:
        ValueError: The tokenizer has neither a chat template nor a begin token, or the template
            does not show the words of a user.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        seed: int,
        purpose: str,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.length = min(length, window_of(model.config))
        self.seed, self.purpose = seed, purpose
        self.opening, closing = _user_turn(tokenizer)
        self.ends = {*end_tokens(model), tokenizer.eos_token_id, *closing} - {None}
        pads = (tokenizer.pad_token_id, *sorted(self.ends), 0)
        self.pad = next(token for token in pads if token is not None)
        model.generation_config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=sorted(self.ends) or None,
            pad_token_id=self.pad,
        )

    def texts(self, rows: int) -> Iterator[dict[str, Any]]:
        """Documents in the form of methods/core/data.py: ``messages`` of a chat model, or ``text``.

        Args:
            rows: How many.

        Raises:
            ValueError: The model ends every text of a batch before its first word.
        """
        number = written = 0
        while written < rows:
            with torch.random.fork_rng():
                torch.manual_seed(seed_for(self.seed, f"{self.purpose} texts {number}"))
                documents = self._batch(min(BATCH, rows - written))
            if not documents:
                raise ValueError("the model ends its texts before their first word")
            yield from documents
            number, written = number + 1, written + len(documents)

    def _batch(self, size: int) -> list[dict[str, Any]]:
        """Up to ``size`` documents: those without a word are left out."""
        if not self.tokenizer.chat_template:
            begin = [[self.tokenizer.bos_token_id]] * size
            return [{"text": text} for text in self._continue(begin, self.length - 1) if text]
        opening = self._encode([self.opening] * size)
        questions = [text for text in self._continue(opening, self.length // 2) if text]
        if not questions:
            return []
        turns = [[{"role": "user", "content": question}] for question in questions]
        prompts = self._encode(
            [apply_template(self.tokenizer, turn, add_generation_prompt=True) for turn in turns]
        )
        left = max(1, self.length - max(map(len, prompts)))
        return [
            {"messages": [*turn, {"role": "assistant", "content": answer}]}
            for turn, answer in zip(turns, self._continue(prompts, left), strict=True)
            if answer
        ]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        encoder = Encoder(self.tokenizer)
        own = [encoder.begins(text) for text in texts]
        return [list(ids) for ids in encoder.encode(texts, own)]

    def _continue(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[str]:
        """What the model writes after each prompt, up to an end token."""
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self.pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        device = self.model.device
        generate: Any = self.model.generate
        with torch.no_grad():
            output = generate(
                ids.to(device), attention_mask=mask.to(device), max_new_tokens=new_tokens
            )
        return [self._text(row) for row in output[:, width:]]

    def _text(self, tokens: Tensor) -> str:
        """The words before the first end token."""
        ids = tokens.tolist()
        stop = next((n for n, token in enumerate(ids) if token in self.ends), len(ids))
        return str(self.tokenizer.decode(ids[:stop], skip_special_tokens=True)).strip()


def _user_turn(tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[int]]:
    """What a chat template writes before the words of a user, and the special token after them.

    Returns:
        Opening, and at most one token; both are empty without a template.

    Raises:
        ValueError: See :class:`Writer`.
    """
    if not tokenizer.chat_template:
        if tokenizer.bos_token_id is None:
            raise ValueError(
                "a model writes texts after the opening of its chat template or after its begin "
                "token; this tokenizer has neither"
            )
        return "", []
    turn = apply_template(tokenizer, [{"role": "user", "content": MARK}])
    opening, found, rest = turn.partition(MARK)
    if not found:
        raise ValueError("the chat template does not show the words of a user")
    after = tokenizer(rest, add_special_tokens=False)["input_ids"][:1]
    return opening, [token for token in after if token in tokenizer.all_special_ids]
