"""The figure of the page as a reader uses it, in a headless Chromium at two widths."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest

from tests import browser
from tests.page import HERO, WIDTHS, choose, data

pytestmark = pytest.mark.skipif(
    browser.COMMAND is None, reason=f"no Chromium here (none of {', '.join(browser.NAMES)})"
)


def test_the_figure_tells_of_a_record_and_opens_its_row(window: browser.Browser) -> None:
    hero = next(line for line in data(window)["lines"] if line["id"] == HERO)
    label = "(one) => one.getAttribute('aria-label').startsWith('Hero, 25 %')"
    marks = f"all('#scatter .mark').find({label})"
    window.run(f"{marks}.focus()")
    text = window.run("one('#hint').textContent")
    for name in ("retain", "skip", "skip_answer"):
        assert f"{hero['numbers'][name]:.2f}" in text
    place = window.run(f"{marks}.getAttribute('transform')")
    choose(window, "#scatter select", "skip_answer")
    assert window.run(f"{marks}.getAttribute('transform')") != place
    assert "x=skip_answer" in window.run("location.hash")
    caption = window.run("one('#caption').textContent")
    assert "Retain (%) with its 95 % interval. Horizontal: skip on answer tokens (%)" in caption
    choose(window, "#scatter label:last-child select", "kl")
    assert "Vertical: KL (nats per token). Horizontal:" in window.run("one('#caption').textContent")
    window.run(f"{marks}.dispatchEvent(new MouseEvent('click'))")
    assert window.run("one('#row').open")
    assert window.run("one('#row-title').textContent") == "Hero, 25 %, match pooled"


@pytest.mark.parametrize("width", WIDTHS)
def test_names_in_the_figure_cover_no_mark_and_no_other_name(
    chromium: browser.Browser, page: Path, width: int
) -> None:
    chromium.open(page, width=width)
    sides = "const b = one.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom];"
    box = f"(one) => {{ {sides} }}"
    names, marks = (
        chromium.run(f"all('#scatter {what}').map({box})") for what in (".name", ".mark path")
    )
    assert names
    for name, other in [*product(names, marks), *combinations(names, 2)]:
        across = min(name[2], other[2]) - max(name[0], other[0])
        # Boxes reach above and below what most letters fill.
        assert across < 1 or min(name[3], other[3]) - max(name[1], other[1]) < 3
    # Nothing is drawn over a name.
    last = f"all('#scatter > svg > *').slice(-{len(names)})"
    assert set(chromium.run(f"{last}.map((one) => one.tagName)")) == {"text"}


@pytest.mark.parametrize("width", WIDTHS)
def test_the_best_of_each_budget_and_the_references_have_a_name_in_the_figure(
    chromium: browser.Browser, page: Path, width: int
) -> None:
    chromium.open(page, width=width)
    names = chromium.run("all('#scatter .name').map((one) => one.textContent)")
    lines = [line for line in data(chromium)["lines"] if line["match"] == "pooled"]
    for target in {line["target"] for line in lines}:
        same = [line for line in lines if line["target"] == target and line["numbers"]["retain"]]
        best = max(same, key=lambda line: line["numbers"]["retain"])
        for line in same if target is None else [best]:
            assert line["title"] in names
