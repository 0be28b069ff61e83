"""What tests read and do on the page of a suite in a browser."""

from __future__ import annotations

import json
from typing import Any

from tests import browser
from tests.records import TOKENS

WIDTHS = (1280, 400)
HERO = "toy/hero/25/pooled"
SHOWN = "all('#lead-pooled tbody tr').filter((row) => !row.hidden)"


def data(window: browser.Browser) -> dict[str, Any]:
    return dict(json.loads(window.run("document.getElementById('data').textContent")))


def column(window: browser.Browser, head: str) -> list[str]:
    """Cells below a head of the main table, of the rows that are shown."""
    heads = window.run("all('#lead-pooled thead th').map((head) => head.textContent)")
    place = heads.index(head)
    return list(window.run(f"{SHOWN}.map((row) => row.cells[{place}].textContent)"))


def click(window: browser.Browser, selector: str, text: str = "") -> None:
    """The first element that holds a text."""
    has = f"(one) => one.textContent.includes({json.dumps(text)})"
    window.run(f"all({json.dumps(selector)}).find({has}).click()")


def choose(window: browser.Browser, selector: str, value: str) -> None:
    """An option of a list."""
    window.run(
        f"(() => {{ const found = one({json.dumps(selector)}); found.value = {json.dumps(value)};"
        " found.dispatchEvent(new Event('change')); })()"
    )


def search(window: browser.Browser, text: str) -> None:
    typed = f"one('#find').value = {json.dumps(text)}"
    window.run(f"{typed}; one('#find').dispatchEvent(new Event('input'))")


def skips(run: dict[str, Any], task: str) -> list[float]:
    """Percent of the parameters that each token of a prompt skips, by plain loops."""
    shares = [0.0] * len(TOKENS)
    for (_, _, size, _), ran in zip(run["units"], run["routes"][task], strict=True):
        for token, executed in enumerate(ran):
            shares[token] += 100 * size * (executed == "0") / run["parameters"]
    return shares
