"""Texts that a model writes itself: calibration data that need no data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from methods.core.chat import MARK, apply_template, conversation
from methods.core.model.folder import window_of
from methods.core.seeds import seed_for
from methods.core.tokens import Encoder
from workflows.evaluation.ends import end_tokens

# Texts that are written at once. Another number draws other texts.
BATCH = 16
# Fewest tokens for question and answer together.
ROOM = 8


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
        length: Most tokens of a text, at most the model's window; a question has at most half of
            what the template leaves.
        seed: Of the draws. The same seed gives the same texts on one machine.
        purpose: What the texts are for; another purpose draws other texts.

    Raises:
        ValueError: The tokenizer has neither a chat template nor a begin token, the template does
            not show the words of a user, or it leaves no room for them.
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
        self.encoder = Encoder(tokenizer)
        self.opening, closing = _user_turn(tokenizer)
        self.asking = self.closing = 0
        if tokenizer.chat_template:
            self._measure_template()
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

        Fewer rows are the first ones of more rows.

        Args:
            rows: How many.

        Raises:
            ValueError: The model ends every text of a batch before its first word.
        """
        number = written = 0
        while written < rows:
            with torch.random.fork_rng():
                torch.manual_seed(seed_for(self.seed, f"{self.purpose} texts {number}"))
                documents = self._batch()
            if not documents:
                raise ValueError("the model ends its texts before their first word")
            yield from documents[: rows - written]
            number, written = number + 1, written + len(documents)

    def _measure_template(self) -> None:
        """Count the tokens of the template up to an answer, without the question, and after it.

        Raises:
            ValueError: They leave no room.
        """
        mark = len(self._encode([MARK])[0]) - len(self._encode([""])[0])
        self.asking = len(self._encode([self._prompt(MARK)])[0]) - mark
        whole = len(self._encode([self._chat(MARK, MARK)])[0]) - 2 * mark
        self.closing = max(0, whole - self.asking)
        if self.length - self.asking - self.closing < ROOM:
            raise ValueError(
                f"the chat template alone takes {self.asking + self.closing} tokens: a text of at "
                f"most {self.length} (max_length, or the model's window) leaves fewer than {ROOM} "
                "for question and answer"
            )

    def _batch(self) -> list[dict[str, Any]]:
        """Up to ``BATCH`` documents: those without a word are left out."""
        if not self.tokenizer.chat_template:
            begin = [[self.tokenizer.bos_token_id]] * BATCH
            drawn = self._continue(begin, self.length - 1)
            texts = [self._fit(ids, str, self.length) for ids in drawn]
            return [{"text": text} for text in texts if text]
        opening = self._encode([self.opening] * BATCH)
        room = (self.length - self.asking - self.closing) // 2
        drawn = self._continue(opening, room)
        questions = [self._fit(ids, self._prompt, self.asking + room) for ids in drawn]
        questions = [question for question in questions if question]
        if not questions:
            return []
        prompts = self._encode([self._prompt(question) for question in questions])
        drawn = self._continue(prompts, self.length - self.closing - max(map(len, prompts)))
        answers = [
            self._fit(ids, partial(self._chat, question), self.length)
            for question, ids in zip(questions, drawn, strict=True)
        ]
        return [
            {"messages": _turns(question, answer)}
            for question, answer in zip(questions, answers, strict=True)
            if answer
        ]

    def _prompt(self, question: str) -> str:
        """What the model is fed to answer a question."""
        turns = [{"role": "user", "content": question}]
        return apply_template(self.tokenizer, turns, add_generation_prompt=True)

    def _chat(self, question: str, answer: str) -> str:
        """A conversation as later steps read it."""
        return conversation(self.tokenizer, _turns(question, answer))

    def _fit(self, ids: list[int], whole: Callable[[str], str], most: int) -> str:
        """Words, without the last ones where the text that they are a part of is too long.

        A tokenizer may need more tokens for the words than the model wrote.
        """
        words = self._text(ids)
        while words and (over := len(self._encode([whole(words)])[0]) - most) > 0:
            ids = ids[: -max(1, over // 2)]
            words = self._text(ids)
        return words

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        own = [self.encoder.begins(text) for text in texts]
        return [list(ids) for ids in self.encoder.encode(texts, own)]

    def _continue(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
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
        return [self._before_end(row) for row in output[:, width:].tolist()]

    def _before_end(self, ids: list[int]) -> list[int]:
        """The tokens before the first end token."""
        return list(takewhile(lambda token: token not in self.ends, ids))

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip()


def _turns(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


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
