"""A port that is taken is one line, before a server starts."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from pipeline import port


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_that_is_taken_is_one_line_with_one_that_is_free(taken: int, capsys) -> None:
    assert port.main(["ui", "PORT_UI", str(taken)]) == 2
    said = capsys.readouterr().err
    found = re.fullmatch(
        rf"PORT_UI: {taken} is not usable; taken on 127\.0\.0\.1: end what listens there, "
        r"or `make ui PORT_UI=(\d+)`\n",
        said,
    )
    assert found, said
    assert port.main(["ui", "PORT_UI", found[1]]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("given", ["http", "", "-1", "80", "65536"])
def test_what_is_no_port_is_one_line(given: str, capsys) -> None:
    assert port.main(["server", "PORT_PREFECT", given]) == 2
    assert capsys.readouterr().err == (
        f"PORT_PREFECT: {given!r} is not usable; a port, 1024 to 65535\n"
    )
