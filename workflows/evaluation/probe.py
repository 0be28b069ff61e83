"""Probe texts: documents of the tasks that are not scored, in the form in which tasks are scored.

Thresholds of routers are calibrated on them. lm-eval's own task objects make contexts,
demonstrations and choices, from the training split (else the validation split), with the entry's
number of demonstrations and its chat template.

A row has the input text of one request: a context and one answer.

- An answer that is compared lacks its last word. That stands for its last token, which the harness
  does not run.
- An answer that is generated is the task's own target, complete: after it the model would write the
  token that ends the text.

``counts`` weigh the tokens of a row, first those of the context, then those of the answer. Each
token counts scored items / drawn documents. If a context runs once for all its answers, its weight
is divided among their rows.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from methods.core.seeds import seed_for
from workflows.evaluation.chat import task_prompt
from workflows.evaluation.loading import CannotRun, explained, load, task_manager
from workflows.evaluation.score import SEEDS
from workflows.evaluation.tasklist import TaskEntry

Template = Callable[..., str]
# Context, and the text after it.
Texts = tuple[str, str]


def probe_rows(
    entries: Sequence[TaskEntry],
    task_folders: Sequence[Path],
    documents: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    seed: int = 0,
    exclude: Collection[str] = (),
    share_prefix: bool = False,
) -> Iterator[dict[str, Any]]:
    """Rows of the form ``fed`` (``methods/core/data.py``), task after task.

    Args:
        entries: Tasks as they are scored. Entries with ``probe: false`` have no rows, and neither
            have perplexities, because their whole text is scored.
        task_folders: Folders of own tasks.
        documents: Number of documents per entry, drawn at random; all if there are fewer. The tasks
            of a group divide the number among them, at least one each.
        tokenizer: With the chat template; None if no entry uses one.
        seed: Of the draw.
        exclude: Tasks that cannot be scored here.
        share_prefix: Whether the harness runs, and counts, a context once for all its answers.

    Raises:
        ValueError: A task's data are not on this machine, or are all scored; or an entry asks for a
            chat template and the tokenizer has none.
    """
    chosen = [
        entry
        for entry in entries
        if entry.probe and not entry.is_perplexity and entry.task not in exclude
    ]
    manager = task_manager(chosen, task_folders)
    for entry in chosen:
        template = _template(entry, tokenizer)
        try:
            tasks = load(entry, manager).get_all_tasks()
            each = -(-documents // len(tasks))
            weights = [_draw(entry, task, each, seed, template) for task in tasks]
        except CannotRun:
            continue
        except OSError as error:
            raise ValueError(f"the data of task '{entry.task}' are not here: {error}") from error
        for task, weight in zip(tasks, weights, strict=True):
            yield from _rows(entry, task, weight, share_prefix)


def _rows(
    entry: TaskEntry, task: Any, weight: float, share_prefix: bool
) -> Iterator[dict[str, Any]]:
    """Rows of the documents that were drawn from one task; equal requests make one row."""
    texts = dict.fromkeys(_texts(task, instance, entry) for instance in task.instances)
    answers = Counter(context for context, _ in texts)
    for context, rest in texts:
        if context + rest:
            yield {
                "fed": context + rest,
                "prompt": context,
                "task": entry.task,
                "counts": [weight / (answers[context] if share_prefix else 1), weight],
            }


def _template(entry: TaskEntry, tokenizer: PreTrainedTokenizerBase | None) -> Template | None:
    """A function from messages to a text, in the form in which lm-eval calls it."""
    if not entry.chat_template:
        return None
    if tokenizer is None or not tokenizer.chat_template:
        raise ValueError(f"task '{entry.task}' asks for a chat template, and there is none")
    return partial(task_prompt, tokenizer)


def _draw(
    entry: TaskEntry, task: Any, documents: int, seed: int, template: Template | None
) -> float:
    """Draw documents that are not scored, and build their requests in the task.

    Returns:
        Scored items per drawn document.
    """
    task.set_fewshot_seed(SEEDS["fewshot_random_seed"])
    config = task.config
    scored = config.test_split or config.validation_split
    others = (config.training_split, config.validation_split)
    split = next((name for name in others if name not in (None, scored)), None)
    scored_docs = task.eval_docs
    scored_keys = {_key(doc) for doc in scored_docs}
    if task.fewshot_cfg.split is None and task.fewshot_cfg.samples is None:
        # lm-eval's own default; if it is set, a document is never a demonstration of itself.
        task.fewshot_cfg.split = others[0] or others[1]
    # lm-eval builds requests from the test split.
    task.set_config("test_split", split)
    docs = [] if split is None else task.eval_docs
    free = [number for number, doc in enumerate(docs) if _key(doc) not in scored_keys]
    if not free:
        raise ValueError(
            f"task '{task.task_name}' has no document beside its scored split '{scored}', "
            "so no probe can be made of it; give it a training_split, or probe: false"
        )
    rng = random.Random(seed_for(seed, f"probe {task.task_name}"))
    drawn = rng.sample(free, min(documents, len(free)))
    with explained(entry.task):
        task.build_all_requests(
            samples=drawn,
            apply_chat_template=template is not None,
            fewshot_as_multiturn=True,
            chat_template=template,
        )
    return min(len(scored_docs), entry.limit or len(scored_docs)) / len(drawn)


def _key(doc: Any) -> str:
    return json.dumps(doc, sort_keys=True, default=str)


def _texts(task: Any, instance: Any, entry: TaskEntry) -> Texts:
    """The input of a request: its context, and the part of the answer that runs after it."""
    if instance.request_type == "generate_until":
        target = task.doc_to_target(instance.doc)
        answer = target[0] if isinstance(target, list) else str(target)
        # With a template the prompt ends where the answer begins; no delimiter is between them.
        space = "" if entry.chat_template else task.config.target_delimiter
        return instance.args[0], space + answer
    # A text with a rolling likelihood is an answer without a context.
    context, answer = instance.args if len(instance.args) > 1 else ("", *instance.args)
    # As in lm-eval, spaces at the end of a context belong to its answer.
    prompt = context.rstrip()
    return prompt, re.sub(r"\s*\S+\s*$", "", context[len(prompt) :] + answer)
