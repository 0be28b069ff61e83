"""Damaged inputs of every class: a right result or one sentence, nothing half-written.

The cases are the same in every run: a fixed corpus, and draws of hypothesis without a seed of time.
"""

from __future__ import annotations

import logging
import resource
import shutil
import signal
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from transformers.utils import logging as transformers_logging

from tests import steps
from tests.fuzz.corpus import CORPUS
from tests.fuzz.edits import Edit, byte_edits, value_edits
from tests.fuzz.owners import OWNERS, Owner
from workflows.evaluation.loading import CannotRun
from workflows.runtime.program import sentence

# Drawn cases per class, beside those of the corpus.
DRAWN = {
    "configs": 50, "tokenizers": 50, "weights": 30, "shards": 30, "documents": 50, "suites": 25,
    "tasks": 8, "records": 16, "decisions": 10, "models": 30, "command fit": 12,
    "command score": 6, "command data": 16,
}  # fmt: skip
LEAST, SECONDS, MEGABYTES = 300, 20, 1024
STRUCTURED = (".json", ".jsonl", ".yaml")
ran: Counter[str] = Counter()
slowest: defaultdict[str, float] = defaultdict(float)


@pytest.fixture(scope="module", autouse=True)
def peak_before() -> int:
    """Peak memory of this process before the first case, in KiB: other tests may run before."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Libraries complain of what is damaged; their bars would fill the log."""
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)
    transformers_logging.enable_progress_bar()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Class -> folder of its good input, which is read once: it must be right."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("fuzz") / "good"
            made[name].mkdir()
            OWNERS[name].make(made[name])
            copy = shutil.copytree(made[name], made[name].parent / "case")
            OWNERS[name].read(copy)
        return made[name]

    return folder


def try_case(name: str, good: Path, edit: Edit) -> None:
    """Damage a copy and have it read; the limit of time ends a reader that hangs."""
    owner, folder = OWNERS[name], good.parent / "case"
    shutil.rmtree(folder)
    shutil.copytree(good, folder)
    edit(folder)
    before = sorted(folder.rglob("*"))
    start = process_time()
    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(60)
    try:
        owner.read(folder)
    except (ValueError, OSError) as error:
        check_refusal(error, owner, folder)
        assert sorted(folder.rglob("*")) == before
    finally:
        signal.alarm(0)
    assert not [file for file in folder.rglob("*") if file.name.endswith(".part")]
    ran[name] += 1
    slowest[name] = max(slowest[name], process_time() - start)


def hangs(number: int, frame: object) -> None:
    raise TimeoutError("a reader took more than a minute")


def check_refusal(error: ValueError | OSError, owner: Owner, folder: Path) -> None:
    """One sentence of a length to read, which names what is wrong; no error of a library's own."""
    said = sentence(error)
    assert not isinstance(error, TimeoutError), said
    assert type(error) in (ValueError, CannotRun, FileNotFoundError), repr(error)
    assert any(word in said for word in (str(folder), *owner.names)), said
    assert 8 < len(said) < 1200
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name in CORPUS for n in range(len(CORPUS[name]))]
)
def test_the_corpus(name: str, number: int, good: Callable[[str], Path]) -> None:
    try_case(name, good(name), CORPUS[name][number])


@pytest.mark.long
@pytest.mark.parametrize("name", DRAWN)
def test_drawn_damage(name: str, good: Callable[[str], Path]) -> None:
    folder, before = good(name), ran[name]
    kinds = [byte_edits(folder, file) for file in OWNERS[name].files if "command" not in name]
    kinds += [value_edits(folder, f) for f in OWNERS[name].files if f.endswith(STRUCTURED)]

    @settings(
        max_examples=DRAWN[name], derandomize=True, database=None, deadline=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.one_of(kinds))
    def draw(edit: Edit) -> None:
        try_case(name, folder, edit)

    draw()
    assert ran[name] - before >= DRAWN[name]


def test_enough_cases_in_bounds(peak_before: int) -> None:
    """Every class has cases, and what ran took neither long nor much memory."""
    planned = {name: len(CORPUS[name]) + DRAWN[name] for name in OWNERS}
    assert set(CORPUS) == set(DRAWN) == set(OWNERS)
    assert min(planned.values()) >= 10
    assert sum(planned.values()) >= LEAST
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before) / 1024
    print("\nclass,cases,slowest_seconds")
    for name, cases in ran.items():
        print(f"{name},{cases},{slowest[name]:.1f}")
    print(f"all,{ran.total()},{max(slowest.values()):.1f}")
    print(f"{grown:.0f} MB more at the peak than before")
    assert max(slowest.values()) < SECONDS
    assert grown < MEGABYTES


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("fit", "--method shortgpt --backbone gone --out out --calibration gone.npy"),
        ("score", "--model gone --tasks demo_boolean --out out.json"),
        ("report", "--results gone --out out"),
        ("data", "--part training --source [] --out rows.jsonl"),
    ],
)
def test_the_status_of_a_process(step: str, words: str, tmp_path: Path) -> None:
    given = [str(tmp_path / w) if w.startswith(("out", "rows")) else w for w in words.split()]
    done = steps.python("-m", f"workflows.steps.{step}", *given)
    assert done.returncode == 2
    assert steps.sentence(done.stderr)
    assert not list(tmp_path.iterdir())
