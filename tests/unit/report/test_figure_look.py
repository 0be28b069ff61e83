"""Whether figures can be printed: sizes, fonts, names apart, colours that all eyes tell apart."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox
from PIL import Image

from tests.unit.report.figure_frames import SUITES, reference
from workflows.report.figures import FIGURES, draw_all, use
from workflows.report.figures.heat import ink, luminance
from workflows.report.figures.labels import STEP, slots
from workflows.report.figures.style import KINDS, WIDTHS

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
EYES = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
    "usual": np.eye(3).tolist(),
}  # fmt: skip


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with use():
        yield


@pytest.fixture(scope="module", params=list(itertools.product(SUITES, WIDTHS)), ids=str)
def drawn(request: pytest.FixtureRequest) -> dict[str, Figure]:
    suite, columns = request.param
    data = reference(suite)
    with use():
        return {
            f"{name}{suffix}": figure
            for name, draw in FIGURES.items()
            for suffix, figure in draw(data, columns).items()
        }


def boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that is shown and its box, in points."""
    figure.set_dpi(72)
    figure.canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    ticks = {tick for axis in figure.axes for tick in outside(axis)}
    # An annotation's own box: its leader left out.
    return [(t.get_text(), Text.get_window_extent(t)) for t in texts if t not in ticks]


def outside(axis: mpl.axes.Axes) -> Iterator[Text]:
    """Labels of ticks beyond the limits, which are not drawn."""
    for side, limits in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        low, high = sorted(limits)
        margin = 1e-6 * (high - low)
        for tick in [*side.get_major_ticks(), *side.get_minor_ticks()]:
            inside = low - margin <= tick.get_loc() <= high + margin
            yield from () if inside else (tick.label1, tick.label2)


def test_all_text_is_on_the_sheet_and_apart(drawn: dict[str, Figure]) -> None:
    for name, figure in drawn.items():
        width, height = 72 * figure.get_size_inches()
        found = boxes(figure)
        for text, box in found:
            inside = box.x0 >= -0.5 and box.y0 >= -0.5 and box.x1 <= width + 0.5
            assert inside and box.y1 <= height + 0.5, (name, text)
        for (text, box), (other, second) in itertools.combinations(found, 2):
            across = min(box.x1, second.x1) - max(box.x0, second.x0)
            along = min(box.y1, second.y1) - max(box.y0, second.y0)
            # Boxes reach above and below what most letters fill.
            assert across < 0.5 or along < 2, (name, text, other)


def test_leaders_never_cross(drawn: dict[str, Figure]) -> None:
    for name, figure in drawn.items():
        figure.canvas.draw()
        for axis in figure.axes:
            notes = [text for text in axis.texts if isinstance(text, Annotation)]
            leaders = [ends(note.arrow_patch) for note in notes if note.arrow_patch]
            for first, second in itertools.combinations(leaders, 2):
                assert not cross(first, second), name


def ends(leader: FancyArrowPatch) -> np.ndarray:
    path = leader.get_path().vertices
    return np.asarray(leader.get_transform().transform([path[0], path[-1]]))


def cross(first: np.ndarray, second: np.ndarray) -> bool:
    def side(line: np.ndarray, point: np.ndarray) -> float:
        (ax, ay), (bx, by) = line[1] - line[0], point - line[0]
        return float(np.sign(round(ax * by - ay * bx, 6)))

    apart = side(first, second[0]) * side(first, second[1])
    return apart < 0 and side(second, first[0]) * side(second, first[1]) < 0


def test_slots_are_apart_and_near() -> None:
    found = slots(np.array([3.0, 2.99, 2.98, 1.0]), 0.5, 3.05)
    assert np.all(-np.diff(found) >= STEP - 1e-9)
    assert found[3] == pytest.approx(1.0)
    assert found[0] <= 3.05
    assert slots(np.array([0.5, 0.5]), 0.5, 3.0) == pytest.approx([0.5 + STEP, 0.5])


