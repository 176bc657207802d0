from __future__ import annotations

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.traffic.csv_table import read_columns


@pytest.fixture
def table(tmp_path):
    def write(content: str | bytes):
        path = tmp_path / "table.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_reads_the_columns_asked_for(table):
    path = table("x, a ,b,,\r\n9, 1,2.5,,\r\n9,-3, nan? ,,\r\n")
    columns = read_columns(path, {"a": int, "b": str})
    assert columns["a"].tolist() == [1, -3]
    assert columns["a"].dtype == np.int64
    assert columns["b"].tolist() == ["2.5", "nan?"]


def test_reads_a_byte_order_mark_and_a_last_line_without_end(table):
    assert read_columns(table("\ufeffa\n1\n2"), {"a": float})["a"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("content", "where", "allowed"),
    [
        ("", "", "a header line"),
        ("\n1,2\n", "", "a header line"),
        ("a,b\n", "", "at least one row"),
        ("a,b", "", "at least one row"),
        ("a,c\n1,2\n", ": header", "columns a, b"),
        ("a,b\n1,2\n3\n", ": row 3", "2 cells, not 1"),
        ("a,b\n1,2,3\n", ": row 2", "2 cells, not 3"),
        ("a,b\n1,2\n\n5,6\n", ": row 3, a", "an integer"),
        ("a,b\n1,2\n3,x\n", ": row 3, b", "a number"),
        ("a,b\n1,2\n1.5,4\n", ": row 3, a", "an integer"),
        ("a,b\n1,2\n3,\n", ": row 3, b", "a number"),
        ("a,b\n1,nan\n", ": row 2, b", "a finite number"),
        ("a,b\n1,2\n3,-inf\n", ": row 3, b", "a finite number"),
        ("a,b\n99999999999999999999,2\n", ": row 2, a", "an integer"),
        (b"a,b\n\xff\xfe,2\n", "", "a CSV file"),
        (b"\xff\xfea\n1\n", "", "UTF-8"),
    ],
)
def test_a_fault_is_one_line_with_file_and_row(table, content, where, allowed):
    path = table(content)
    with pytest.raises(InputError) as caught:
        read_columns(path, {"a": int, "b": float})
    assert caught.value.where == f"{path}{where}"
    assert allowed in caught.value.allowed
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InputError, match="needed: an existing file"):
            read_columns(path, {"a": int})


def test_an_empty_table_is_accepted_where_asked_for(table):
    columns = read_columns(table("a,b\n"), {"a": int, "b": str}, may_be_empty=True)
    assert columns["a"].size == 0
