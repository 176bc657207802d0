"""The tour runs from top to bottom."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient


def test_tour(root: Path) -> None:
    notebook = nbformat.read(root / "docs" / "tour.ipynb", as_version=4)
    assert sum(cell.cell_type == "code" for cell in notebook.cells) >= 4
    place = {"metadata": {"path": str(root)}}
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources=place).execute()
