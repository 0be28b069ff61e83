"""The READMEs' prose says no figure that a committed frame does not hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.claims import SETTINGS, Figure, claims
from workflows import ROOT

# Of the project's README the first screen; of the others all.
LAST = "## What it is for"
# Between the marks of publish stand tables that are made from frames; code has no findings.
MADE = re.compile(r"<!-- table of .*?<!-- end of table -->|^```.*?^```$", re.S | re.M)
CODE_AND_LINKS = re.compile(r"`[^`]*`|\]\([^)]*\)")
NUMBER = re.compile(r"\d[\d,.]*")


def prose(page: Path) -> str:
    """What a page claims, without made tables and code."""
    text, _, _ = page.read_text(encoding="utf-8").partition(LAST)
    return MADE.sub(" ", text)


def faults(text: str, claimed: Sequence[str]) -> Iterator[str]:
    """One sentence for every claim that the text does not make and number that none holds."""
    left = one_line(text)
    for claim in map(one_line, claimed):
        said = re.sub("[⟦⟧]", "", claim)
        if left.count(said) != 1:
            yield f"said {left.count(said)} times, not once: {said}"
        left = left.replace(said, " ")
        for number in numbers(re.sub("⟦[^⟧]*⟧", "", claim)):
            yield f"{number} is typed in the claim: {said}"
    for number in numbers(left):
        yield f"{number} stands in no claim"


def one_line(text: str) -> str:
    return " ".join(text.split())


def numbers(text: str) -> list[str]:
    """What is left of a text's numbers without settings, code and links, with its surroundings."""
    for setting in SETTINGS:
        text = text.replace(setting, " ")
    text = CODE_AND_LINKS.sub(" ", text)
    return [text[max(0, found.start() - 20) : found.end() + 10] for found in NUMBER.finditer(text)]


PAGES = pytest.mark.parametrize("page", claims(), ids=lambda page: str(page.relative_to(ROOT)))


@PAGES
def test_every_figure_of_the_prose_stands_in_a_frame(page: Path) -> None:
    assert list(faults(prose(page), claims()[page])) == []


def test_every_setting_is_needed() -> None:
    text = " ".join(one_line(prose(page)) for page in claims())
    assert [words for words in SETTINGS if words not in text] == []


@PAGES
def test_a_figure_that_moves_is_seen_wherever_it_stands(page: Path) -> None:
    """Every figure of every claim, one at a time, a last digit higher on the page."""
    text, claimed = one_line(prose(page)), claims()[page]
    for claim in map(one_line, claimed):
        for figure in re.finditer("⟦([^⟧]*)⟧", claim):
            digit = str((int(figure[1][-1]) + 1) % 10)
            moved = claim[: figure.end() - 2] + digit + claim[figure.end() - 1 :]
            said, wrong = (re.sub("[⟦⟧]", "", words) for words in (claim, moved))
            assert text.count(said) == 1
            assert list(faults(text.replace(said, wrong), claimed)), wrong


HELD = f"HeRo keeps {Figure(94.04):.1f} at 25 %"


@pytest.mark.parametrize(
    ("text", "claim", "fault"),
    [
        ("HeRo keeps 94.0 at 25 %, so\nthere.", HELD, ""),
        ("HeRo keeps\n94.0 at 25 %.", HELD, ""),
        ("HeRo keeps 94.1 at 25 %.", HELD, "said 0 times, not once: HeRo keeps 94.0"),
        ("HeRo keeps 94.0 at 25 %, MoD-D 80 %.", HELD, "MoD-D 80 %. stands in no claim"),
        ("HeRo keeps 94.0 at 25 % and 7 points.", HELD, "7 points. stands in no claim"),
        ("HeRo keeps 94.0 at 25 %.", "HeRo keeps 94.0 at 25 %", "is typed in the claim"),
        ("The layer `b25` of [a](b/c_1024.csv).", None, ""),
    ],
)
def test_what_is_a_fault(text: str, claim: str | None, fault: str) -> None:
    found = list(faults(text, [claim] if claim else []))
    assert (fault in found[0]) if fault else not found
