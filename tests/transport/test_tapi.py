"""TAPI export: names of the YANG modules, RFC 7951 encoding, and a calendar that comes back."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from ranloom.errors import InputError
from ranloom.transport.calendar import WindowRow
from ranloom.transport.tapi import (
    SpectrumGrid,
    parse_epoch,
    reservations_from_tapi,
    to_json,
    to_tapi,
)
from ranloom.transport.tapi_model import TapiDocument

from .networks import settings, star_of

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
GRID = SpectrumGrid(first_centre_ghz=193_100.0, slot_ghz=50.0)
WINDOW = WindowRow(
    window_id=3,
    source="gnb_00",
    destination="core",
    path="gnb_00|core",
    wavelength=2,
    start_s=86_399.25,
    end_s=86_402.5,
    setup_s=1.0,
    bytes=10**9,
)


def exported() -> dict:
    """What stands in the file."""
    return json.loads(json.dumps(to_json(to_tapi((WINDOW,), EPOCH, GRID, settings(), "x"))))


def service(document: dict) -> dict:
    """The only connectivity service of a document."""
    context = document["tapi-common:context"]["tapi-connectivity:connectivity-context"]
    (found,) = context["connectivity-service"]
    return found


def test_names_and_values_follow_the_yang_modules() -> None:
    made = service(exported())
    assert made["layer-protocol-name"] == "PHOTONIC_MEDIA"
    assert made["administrative-state"] == "UNLOCKED"
    constraint = made["connectivity-constraint"]
    assert constraint["service-type"] == "POINT_TO_POINT_CONNECTIVITY"
    assert constraint["requested-capacity"]["total-size"] == {
        "value": "100",
        "unit": "tapi-common:CAPACITY_UNIT_GBPS",
    }
    # One day minus 0.75 s after the epoch, over midnight.
    assert constraint["schedule"] == {
        "start-time": "20260101235959.250000000Z",
        "end-time": "20260102000002.500000000Z",
    }
    ends = {end["local-id"]: end for end in made["end-point"]}
    assert ends["a"]["direction"] == "SOURCE"
    assert ends["z"]["direction"] == "SINK"
    (rule,) = ends["a"]["layer-protocol-constraint"]
    spec = rule["tapi-photonic-media:mcg-connectivity-service-end-point-spec"]
    (pac,) = spec["mc-spectrum-config-pac"]
    # Channel 2: 193.1 THz + 2 x 50 GHz, 25 GHz to either side; 64-bit integers are strings.
    assert pac["spectrum"] == {
        "lower-frequency": "193175000000000",
        "upper-frequency": "193225000000000",
    }


def test_document_validates_and_unknown_or_mistyped_fields_do_not() -> None:
    document = exported()
    TapiDocument.model_validate(document)
    for key, value in (
        ("colour", "red"),
        ("uuid", "no-uuid"),
        ("layer-protocol-name", "ETH"),
        ("end-point", []),
    ):
        broken = json.loads(json.dumps(document))
        service(broken)[key] = value
        with pytest.raises(ValidationError):
            TapiDocument.model_validate(broken)
    broken = json.loads(json.dumps(document))
    service(broken)["connectivity-constraint"]["schedule"]["start-time"] = "tomorrow"
    with pytest.raises(ValidationError):
        TapiDocument.model_validate(broken)


def test_exported_calendar_comes_back_as_reservations() -> None:
    topology = star_of(2)
    found = reservations_from_tapi(exported(), topology, EPOCH, GRID, settings(), "x.json")
    (taken,) = found
    assert taken.nodes == ("gnb_00", "core")
    assert taken.links == (("gnb_00", "core"),)
    assert taken.wavelength == 2
    assert taken.start_ns == 86_399_250_000_000
    assert taken.end_ns == 86_402_500_000_000 + 10_000_000  # guard


def test_wide_foreign_spectrum_takes_every_channel_that_it_touches() -> None:
    document = exported()
    for end in service(document)["end-point"]:
        (rule,) = end["layer-protocol-constraint"]
        pac = rule["tapi-photonic-media:mcg-connectivity-service-end-point-spec"]
        pac["mc-spectrum-config-pac"][0]["spectrum"] = {
            "lower-frequency": "193120000000000",
            "upper-frequency": "193180000000000",
        }
    found = reservations_from_tapi(document, star_of(2), EPOCH, GRID, settings(), "x")
    assert [taken.wavelength for taken in found] == [0, 1, 2]
    assert [taken.nodes for taken in found] == [("gnb_00", "core"), (), ()]


def test_faults_of_a_foreign_calendar_are_named() -> None:
    with pytest.raises(InputError, match=r"others\.json: tapi-common:context"):
        reservations_from_tapi({}, star_of(2), EPOCH, GRID, settings(), "others.json")
    document = exported()
    ref = service(document)["topology-constraint"][0]["include-link"][0]
    ref["link-uuid"] = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(InputError, match="links of the topology"):
        reservations_from_tapi(document, star_of(2), EPOCH, GRID, settings(), "x")


def test_identifiers_are_stable_and_differ() -> None:
    assert exported() == exported()
    other = to_json(to_tapi((WINDOW,), EPOCH, GRID, settings(), "y"))
    assert service(other)["uuid"] != service(exported())["uuid"]


def test_grid_and_epoch_are_checked() -> None:
    assert parse_epoch("2026-01-01T01:00:00+01:00") == EPOCH
    for text in ("now", "2026-01-01", "2026-01-01T00:00:00"):
        with pytest.raises(InputError, match="epoch"):
            parse_epoch(text)
    with pytest.raises(InputError, match="slot_ghz"):
        SpectrumGrid(193_100.0, 40.0)
    with pytest.raises(InputError, match="first_centre_ghz"):
        SpectrumGrid(193_101.0, 50.0)
