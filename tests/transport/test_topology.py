"""Topologies: built-in ones, importers, and every fault by name."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest

from ranloom.errors import InputError
from ranloom.transport.generators import ring, star, tree
from ranloom.transport.load import load_topology
from ranloom.transport.topology import LinkDefaults, from_document, to_document

LINKS = LinkDefaults(packet_gbps=10.0, wavelengths=16)

GML = """graph [
  node [ id 0 label "Gdansk" lon 18.6 lat 54.2 ]
  node [ id 1 label "Bydgoszcz " lon 17.9 lat 53.1 ]
  node [ id 2 label "Lodz" ]
  edge [ source 0 target 1 dist 131.2 ]
  edge [ source 1 target 2 dist 180 ]
]
"""


def link(a: str, b: str, km: float, packet_gbps: float, wavelengths: int) -> list[dict]:
    return [{"a": a, "b": b, "km": km, "packet_gbps": packet_gbps, "wavelengths": wavelengths}]


def document(**changes: object) -> dict[str, object]:
    base: dict[str, object] = {
        "hub": "core",
        "nodes": [{"name": "core", "kind": "hub"}, {"name": "gnb_00", "kind": "gnb"}],
        "links": link("gnb_00", "core", 3.5, 10.0, 8),
    }
    return base | changes


def test_metro_topology_has_two_rings_and_every_site_two_ways_to_the_hub(root: Path) -> None:
    topology = load_topology(root / "data/topologies/metro.json", None, LINKS)
    graph = topology.graph
    sites = [n for n, kind in graph.nodes(data="kind") if kind == "gnb"]
    assert topology.hub == "core"
    assert sites == [f"gnb_{k:02d}" for k in range(34)]
    # Without the spurs two rings of five offices meet in the hub.
    offices = graph.subgraph(n for n in graph if n not in sites)
    assert sorted(d for _, d in offices.degree) == [2] * 10 + [4]
    assert len(nx.cycle_basis(graph)) == 2
    metro_km = sum(km for _, _, km in offices.edges(data="km"))
    assert 40 < metro_km / 2 < 60  # a metro ring


def test_own_json_round_trip() -> None:
    topology = from_document(document(), "x.json")
    assert from_document(to_document(topology), "x.json").graph.edges == topology.graph.edges
    assert to_document(from_document(to_document(topology), "y")) == to_document(topology)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hub": "nowhere"}, "hub: 'nowhere'"),
        ({"links": []}, "gnb_00"),
        ({"nodes": [{"name": "core", "kind": "hub"}] * 2}, "each name once"),
        ({"nodes": [{"name": "core"}]}, "nodes.0.kind"),
        (
            {"links": link("x", "core", 1.0, 1.0, 1)},
            "x",
        ),
        (
            {
                "links": [
                    {"a": "gnb_00", "b": "core", "km": 1.0, "packet_gbps": 0.0, "wavelengths": 1}
                ]
            },
            "packet_gbps: 0.0",
        ),
        (
            {
                "links": [
                    {"a": "gnb_00", "b": "core", "km": -1.0, "packet_gbps": 1.0, "wavelengths": 1}
                ]
            },
            "km: -1.0",
        ),
        (
            {
                "links": [
                    {"a": "gnb_00", "b": "core", "km": 1.0, "packet_gbps": 1.0, "wavelengths": 0}
                ]
            },
            "wavelengths: 0",
        ),
        (
            {
                "links": [
                    {"a": "core", "b": "core", "km": 1.0, "packet_gbps": 1.0, "wavelengths": 1}
                ]
            },
            "two different ends",
        ),
        ({"colour": "red"}, "colour"),
    ],
)
def test_faults_of_own_json_are_named(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as error:
        from_document(document(**changes), "x.json")
    assert "x.json" in str(error.value)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.json", "", "valid JSON"),
        ("cut.json", '{"hub": "core", "nodes": [', "valid JSON"),
        ("no.gml", "this is no graph", "a GML graph"),
        ("topology.txt", "x", ".gml or .json"),
        ("bad.gml", GML.replace("dist 180", 'dist "far"'), "dist"),
        ("without.gml", GML.replace("dist 180", ""), "dist"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        load_topology(path, None, LINKS)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"an existing \.gml or \.json file"):
        load_topology(tmp_path / "absent.gml", None, LINKS)


def test_gml_links_are_longer_than_the_great_circle(tmp_path: Path) -> None:
    path = tmp_path / "poland.gml"
    path.write_text(GML)
    topology = load_topology(path, "Lodz", LINKS)
    assert set(topology.graph) == {"Gdansk", "Bydgoszcz", "Lodz"}
    assert topology.graph.edges["Gdansk", "Bydgoszcz"]["km"] == pytest.approx(1.3 * 131.2)
    assert topology.graph.nodes["Gdansk"]["lat"] == 54.2
    assert load_topology(path, None, LINKS).hub == "Bydgoszcz"  # most links


def test_gnpy_fibres_between_roadms_add_up(tmp_path: Path) -> None:
    def fibre(uid: str, km: float, unit: str = "km") -> dict[str, object]:
        return {"uid": uid, "type": "Fiber", "params": {"length": km, "length_units": unit}}

    elements: list[dict[str, object]] = [
        {"uid": "trx A", "type": "Transceiver"},
        {"uid": "roadm A", "type": "Roadm"},
        {"uid": "roadm B", "type": "Roadm"},
        {"uid": "amp", "type": "Edfa"},
        {"uid": "splice", "type": "Fused"},
        fibre("f1", 40.0),
        fibre("f2", 25000.0, "m"),
        fibre("back", 67.0),
    ]
    hops = [
        ("trx A", "roadm A"),
        ("roadm A", "f1"),
        ("f1", "amp"),
        ("amp", "splice"),
        ("splice", "f2"),
        ("f2", "roadm B"),
        ("roadm B", "back"),
        ("back", "roadm A"),
    ]
    connections = [{"from_node": a, "to_node": b} for a, b in hops]
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"elements": elements, "connections": connections}))
    topology = load_topology(path, "B", LINKS)
    assert set(topology.graph) == {"A", "B"}
    assert topology.graph.edges["A", "B"]["km"] == pytest.approx((65.0 + 67.0) / 2)

    connections[1]["from_node"] = "roadm Z"
    path.write_text(json.dumps({"elements": elements, "connections": connections}))
    with pytest.raises(InputError, match="roadm Z"):
        load_topology(path, "B", LINKS)


@pytest.mark.parametrize(
    ("file", "nodes", "links"),
    [
        ("topohub_topozoo/Restena.gml", 13, 15),
        ("topohub_topozoo/KentmanJul2005.gml", 16, 17),
        ("topohub_sndlib/polska.gml", 12, 18),
        ("topohub_sndlib/germany50.gml", 50, 88),
        ("gnpy/CORONET_CONUS_Topology.json", 75, 99),
        ("gnpy/meshTopologyExampleV2.json", 5, 6),
    ],
)
def test_real_topologies_load(shared_data: Path, file: str, nodes: int, links: int) -> None:
    topology = load_topology(shared_data / "topologies" / file, None, LINKS)
    assert len(topology.graph) == nodes
    assert topology.graph.number_of_edges() == links


def test_generators_reach_the_hub() -> None:
    assert star(7, 3.0, LINKS).graph.degree["core"] == 7
    made = ring(10, 8.0, LINKS, sites_per_office=4, spur_km=2.0)
    assert made.graph.number_of_edges() == 4 + 10  # three offices and the hub in a ring
    deep = tree(9, 2, 5.0, LINKS)
    longest = max(nx.single_source_dijkstra_path_length(deep.graph, "core", weight="km").values())
    assert longest == 20.0  # two, four, eight branches, then the ninth site shares a leaf office


@pytest.mark.parametrize(
    "build",
    [
        lambda: star(0, 1.0, LINKS),
        lambda: star(3, -1.0, LINKS),
        lambda: ring(3, 1.0, LINKS, sites_per_office=0, spur_km=1.0),
        lambda: tree(3, 1, 1.0, LINKS),
    ],
)
def test_generators_refuse_nonsense(build) -> None:
    with pytest.raises(InputError):
        build()
