"""The page is one file that needs no network; figures are byte-identical."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ranloom.report import style
from ranloom.report.page import Grid, Headline, Picture, Section, cell, write

TEMPLATE = Path(__file__).resolve().parents[2] / "ranloom" / "report" / "page.html.j2"


def figure() -> Figure:
    drawn = Figure(figsize=(3, 2))
    drawn.add_subplot().plot([0, 1], [0, 1])
    return drawn


def page(folder: Path) -> str:
    folder.mkdir()
    section = Section(
        "a",
        "A <title>",
        ("text & more",),
        (Picture("line", figure(), "a line"),),
        (Grid("numbers", ["name", "value"], [["x", 1.5], ["y", None], ["<b>", 12345]]),),
        ("a note",),
    )
    with style.styled():
        write(
            folder / "index.html", folder, TEMPLATE, "T", "lead", [Headline("1", "one")], [section]
        )
    return (folder / "index.html").read_text(encoding="utf-8")


def test_self_contained_and_escaped(tmp_path: Path) -> None:
    text = page(tmp_path / "a")
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text)
    assert "A &lt;title&gt;" in text
    assert "&lt;b&gt;" in text
    assert text.count("data:image/png;base64,") == 1
    assert '<td class="n">1.5</td>' in text
    assert '<td class="n">–</td>' in text
    assert "12\u202f345" in text
    assert (tmp_path / "a" / "line.png").stat().st_size > 500


def test_a_figure_that_cannot_be_drawn_is_no_figure(tmp_path: Path) -> None:
    bad = figure()
    bad.axes[0].set_title("$\\nonsense{$")
    with pytest.raises(RuntimeError, match="could not be drawn"):
        style.save({tmp_path / "bad.png": bad, tmp_path / "good.png": figure()})
    assert not (tmp_path / "bad.png").exists()


def test_equal_input_gives_equal_files(tmp_path: Path) -> None:
    assert page(tmp_path / "a") == page(tmp_path / "b")
    assert (tmp_path / "a/line.png").read_bytes() == (tmp_path / "b/line.png").read_bytes()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        ("x", "x"),
        (0.0, "0"),
        (3, "3"),
        (True, "yes"),
        (1234.5678, "1235"),
        (0.000123, "1.23e-04"),
        (9.87654, "9.877"),
        (1234567.0, "1\u202f234\u202f567"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text  # type: ignore[arg-type]
