"""Calendar to and from scheduled connectivity services of TAPI.

Each window is a ``connectivity-service`` of the photonic media layer: its time a ``schedule``
with ``start-time`` and ``end-time``, its channel the ``spectrum`` of a media channel in Hz,
its path the links of an explicit route (:mod:`ranloom.transport.tapi_model`). Scheduled
resources: RFC 8413, RFC 9922.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import ValidationError

from ranloom.errors import InputError
from ranloom.transport.calendar import PATH_SEPARATOR, WindowRow
from ranloom.transport.demands import NS_PER_S
from ranloom.transport.network import TransportSettings
from ranloom.transport.reservation import Reservation
from ranloom.transport.tapi_model import (
    Capacity,
    CapacityValue,
    ConnectivityConstraint,
    ConnectivityContext,
    ConnectivityService,
    Context,
    FrequencyConstraint,
    FrequencyRange,
    LayerProtocolConstraint,
    LinkRef,
    McgEndPointSpec,
    McSpectrumConfigPac,
    MediaChannel,
    NameAndValue,
    ServiceEndPoint,
    ServiceInterfacePointRef,
    TapiDocument,
    TimeRange,
    TopologyConstraint,
)
from ranloom.transport.topology import Topology

_NAMESPACE = uuid5(NAMESPACE_URL, "urn:ranloom:transport")
_ANCHOR_HZ = 193_100_000_000_000
_GRANULARITY_HZ = 6_250_000_000


@dataclass(frozen=True)
class SpectrumGrid:
    """Which spectrum channel k takes (ITU-T G.694.1, flexible grid).

    Args:
        first_centre_ghz: centre of channel 0; on the grid 193.1 THz + n x 6.25 GHz.
        slot_ghz: width of a channel and distance between centres; a multiple of 12.5 GHz.
    """

    first_centre_ghz: float
    slot_ghz: float

    def __post_init__(self) -> None:
        centre, slot = self._hz(self.first_centre_ghz), self._hz(self.slot_ghz)
        if slot <= 0 or slot % (2 * _GRANULARITY_HZ):
            raise InputError("slot_ghz", self.slot_ghz, "a positive multiple of 12.5 GHz")
        if centre <= slot or (centre - _ANCHOR_HZ) % _GRANULARITY_HZ:
            raise InputError("first_centre_ghz", self.first_centre_ghz, "193100 GHz + n x 6.25 GHz")

    @staticmethod
    def _hz(ghz: float) -> int:
        return round(ghz * 1e9)

    def range_of(self, channel: int) -> FrequencyRange:
        """Spectrum of a channel."""
        slot = self._hz(self.slot_ghz)
        centre = self._hz(self.first_centre_ghz) + channel * slot
        return FrequencyRange(
            lower_frequency=str(centre - slot // 2), upper_frequency=str(centre + slot // 2)
        )

    def channel_of(self, spectrum: FrequencyRange) -> tuple[int, int]:
        """First and last channel that a spectrum touches."""
        slot = self._hz(self.slot_ghz)
        begin = self._hz(self.first_centre_ghz) - slot // 2
        lower, upper = int(spectrum.lower_frequency), int(spectrum.upper_frequency)
        return (lower - begin) // slot, -(-(upper - begin) // slot) - 1


def parse_epoch(text: str) -> datetime:
    """The instant of plan time 0.

    Raises:
        InputError: not an ISO 8601 date and time with a zone.
    """
    try:
        epoch = datetime.fromisoformat(text)
    except ValueError:
        raise InputError("epoch", text, "ISO 8601 like 2026-01-01T00:00:00+00:00") from None
    if epoch.tzinfo is None:
        raise InputError("epoch", text, "a time zone, like 2026-01-01T00:00:00+00:00")
    return epoch.astimezone(UTC)


def to_tapi(
    windows: Sequence[WindowRow],
    epoch: datetime,
    grid: SpectrumGrid,
    settings: TransportSettings,
    strategy: str,
) -> TapiDocument:
    """Windows as a TAPI context.

    The schedule covers a window from its start, set-up included, to its end. Identifiers
    derive from names, so that the same window keeps its UUID over exports.

    Args:
        windows: the windows.
        epoch: instant of plan time 0.
        grid: spectrum of the channels.
        settings: rate of a circuit.
        strategy: part of the names.
    """
    topology = _uuid("topology")
    services = [
        _service(window, epoch, grid, settings, f"{strategy}/{window.window_id}", topology)
        for window in windows
    ]
    context = Context(
        uuid=_uuid(f"context/{strategy}"),
        name=[NameAndValue(value_name="strategy", value=strategy)],
        connectivity=ConnectivityContext(connectivity_service=services),
    )
    return TapiDocument(context=context)


def to_json(document: TapiDocument) -> dict[str, Any]:
    """The document as JSON values, with the YANG names as keys."""
    return document.model_dump(by_alias=True, mode="json")


def _service(
    window: WindowRow,
    epoch: datetime,
    grid: SpectrumGrid,
    settings: TransportSettings,
    label: str,
    topology: str,
) -> ConnectivityService:
    spectrum = McgEndPointSpec(
        number_of_mc="1",
        mc_spectrum_config_pac=[
            McSpectrumConfigPac(
                local_id="1",
                spectrum=grid.range_of(window.wavelength),
                edge_frequency_constraint=FrequencyConstraint(
                    adjustment_granularity="tapi-photonic-media:ADJUSTMENT_GRANULARITY_G_6_25GHZ",
                    grid_type="tapi-photonic-media:GRID_TYPE_FLEX",
                ),
            )
        ],
    )
    qualifier: MediaChannel = "tapi-photonic-media:PHOTONIC_LAYER_QUALIFIER_MC"
    ends: tuple[tuple[str, str, Literal["SOURCE", "SINK"]], ...] = (
        ("a", window.source, "SOURCE"),
        ("z", window.destination, "SINK"),
    )
    end_points = [
        ServiceEndPoint(
            local_id=local_id,
            name=[NameAndValue(value_name="node", value=node)],
            layer_protocol_name="PHOTONIC_MEDIA",
            layer_protocol_qualifier=qualifier,
            direction=direction,
            service_interface_point=ServiceInterfacePointRef(
                service_interface_point_uuid=_uuid(f"sip/{node}")
            ),
            layer_protocol_constraint=[
                LayerProtocolConstraint(
                    local_id="1",
                    layer_protocol_name="PHOTONIC_MEDIA",
                    layer_protocol_qualifier=qualifier,
                    mcg=spectrum,
                )
            ],
        )
        for local_id, node, direction in ends
    ]
    nodes = window.path.split(PATH_SEPARATOR)
    hops = pairwise(nodes)
    return ConnectivityService(
        uuid=_uuid(f"service/{label}"),
        name=[
            NameAndValue(value_name="window", value=label),
            NameAndValue(value_name="path", value=window.path),
        ],
        layer_protocol_name="PHOTONIC_MEDIA",
        layer_protocol_qualifier=qualifier,
        direction="UNIDIRECTIONAL",
        administrative_state="UNLOCKED",
        end_point=end_points,
        connectivity_constraint=ConnectivityConstraint(
            service_type="POINT_TO_POINT_CONNECTIVITY",
            requested_capacity=Capacity(
                total_size=CapacityValue(
                    value=_decimal(settings.circuit_gbps),
                    unit="tapi-common:CAPACITY_UNIT_GBPS",
                )
            ),
            schedule=TimeRange(
                start_time=_instant(epoch, window.start_s), end_time=_instant(epoch, window.end_s)
            ),
        ),
        topology_constraint=[
            TopologyConstraint(
                local_id="1",
                explicit_route=True,
                include_link=[
                    LinkRef(topology_uuid=topology, link_uuid=link_uuid(a, b)) for a, b in hops
                ],
            )
        ],
    )


def reservations_from_tapi(
    document: Any,
    topology: Topology,
    epoch: datetime,
    grid: SpectrumGrid,
    settings: TransportSettings,
    where: str,
) -> tuple[Reservation, ...]:
    """Use of the optical layer that an existing calendar reserves.

    Args:
        document: parsed JSON of a TAPI context with scheduled connectivity services.
        topology: links and service interface points are found by their UUID in it.
        epoch: instant of plan time 0.
        grid: spectrum of the channels.
        settings: guard time that follows each service.
        where: file name for error messages.

    Raises:
        InputError: the document does not follow the model, or a service refers to a link
            that the topology does not have.
    """
    try:
        parsed = TapiDocument.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{where}: {key}", first["input"], first["msg"]) from None
    hops = {link_uuid(x, y): (x, y) for a, b in topology.graph.edges for x, y in ((a, b), (b, a))}
    sips = {_uuid(f"sip/{node}"): str(node) for node in topology.graph}
    found = []
    for service in parsed.context.connectivity.connectivity_service:
        links = []
        for constraint in service.topology_constraint:
            for ref in constraint.include_link:
                if ref.link_uuid not in hops:
                    raise InputError(
                        f"{where}: service {service.uuid}", ref.link_uuid, "links of the topology"
                    )
                links.append(hops[ref.link_uuid])
        refs = (e.service_interface_point.service_interface_point_uuid for e in service.end_point)
        nodes = tuple(sips[ref] for ref in refs if ref in sips)
        schedule = service.connectivity_constraint.schedule
        start, end = (_ns_after(epoch, t) for t in (schedule.start_time, schedule.end_time))
        mcg = service.end_point[0].layer_protocol_constraint[0].mcg
        channels = [grid.channel_of(pac.spectrum) for pac in mcg.mc_spectrum_config_pac]
        for count, channel in enumerate(
            channel for low, high in channels for channel in range(low, high + 1)
        ):
            found.append(
                Reservation(
                    nodes=nodes if count == 0 else (),
                    links=tuple(links),
                    wavelength=channel,
                    start_ns=start,
                    end_ns=end + settings.guard_ns,
                )
            )
    return tuple(found)


def link_uuid(a: str, b: str) -> str:
    """UUID of the directed link from ``a`` to ``b``."""
    return _uuid(f"link/{a}{PATH_SEPARATOR}{b}")


def _uuid(name: str) -> str:
    identifier: UUID = uuid5(_NAMESPACE, name)
    return str(identifier)


def _decimal(value: float) -> str:
    return f"{value:.7f}".rstrip("0").rstrip(".")


def _instant(epoch: datetime, seconds: float) -> str:
    ns = round(seconds * NS_PER_S)
    whole = epoch + timedelta(seconds=ns // NS_PER_S)
    return f"{whole:%Y%m%d%H%M%S}.{ns % NS_PER_S:09d}Z"


def _ns_after(epoch: datetime, text: str) -> int:
    digits, fraction, zone = re.fullmatch(r"(\d{14})\.(\d{1,9})(Z|[+-]\d{4})", text).groups()  # type: ignore[union-attr]
    whole = datetime.strptime(digits + zone.replace("Z", "+0000"), "%Y%m%d%H%M%S%z")
    seconds = round((whole - epoch).total_seconds())
    return seconds * NS_PER_S + int(fraction.ljust(9, "0"))
