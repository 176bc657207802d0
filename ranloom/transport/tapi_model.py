"""The part of TAPI 2.6.0 that a scheduled optical window needs, as a typed model.

Field names and types follow ``tapi-common``, ``tapi-connectivity`` and
``tapi-photonic-media`` (LF ONMI Transport API, YANG revision 2024-07-31). JSON is encoded as
RFC 7951 says: 64-bit integers and decimals are strings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Uuid = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
Uint64 = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,19})$")]
Decimal64 = Annotated[str, StringConstraints(pattern=r"^-?[0-9]{1,12}(\.[0-9]{1,7})?$")]
#: ISO 8601 as the module describes it, ``yyyyMMddhhmmss.s``, with a fraction down to ns.
DateAndTime = Annotated[str, StringConstraints(pattern=r"^\d{14}\.\d{1,9}(Z|[+-]\d{4})$")]
PhotonicMedia = Literal["PHOTONIC_MEDIA"]
MediaChannel = Literal["tapi-photonic-media:PHOTONIC_LAYER_QUALIFIER_MC"]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class _Tapi(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=_kebab, populate_by_name=True
    )


def _qualified(name: str) -> Any:
    """A field of another module: its key carries that module's name."""
    return Field(validation_alias=name, serialization_alias=name)


class NameAndValue(_Tapi):
    """``tapi-common:name-and-value``."""

    value_name: str
    value: str


class TimeRange(_Tapi):
    """``tapi-common:time-range``."""

    start_time: DateAndTime
    end_time: DateAndTime


class CapacityValue(_Tapi):
    """``tapi-common:capacity-value``."""

    value: Decimal64
    unit: Literal["tapi-common:CAPACITY_UNIT_GBPS"]


class Capacity(_Tapi):
    """``tapi-common:capacity``."""

    total_size: CapacityValue


class FrequencyRange(_Tapi):
    """``tapi-photonic-media:frequency-range``, in Hz."""

    lower_frequency: Uint64
    upper_frequency: Uint64


class FrequencyConstraint(_Tapi):
    """``tapi-photonic-media:frequency-constraint``."""

    adjustment_granularity: Literal["tapi-photonic-media:ADJUSTMENT_GRANULARITY_G_6_25GHZ"]
    grid_type: Literal["tapi-photonic-media:GRID_TYPE_FLEX"]


class McSpectrumConfigPac(_Tapi):
    """``tapi-photonic-media:mc-spectrum-config-pac``."""

    local_id: str
    spectrum: FrequencyRange
    edge_frequency_constraint: FrequencyConstraint


class McgEndPointSpec(_Tapi):
    """``tapi-photonic-media:mcg-connectivity-service-end-point-spec``."""

    number_of_mc: Uint64
    mc_spectrum_config_pac: Annotated[list[McSpectrumConfigPac], Field(min_length=1)]


class LayerProtocolConstraint(_Tapi):
    """``tapi-connectivity:layer-protocol-constraint`` with its photonic augmentation."""

    local_id: str
    layer_protocol_name: PhotonicMedia
    layer_protocol_qualifier: MediaChannel
    mcg: McgEndPointSpec = _qualified("tapi-photonic-media:mcg-connectivity-service-end-point-spec")


class ServiceInterfacePointRef(_Tapi):
    """``tapi-common:service-interface-point-ref``."""

    service_interface_point_uuid: Uuid


class ServiceEndPoint(_Tapi):
    """``tapi-connectivity:connectivity-service-end-point``."""

    local_id: str
    name: list[NameAndValue]
    layer_protocol_name: PhotonicMedia
    layer_protocol_qualifier: MediaChannel
    direction: Literal["SINK", "SOURCE", "BIDIRECTIONAL"]
    service_interface_point: ServiceInterfacePointRef
    layer_protocol_constraint: list[LayerProtocolConstraint]


class ConnectivityConstraint(_Tapi):
    """``tapi-connectivity:connectivity-constraint``."""

    service_type: Literal["POINT_TO_POINT_CONNECTIVITY"]
    requested_capacity: Capacity
    schedule: TimeRange


class LinkRef(_Tapi):
    """``tapi-topology:link-ref``."""

    topology_uuid: Uuid
    link_uuid: Uuid


class TopologyConstraint(_Tapi):
    """``tapi-path-computation:topology-constraint``."""

    local_id: str
    explicit_route: bool
    include_link: list[LinkRef]


class ConnectivityService(_Tapi):
    """``tapi-connectivity:connectivity-service``."""

    uuid: Uuid
    name: list[NameAndValue]
    layer_protocol_name: PhotonicMedia
    layer_protocol_qualifier: MediaChannel
    direction: Literal["UNIDIRECTIONAL", "BIDIRECTIONAL"]
    administrative_state: Literal["UNLOCKED", "LOCKED"]
    end_point: Annotated[list[ServiceEndPoint], Field(min_length=2)]
    connectivity_constraint: ConnectivityConstraint
    topology_constraint: list[TopologyConstraint]


class ConnectivityContext(_Tapi):
    """``tapi-connectivity:connectivity-context``."""

    connectivity_service: list[ConnectivityService]


class Context(_Tapi):
    """``tapi-common:context`` with its connectivity augmentation."""

    uuid: Uuid
    name: list[NameAndValue]
    connectivity: ConnectivityContext = _qualified("tapi-connectivity:connectivity-context")


class TapiDocument(_Tapi):
    """A whole instance document."""

    context: Context = _qualified("tapi-common:context")