def test_panels_hold_no_more_rows_than_can_be_read(drawn: dict[str, Figure]) -> None:
    for name, figure in drawn.items():
        assert figure.get_size_inches()[1] <= 9.5, name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, data = tmp_path_factory.mktemp("demo"), reference("demo")
    more = {name: getattr(data, name) for name in ("speeds", "settings", "curves", "routes")}
    draw_all(data.retain, data.differences, data.layers, folder, **more)
    return folder


def test_widths_are_those_of_one_and_two_columns(files: Path) -> None:
    for folder, inches in ((files, WIDTHS[2]), (files / "one_column", WIDTHS[1])):
        names = {file.stem for file in folder.glob("*.pdf")}
        assert len(names) == 7
        for name in names:
            with Image.open(folder / f"{name}.png") as image:
                assert abs(image.width - 300 * inches) <= 1
                assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
            box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", (folder / f"{name}.pdf").read_bytes())
            assert box and float(box[1]) == pytest.approx(72 * inches)
            root = ET.parse(folder / f"{name}.svg").getroot()
            assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * inches)


def test_fonts_are_embedded_as_outlines_and_text_is_text(files: Path) -> None:
    for file in files.rglob("*.pdf"):
        content = file.read_bytes()
        assert content.count(b"/FontFile2") >= 1
        assert b"/Type3" not in content
        assert content.count(b"/FontDescriptor") >= content.count(b"/FontFile2")
    for file in files.rglob("*.svg"):
        told = {
            "".join(node.itertext()) for node in ET.parse(file).iter() if node.tag.endswith("text")
        }
        assert any("HeRo" in text for text in told)
        assert "DejaVuSans-" not in file.read_text()


def lightness(color: str, eye: str = "usual") -> np.ndarray:
    """CIE L*a*b* (D65) of a colour as an eye sees it."""
    rgb = np.asarray(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(EYES[eye]) @ linear, 0, 1)
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = (
        np.cbrt(v) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116
        for v in np.asarray(matrix) @ seen / [0.9505, 1, 1.089]
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colours_stand_out_from_paper() -> None:
    colors = [sign.color for sign in KINDS.values()]
    colors += mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    for color in colors:
        assert 1.05 / (luminance(to_rgb(color)) + 0.05) >= 3, color


def test_kinds_are_told_apart_by_any_eye_and_in_grey() -> None:
    for first, second in itertools.combinations(KINDS.values(), 2):
        assert first.marker != second.marker
        assert abs(lightness(first.color)[0] - lightness(second.color)[0]) >= 10
        for eye in EYES:
            assert np.linalg.norm(lightness(first.color, eye) - lightness(second.color, eye)) >= 15


def test_lines_are_told_apart_by_any_eye_and_in_grey() -> None:
    looks = list(mpl.rcParams["axes.prop_cycle"])
    assert len(looks) == 8
    for first, second in itertools.combinations(looks, 2):
        if first["linestyle"] == second["linestyle"]:
            assert abs(lightness(first["color"])[0] - lightness(second["color"])[0]) >= 20
            for eye in EYES:
                far = lightness(first["color"], eye) - lightness(second["color"], eye)
                assert np.linalg.norm(far) >= 20, (first, second, eye)


def test_ink_is_read_on_every_ground() -> None:
    blues = mpl.colormaps[mpl.rcParams["image.cmap"]]
    grounds = [luminance(blues(step)[:3]) for step in np.linspace(0, 1, 101)]
    # Darker where there is more: the order stays in grey.
    assert np.all(np.diff(grounds) < 0)
    for step, ground in zip(np.linspace(0, 1, 101), grounds, strict=True):
        written = 0.0 if ink(blues(step)[:3]) == "black" else 1.0
        low, high = sorted((ground, written))
        assert (high + 0.05) / (low + 0.05) >= 4.5
