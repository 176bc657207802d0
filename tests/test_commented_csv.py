"""Comment lines, then a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranloom.commented_csv import read_commented_csv
from ranloom.errors import InputError


def test_comments_header_and_rows_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "\ufeff# device: H200: one of eight\n#made by hand\n\n"
        ' "MCS", Time_us ,note\n1, 2.5,\n# late:  yes \n\n3,4.5,"a, b"\n',
        encoding="utf-8",
    )
    table = read_commented_csv(path, "a profile")
    assert table.how == {"device": "H200: one of eight", "late": "yes"}
    assert table.columns == ("mcs", "time_us", "note")
    assert list(table.rows) == [
        {"mcs": "1", "time_us": "2.5", "note": ""},
        {"mcs": "3", "time_us": "4.5", "note": "a, b"},
    ]


def test_an_empty_file_has_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("# nothing: else\n\n")
    table = read_commented_csv(tmp_path / "a.csv", "a profile")
    assert (table.columns, list(table.rows)) == ((), [])


def test_no_file_and_binary_data_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'no such file' is not usable; allowed: a profile \(CSV"):
        read_commented_csv(tmp_path / "none.csv", "a profile")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"'binary data' is not usable; allowed: a profile \(CSV"):
        read_commented_csv(tmp_path / "binary.csv", "a profile")
