"""The page as a reader uses it, in a headless Chromium at two widths and in both colour schemes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from tests import browser
from tests.page import HERO, WIDTHS, choose, click, column, data, search, skips
from tests.records import NASTY, TOKENS

pytestmark = pytest.mark.skipif(
    browser.COMMAND is None, reason=f"no Chromium here (none of {', '.join(browser.NAMES)})"
)
# Milliseconds from a click to what it shows.
PAINT = 200
ACCESSIBLE = (Path(__file__).parents[1] / "accessible.js").read_text(encoding="utf-8")


def test_a_head_sorts_down_up_and_back(window: browser.Browser) -> None:
    def retains() -> list[float]:
        return [float(cell.split()[0]) for cell in column(window, "Retain") if cell != "–"]

    before = column(window, "Row")
    first = retains()
    assert first != sorted(first, reverse=True)
    click(window, "#lead-pooled th button", "Retain")
    assert retains() == sorted(first, reverse=True)
    assert column(window, "Retain")[-1] == "–"
    assert window.run("one('#lead-pooled th[aria-sort=descending]').textContent") == "Retain"
    click(window, "#lead-pooled th button", "Retain")
    assert retains() == sorted(first)
    click(window, "#lead-pooled th button", "Retain")
    assert column(window, "Row") == before


def test_rows_are_filtered_in_every_table(window: browser.Browser) -> None:
    lines = [line for line in data(window)["lines"] if line["match"] == "pooled"]
    assert len(column(window, "Row")) == len(lines)
    click(window, "#filters label", "static")
    assert column(window, "Row") == [n["title"] for n in lines if n["kind"] != "static"]
    ranks = "all('[data-name=ranks] tbody tr').filter((row) => !row.hidden).length"
    assert window.run(ranks) == 4
    click(window, "#filters label", "40 %")
    assert window.run(ranks) == 2
    search(window, "HER")
    assert column(window, "Row") == ["Hero"]
    assert window.run("one('#count').textContent") == f"1 of {len(lines)} rows"
    assert window.run("all('#scatter .mark').length") == 1


def test_variants_can_be_left_out(window: browser.Browser) -> None:
    click(window, "#filters label", "variants")
    assert "Shortgpt+Lora" not in column(window, "Row")
    assert "Hero" in column(window, "Row")


def test_one_protocol_is_shown_at_a_time(window: browser.Browser) -> None:
    sections = (
        "all('section[data-match]').filter((one) => !one.hidden).map((one) => one.dataset.match)"
    )
    assert set(window.run(sections)) == {"pooled"}
    click(window, "#filters label", "split")
    assert set(window.run(sections)) == {"split"}


def test_columns_come_by_group(window: browser.Browser) -> None:
    def shown() -> list[str]:
        heads = "all('#lead-pooled thead th').filter((one) => one.getClientRects().length)"
        return list(window.run(f"{heads}.map((one) => one.textContent)"))

    assert shown()[:3] == ["Row", "Note", "Target"]
    assert "On answers" in shown()
    assert "left acc" not in shown()
    click(window, "#filters label", "scores")
    click(window, "#filters label", "skip")
    assert "left acc" in shown()
    assert "On answers" not in shown()


def test_what_is_shown_is_copied_in_three_forms(window: browser.Browser) -> None:
    window.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    search(window, "hero")
    texts = {}
    for form in ("CSV", "Markdown", "LaTeX"):
        click(window, "#lead-pooled .copy button", form)
        texts[form] = str(window.run("window.copied"))
    retain = column(window, "Retain")
    assert texts["CSV"].splitlines()[0].startswith("Row,Note,Target,Seeds,Retain")
    assert [line.split(",")[0] for line in texts["CSV"].splitlines()[1:]] == ["Hero", "Hero"]
    assert texts["Markdown"].splitlines()[1].startswith("| --- | --- |")
    assert texts["LaTeX"].startswith("\\begin{tabular}{llll")
    for form, text in texts.items():
        for cell in (" ".join(cell.split()) for cell in retain):
            signs = {"±": r"$\pm$", "≈": r"$\approx$"} if form == "LaTeX" else {}
            assert "".join(signs.get(sign, sign) for sign in cell) in text
    assert "%" not in texts["LaTeX"].replace("\\%", "")


def test_printed_tables_have_heads_and_no_controls(window: browser.Browser) -> None:
    try:
        window.call("Emulation.setEmulatedMedia", media="print")
        # A button as a box is missing in heads from the second printed page on.
        assert window.run("getComputedStyle(one('#lead-pooled th button')).display") == "contents"
        assert window.run("all('select, .copy').filter((one) => one.getClientRects().length)") == []
    finally:
        window.call("Emulation.setEmulatedMedia", media="")


def test_a_row_opens_by_keyboard_and_closes_again(window: browser.Browser) -> None:
    window.run("one('#lead-pooled button.open').focus()")
    window.press("Enter")
    window.wait("one('#row').open")
    assert window.run("one('#row-title').textContent") == "Dense, match pooled"
    window.press("Escape")
    window.wait("!one('#row').open")
    window.wait("!location.hash.includes('row=')")
    window.press("/")
    assert window.run("document.activeElement.id") == "find"


def test_an_item_shows_what_was_asked_and_answered_and_runs_nothing(
    window: browser.Browser,
) -> None:
    window.run(f"go({{ row: {json.dumps(HERO)}, task: 'left' }})")
    lost = data(window)["runs"]["toy/hero/b25/s42"]["items"]["left"]["lost"]
    number, answer = next(iter(lost["items"].items()))
    click(window, "#row summary", f"lost item {number}:")
    window.wait("location.hash.includes('item=left')")
    text = window.run("one('#row details[open]').innerText")
    assert f"{NASTY} {number}".split("\u2028")[0] in text
    assert f"{answer[1]:.2f}" in text
    assert window.run("document.title") == "skipbench: made"
    texts = window.run("one('#row').innerText")
    for part in (
        "by kind of token",
        "by layer",
        "What the fit decided",
        "Params",
        "This number again",
    ):
        assert part in texts
    assert "60 of 100 entries" in texts


def test_the_routing_viewer_shows_every_routed_row_side_by_side(window: browser.Browser) -> None:
    figures = data(window)
    choose(window, "#routing select", "right")
    assert window.run("all('#routing figure').length") == 2
    words = "all('#routing figure:first-child svg text').map((one) => one.textContent)"
    assert window.run(words)[: len(TOKENS)] == [token.strip() for token in TOKENS]
    run = figures["runs"]["toy/hero/b25/s42"]
    left, right = skips(run, "left"), skips(run, "right")
    here = f"prompt {sum(right[:5]) / 5:.2f} %, answers {sum(right[5:]) / 2:.2f} %"
    assert here in window.run("one('#routing figcaption').textContent")
    click(window, "#routing summary")
    window.wait("all('#routing .words tbody tr').length")
    row = "all('#routing .words tbody tr').find((row) => row.cells[0].textContent === 'of')"
    word, times, mean, _ = window.run(f"[...{row}.cells].map((one) => one.textContent)")
    every = [skip for part in (left, right) for skip in part[4:6]]
    assert (word, times) == ("of", "4")
    assert float(mean) == pytest.approx(sum(every) / 4, abs=0.01)


def test_an_address_holds_what_is_shown(chromium: browser.Browser, page: Path) -> None:
    state = {
        "match": "split", "hide": "static", "columns": "scores", "sort": "retain|Retain|up",
        "x": "skip_net", "y": "left:acc", "row": "toy/hero/40/split", "task": "right",
        "theme": "dark",
    }  # fmt: skip
    chromium.prefer("light")
    chromium.open(page, "#" + "&".join(f"{key}={quote(value)}" for key, value in state.items()))
    assert chromium.run("one('#row-title').textContent") == "Hero, 40 %, match split"
    assert chromium.run("one('#row select').value") == "right"
    assert chromium.run("one('#lead-split th[aria-sort=ascending]').textContent") == "Retain"
    assert chromium.run("one('#lead-pooled').hidden")
    assert chromium.run("document.documentElement.dataset.theme") == "dark"
    assert chromium.run("all('#scatter select').map((one) => one.value)") == [
        "skip_net",
        "left:acc",
    ]
    chromium.run("go({ find: 'lora' })")
    assert dict(chromium.run("[...new URLSearchParams(location.hash.slice(1))]")) == state | {
        "find": "lora"
    }
    chromium.run("location.hash = '#match=neither&row=gone&x=none'")
    chromium.wait("!one('#row').open")
    assert not chromium.run("one('#lead-pooled').hidden")
    assert chromium.errors == []


def test_dark_follows_the_system_and_the_button(chromium: browser.Browser, page: Path) -> None:
    def brightness() -> int:
        color = chromium.run("getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, re.findall(r"\d+", color)[:3]))

    chromium.prefer("dark")
    chromium.open(page)
    assert brightness() < 150
    click(chromium, "#theme")
    assert brightness() > 600
    chromium.prefer("light")
    chromium.open(page)
    assert brightness() > 600


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("state", ["columns=skip,scores,cost", f"row={HERO}&task=left&item=left:0"])
def test_everyone_can_read_it_and_nothing_scrolls_sideways(
    chromium: browser.Browser, page: Path, width: int, theme: str, state: str
) -> None:
    chromium.open(page, f"#{state}&theme={theme}", width=width)
    chromium.run("all('details').forEach((one) => one.open = true)")
    assert chromium.run(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    assert chromium.run("one('#row').scrollWidth <= one('#row').clientWidth")
    assert chromium.run(ACCESSIBLE) == []
    assert chromium.errors == []


@pytest.mark.parametrize("width", WIDTHS)
def test_retain_and_note_are_in_the_first_screen_of_the_table(
    chromium: browser.Browser, page: Path, width: int
) -> None:
    chromium.open(page, width=width)
    heads = "all('#lead-pooled thead th').slice(0, 4)"
    ends = "[one.textContent, one.getBoundingClientRect().right]"
    for head, right in chromium.run(f"{heads}.map((one) => {ends})"):
        assert right <= width, head
    box = "one('#lead-pooled .wide')"
    chromium.run(f"{box}.scrollLeft = 9999; {box}.scrollTop = 9999")
    first = "one('#lead-pooled tbody tr:last-child td')"
    left, edge = (f"{one}.getBoundingClientRect().left" for one in (first, box))
    assert 0 <= chromium.run(f"{left} - {edge}") <= 2


def test_the_tables_stand_there_without_the_script(chromium: browser.Browser, page: Path) -> None:
    try:
        chromium.call("Emulation.setScriptExecutionDisabled", value=True)
        chromium.open(page)
        text = "[...document.querySelectorAll('{}')].map((one) => one.getClientRects().length > 0)"
        tables = chromium.run(text.format("table"))
        assert len(tables) > 10
        assert all(tables)
        assert chromium.run(text.format("#filters")) == [False]
        assert chromium.run(text.format("#scatter img")) == [True]
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.long
def test_two_thousand_rows_are_sorted_at_once(window: browser.Browser) -> None:
    """From the click to the next paint, when the rest of the rows has come."""
    window.run(
        "(() => { const body = one('[data-name=scores] tbody'), rows = [...body.rows];"
        " for (let n = 0; body.rows.length < 2000; n += 1) {"
        "   const row = rows[n % rows.length].cloneNode(true);"
        "   row.cells[row.cells.length - 1].textContent = `${(n * 7919) % 2003}/2003`;"
        "   body.append(row); } })()"
    )
    head = "all('[data-name=scores] thead button').at(-1)"
    shown = "all('[data-name=scores] tbody tr').filter((row) => row.getClientRects().length).length"
    timed = (
        "new Promise((done) => requestAnimationFrame(() => setTimeout(() => {"
        f" const from = performance.now(); {head}.click();"
        " requestAnimationFrame(() => setTimeout(() => done(performance.now() - from))); })))"
    )
    times = []
    for _ in range(6):
        times.append(window.run(timed))
        window.wait(f"{shown} === 2000")
    assert min(times) < PAINT
    assert window.run("all('[data-name=scores] tbody tr').length") == 2000


def test_of_a_long_table_that_was_just_sorted_every_row_is_copied(window: browser.Browser) -> None:
    text = window.run(
        "(() => { const section = one('[data-name=scores]'), body = one('tbody', section);"
        " while (body.rows.length < 500) body.append(body.rows[0].cloneNode(true));"
        " one('thead button', section).click();"
        " const later = all('.later', section).length;"
        " return [later, visible(section).filter((row) => row.length > 1).length]; })()"
    )
    assert text == [400, 501]
