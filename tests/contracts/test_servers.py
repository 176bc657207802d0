"""What listens, and what the Prefect server starts by itself."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from ruamel.yaml import YAML


def test_servers_listen_on_this_machine_alone(root: Path) -> None:
    makefile = (root / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    started = re.findall(r"^\t.*(?:mlflow server|prefect server start).*$", makefile, re.MULTILINE)
    assert len(started) == 2
    assert all("--host 127.0.0.1" in line for line in started)


def test_a_server_starts_only_on_a_port_that_is_free(root: Path) -> None:
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    for target, variable, server in (("ui", "UI", "mlflow"), ("server", "PREFECT", "prefect")):
        (recipe,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        check = f"-m pipeline.port {target} PORT_{variable} $(PORT_{variable})\n"
        assert 0 < recipe.find(check) < recipe.find(f"$(BIN)/{server} server")


def test_one_deployment_with_a_schedule_runs_one_at_a_time(root: Path) -> None:
    document = YAML(typ="safe", pure=True).load(root / "prefect.yaml")
    (deployment,) = document["deployments"]
    assert deployment["concurrency_limit"] == 1
    assert [sorted(schedule) for schedule in deployment["schedules"]] == [["cron", "timezone"]]
    file, _, name = deployment["entrypoint"].partition(":")
    flow = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)
    assert f"{flow.name}/{deployment['name']}" in (root / "Makefile").read_text(encoding="utf-8")
    assert set(deployment["parameters"]) <= set(flow.parameters.properties)
