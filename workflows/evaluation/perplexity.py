"""Perplexity of a text file, without lm-eval."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from methods.core.model.backbone import decoder
from methods.core.model.families import logits_of
from workflows.evaluation.answers import NO_CHOICE
from workflows.evaluation.fidelity import POSITIONS
from workflows.evaluation.harness import CountingLM
from workflows.evaluation.tasklist import TaskEntry
from workflows.runtime.files import read_text


def perplexity(lm: CountingLM, entry: TaskEntry) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Perplexity per token of a text file: exp of the mean negative log-likelihood.

    The text is tokenized once and cut into windows of the context length, which do not overlap. In
    each window every token but the first is predicted.

    Raises:
        ValueError: The text is shorter than two tokens.
    """
    text = read_text(Path(str(entry.file)))
    ids = torch.tensor(lm.tok_encode(text))
    windows = [w for w in ids.split(lm.max_length) if len(w) > 1][: entry.limit]
    if not windows:
        raise ValueError(f"text file {entry.file} holds fewer than two tokens")
    # Every token is an answer token.
    lm.marker.first = 0
    head, rows = logits_of(lm.model), []
    for number, window in enumerate(tqdm(windows, desc=entry.task, leave=False)):
        lm.log.passes.clear()
        with torch.no_grad():
            output = decoder(lm.model)(input_ids=window[None].to(lm.device), use_cache=False)
            states, nexts = output.last_hidden_state[0, :-1], window[1:].to(lm.device)
            loss = sum(
                cross_entropy(head(part).float(), words, reduction="sum").item()
                for part, words in zip(states.split(POSITIONS), nexts.split(POSITIONS), strict=True)
            )
        executed = lm.log.passes[-1]
        # Nothing is predicted from the last token.
        for kind, part in (("likelihood", slice(0, -1)), ("prompt", slice(-1, None))):
            ran = None if executed is None else executed[0][:, part]
            lm.tallies[kind].add(ran, len(window[part]))
        rows.append(
            {
                "task": entry.task,
                "metric": "perplexity",
                "filter": "none",
                "item": number,
                "value": loss / (len(window) - 1),
                "choice": NO_CHOICE,
                "doc_hash": hashlib.sha256(window.numpy().tobytes()).hexdigest(),
                "tokens": len(window) - 1,
            }
        )
    frame = pd.DataFrame(rows)
    frame["prompt_hash"] = frame["doc_hash"]
    tokens = int(frame["tokens"].sum())
    mean = float((frame["value"] * frame["tokens"]).sum() / tokens)
    score = {
        "task": entry.task,
        "metric": "perplexity",
        "filter": "none",
        "primary": True,
        "higher_is_better": False,
        "value": math.exp(mean),
        "n": tokens,
        "k": None,
        "stderr": None,
        "chance": None,
        "shots": 0,
        "split": "text",
        "chat_template": False,
        "version": 1,
        "prompt_hash": one_hash(frame["prompt_hash"]),
        "doc_hash": one_hash(frame["doc_hash"]),
    }
    return [score], frame.drop(columns="tokens")


def one_hash(hashes: pd.Series[str]) -> str:
    """One hash of those of all items."""
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]
