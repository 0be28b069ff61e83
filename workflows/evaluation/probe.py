"""Probe rows from what tasks hold beside their scored split, in the form the harness feeds.

Contexts, demonstrations and choices come from lm-eval's own task objects, set on the training split
(else on the validation split) with the entry's shots and template. A row holds one text that is
fed: a context and one answer without its last word, which stands for its last token; an answer to
be written is the task's own target, whole, for its end is one more token. Its ``counts`` say how
many scored tokens a token stands for: as many as scored items come on one that was drawn, and where
a context is run once for all its answers, that of a context is shared among their rows.
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
from workflows.evaluation.loading import CannotRun, explained, load
from workflows.evaluation.score import SEEDS, task_manager
from workflows.evaluation.tasklist import TaskEntry

Template = Callable[..., str]
# Context, and what stands behind it.
Fed = tuple[str, str]


def probe_rows(
    entries: Sequence[TaskEntry],
    task_folders: Sequence[Path],
    documents: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    seed: int = 0,
    left_out: Collection[str] = (),
    share_prefix: bool = False,
) -> Iterator[dict[str, Any]]:
    """Rows of the form ``fed`` (``methods/core/data.py``), task after task.

    Args:
        entries: Tasks as they are scored; texts of a perplexity are scored whole and left out, and
            so is what says ``probe: false``.
        task_folders: Folders of own tasks.
        documents: Of each task, drawn without order; all where there are fewer. Tasks of a group
            share them, one each at least.
        tokenizer: Whose chat template is meant; None where no entry asks for one.
        seed: Of the draw.
        left_out: Tasks that cannot be scored here.
        share_prefix: Whether a context is run, and counted, once for all its answers.

    Raises:
        ValueError: A task's data are not here, or hold nothing beside the scored split; or there is
            no chat template where an entry asks for one.
    """
    wanted = [
        entry
        for entry in entries
        if entry.probe and not entry.is_perplexity and entry.task not in left_out
    ]
    manager = task_manager(wanted, task_folders)
    for entry in wanted:
        template = _template(entry, tokenizer)
        try:
            tasks = load(entry, manager).get_all_tasks()
            each = -(-documents // len(tasks))
            drawn = [_drawn(entry, task, each, seed, template) for task in tasks]
        except CannotRun:
            continue
        except OSError as error:
            raise ValueError(f"the data of task '{entry.task}' are not here: {error}") from error
        for task, stands_for in drawn:
            fed = dict.fromkeys(_fed(task, instance, entry) for instance in task.instances)
            rows = Counter(context for context, _ in fed)
            for prompt, rest in fed:
                sharing = rows[prompt] if share_prefix else 1
                if prompt + rest:
                    yield {
                        "fed": prompt + rest,
                        "prompt": prompt,
                        "task": entry.task,
                        "counts": [stands_for / sharing, stands_for],
                    }


def _template(entry: TaskEntry, tokenizer: PreTrainedTokenizerBase | None) -> Template | None:
    """What turns messages into a text, as lm-eval calls it."""
    if not entry.chat_template:
        return None
    if tokenizer is None or not tokenizer.chat_template:
        raise ValueError(f"task '{entry.task}' asks for a chat template, and there is none")
    return partial(task_prompt, tokenizer)


def _drawn(
    entry: TaskEntry, task: Any, documents: int, seed: int, template: Template | None
) -> tuple[Any, float]:
    """The task with the requests of documents that are not scored; scored ones per each of them."""
    task.set_fewshot_seed(SEEDS["fewshot_random_seed"])
    config = task.config
    scored = config.test_split or config.validation_split
    others = (config.training_split, config.validation_split)
    split = next((name for name in others if name not in (None, scored)), None)
    asked = task.eval_docs
    kept = {_key(doc) for doc in asked}
    if task.fewshot_cfg.split is None and task.fewshot_cfg.samples is None:
        # Where lm-eval looks for demonstrations; said aloud, it leaves out the document at hand.
        task.fewshot_cfg.split = others[0] or others[1]
    # lm-eval scores the test split.
    task.set_config("test_split", split)
    docs = [] if split is None else task.eval_docs
    free = [number for number, doc in enumerate(docs) if _key(doc) not in kept]
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
    return task, min(len(asked), entry.limit or len(asked)) / len(drawn)


def _key(doc: Any) -> str:
    return json.dumps(doc, sort_keys=True, default=str)


def _fed(task: Any, instance: Any, entry: TaskEntry) -> Fed:
    """What the harness feeds for a request: its context, and what follows."""
    if instance.request_type == "generate_until":
        target = task.doc_to_target(instance.doc)
        answer = target[0] if isinstance(target, list) else str(target)
        # A template ends where the answer begins.
        space = "" if entry.chat_template else task.config.target_delimiter
        return instance.args[0], space + answer
    # Texts of a rolling likelihood are answers without a context.
    context, answer = instance.args if len(instance.args) > 1 else ("", *instance.args)
    # Spaces that end a context belong to its answer, as in lm-eval.
    prompt = context.rstrip()
    return prompt, re.sub(r"\s*\S+\s*$", "", context[len(prompt) :] + answer)
