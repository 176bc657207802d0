"""The page: sections of text, figures and tables in one file that opens offline."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
from matplotlib.figure import Figure

from ranloom.report import style


@dataclass(frozen=True)
class Picture:
    """A figure with its caption.

    Args:
        name: file name without suffix.
        figure: the drawing.
        caption: what it shows and how to read it.
    """

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Grid:
    """A table.

    Args:
        caption: what it shows.
        header: column titles.
        rows: cells as they are printed; numbers are right-aligned.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | float | int | None]]

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, and perhaps gaps, but no words."""
        values = [row[column] for row in self.rows if row[column] is not None]
        return bool(values) and all(isinstance(value, int | float) for value in values)


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Args:
        anchor: id in the page.
        title: heading.
        text: paragraphs, in order.
        pictures: figures.
        grids: tables.
        notes: what differs from the paper, and why.
    """

    anchor: str
    title: str
    text: Sequence[str]
    pictures: Sequence[Picture] = ()
    grids: Sequence[Grid] = ()
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Headline:
    """A number at the top of the page."""

    value: str
    label: str


def write(
    path: Path,
    figures: Path,
    template: Path,
    title: str,
    lead: str,
    headlines: Sequence[Headline],
    sections: Sequence[Section],
) -> None:
    """Write the page, and its figures as files beside it.

    Args:
        path: HTML file.
        figures: folder for the PNG files.
        template: Jinja template of the page.
        title: heading of the page.
        lead: first paragraph.
        headlines: numbers at the top.
        sections: the parts.
    """
    pictures = [picture for section in sections for picture in section.pictures]
    files = {picture.name: figures / f"{picture.name}.png" for picture in pictures}
    style.save({files[picture.name]: picture.figure for picture in pictures})
    images = {n: base64.b64encode(file.read_bytes()).decode("ascii") for n, file in files.items()}
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = cell
    page = environment.from_string(template.read_text(encoding="utf-8"))
    text = page.render(
        title=title, lead=lead, headlines=headlines, sections=sections, images=images
    )
    path.write_text(text, encoding="utf-8")


def cell(value: str | float | int | None) -> str:
    """A table cell: four significant digits, thousands apart, a dash for what is missing."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or abs(value) >= 10_000:
        return f"{value:,.0f}".replace(",", "\u202f")
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:.4g}"
