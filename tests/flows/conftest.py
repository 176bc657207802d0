"""One Prefect test server for the session, and the toy project of the pipeline tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline import environment
from tests.pipeline.conftest import toy, toy_template  # noqa: F401  (fixtures)


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A server with a database of its own."""
    environment.apply()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
