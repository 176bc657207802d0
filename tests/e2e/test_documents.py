"""The documents say what is there: keys, links, targets, and files that the readers accept."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

import stages
from pipeline import params, workspace
from pipeline.check import check
from pipeline.registry import discover
from ranloom.errors import InputError
from ranloom.gpu.card import load_card
from ranloom.gpu.latency import LatencyModel
from ranloom.lut.table import PROVENANCES, Cells, Lut
from ranloom.mac.controllers.decision import DECISION
from ranloom.mac.model import sm_tables
from ranloom.mac.proportional_fair import SchedulerRules, slot_grants, slot_request
from ranloom.nr.segmentation import work_table
from ranloom.training.layer_list import LayerListConfig, measure
from ranloom.training.links import read_links
from ranloom.training.runtime.run_file import read_run_file
from ranloom.transport.load import load_topology
from ranloom.transport.topology import LinkDefaults

_LINK = re.compile(r"\]\(([^)\s#]+)(?:#([^)\s]+))?\)")
_ANCHOR = re.compile(r"\]\(#([^)\s]+)\)")
_SET = re.compile(r"-S\s+'?([a-z0-9_]+\.[a-z0-9_.]+)=([^\s'`]+)")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_FENCE = re.compile(r"```.*?```", re.DOTALL)
_MAKE = re.compile(r"\bmake ([a-z]+)\b")
_LINKS = LinkDefaults(packet_gbps=10.0, wavelengths=16)


def documents(root: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every Markdown file of the repository."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("bench/**/*.md")]
    assert root / "docs/own-data.md" in found
    for path in sorted(found):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.strip().replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {
        anchor(line.lstrip("#")) for line in _FENCE.sub("", text).splitlines() if line[:1] == "#"
    }


def test_every_parameter_that_a_document_sets_exists(root: Path) -> None:
    document = params.load(root / params.PARAMS)
    seen, unknown = 0, []
    for name, text in documents(root):
        for key, _ in _SET.findall(text):
            seen += 1
            try:
                params.lookup(document, key)
            except KeyError:
                unknown.append(f"{name}: {key}")
    assert unknown == []
    assert seen > 10


def test_every_relative_link_leads_somewhere(root: Path) -> None:
    seen, broken = 0, []
    for name, text in documents(root):
        here = (root / name).parent
        prose = _FENCE.sub("", text)
        broken += [f"{name}: #{a}" for a in _ANCHOR.findall(prose) if a not in anchors(text)]
        for target, place in _LINK.findall(prose):
            if "://" in target or target.startswith("mailto:"):
                continue
            seen += 1
            path = here / target
            if not path.exists():
                broken.append(f"{name}: {target}")
            elif place and place not in anchors(path.read_text(encoding="utf-8")):
                broken.append(f"{name}: {target}#{place}")
    assert broken == []
    assert seen > 20


def test_every_make_target_exists(root: Path) -> None:
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = {
        (name, target)
        for name, text in documents(root)
        for code in _CODE.findall(text)
        for target in _MAKE.findall(code)
    }
    assert {target for _, target in named} >= {"run", "test"}
    assert [(name, target) for name, target in sorted(named) if target not in targets] == []


def test_commands_on_own_data_pass_the_check(root: Path, tmp_path: Path) -> None:
    """All of them at once, as if one user brought everything."""
    text = (root / "docs/own-data.md").read_text(encoding="utf-8")
    given = {key: YAML(typ="safe", pure=True).load(value) for key, value in _SET.findall(text)}
    for key in ("base.card", "generate_traces.source_path", "aggregate_updates.topology_path"):
        assert str(given[key]).startswith("docs/examples/"), key
    given["aggregate_updates.n_gnbs"] += 1  # one too many shows that the files are read
    registry = discover(stages)
    place = workspace.place(root, registry, None, given, tmp_path / "own")
    faults = check(place, registry, InputError)
    assert [("n_gnbs: 9" in fault, fault.endswith(" 8")) for fault in faults] == [(True, True)], (
        faults
    )


@pytest.mark.parametrize(
    ("file", "hub", "gnbs"),
    [("topology.json", "office", 8), ("topology.gml", "Hub", 2), ("topology_gnpy.json", "Hub", 2)],
)
def test_topologies(root: Path, file: str, hub: str, gnbs: int) -> None:
    topology = load_topology(root / "docs/examples" / file, None, _LINKS)
    kinds = [kind for node, kind in topology.graph.nodes(data="kind") if node != topology.hub]
    assert topology.hub == hub
    assert (kinds.count("gnb") or len(kinds)) == gnbs


def test_links_and_run_file(root: Path) -> None:
    links = read_links(root / "docs/examples/links.yaml")
    assert links.bandwidth_gbps[0, 2] == 1.0
    assert links.latency_s[2, 1] == 0.0255
    run = read_run_file(root / "docs/examples/run.yaml")
    assert run.sites == run.replicas * (len(run.boundaries) - 1)
    assert run.boundaries[-1] == run.setup.model.layers


def test_model_shape() -> None:
    shape = importlib.import_module("docs.examples.model_shape")
    # of each layer: rank x (in + out) of the query and of the value projection
    assert shape.LAYOUT.elements == 22 * 16 * ((2048 + 2048) + (2048 + 256))


def test_controller_holds_and_lets_go(root: Path) -> None:
    example = importlib.import_module("docs.examples.controller")
    card = load_card(root / "docs/examples/gpu_card.yaml")
    mcs, prb = (a.ravel() for a in np.meshgrid(range(29), range(1, 107), indexing="ij"))
    model = LatencyModel(200.0, 2.332, 0.0084, 1.13)
    sm = model.min_sm(work_table(106)[mcs, prb], card.levels, 800.0, np.iinfo(np.int16).max)
    source = np.full(len(mcs), PROVENANCES.index("model"), np.int8)
    lut = Lut.from_cells(Cells(mcs, prb, sm, source), 29, 106, card.sm_count)
    tables = sm_tables(lut, card.levels)
    rules = SchedulerRules(n_prb=106, min_rb=5, max_blocks=4, shared=0)
    request, grants, decision = slot_request(4), slot_grants(4), np.zeros(1, DECISION)
    controller = example.hold(3, tables.sm_min)

    def reserved(retransmitted_prb: int) -> int:
        head = request.head[0]
        head["retx_prb"], head["retx_mcs_prb"] = retransmitted_prb, 27 * retransmitted_prb
        example.decide_hold(controller, request, rules, tables, grants, decision)
        return int(decision["sm"][0])

    assert lut.lut_sm(27, 106) > tables.sm_min
    assert [reserved(n) for n in (0, 106, 0, 0, 0, 0)] == [8, 24, 24, 24, 8, 8]


def test_list_of_layers() -> None:
    model = LayerListConfig("docs.examples.layers:recurrent", '{"width": 16, "blocks": 2}', 4)
    assert measure(model, 2, 12).shapes[-1] == (2, 12, 256)
