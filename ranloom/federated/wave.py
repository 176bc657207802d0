"""A wave: the aggregate that a gNB ships, and its parts of bounded size."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass

from ranloom.errors import InputError
from ranloom.federated.accumulator import Accumulator
from ranloom.federated.payload import Payload, encode, payload_bytes


@dataclass(frozen=True)
class Wave:
    """Sums over the updates counted since the last wave.

    Args:
        gnb: where they were summed.
        round: round in which the wave counts.
        index: number of the wave in that round at this gNB, from 0.
        closed_s: when the last update could join.
        closed_by: ``complete`` (nobody else was expected), ``cut_off`` or ``wave_time``.
        sums: sum of w_k x_k.
        weight: sum of w_k: n_k, discounted where an update was late. A multiple of 2**-20.
        samples: sum of n_k.
        manifest: ids of the updates in it, in the order of addition.
    """

    gnb: str
    round: int
    index: int
    closed_s: float
    closed_by: str
    sums: Accumulator
    weight: float
    samples: int
    manifest: tuple[str, ...]


@dataclass(frozen=True)
class WavePart:
    """One transfer: a contiguous range of a wave's vector in a wire format."""

    index: int
    first: int
    payload: Payload
    payload_sha256: str


def part_count(elements: int, dtype: str, max_bytes: int) -> int:
    """Fewest equal parts such that none is larger than ``max_bytes``.

    Raises:
        InputError: not even a single value fits.
    """
    if payload_bytes(dtype, 1) > max_bytes:
        raise InputError("wave_max_bytes", max_bytes, f"allowed: {payload_bytes(dtype, 1)} or more")
    parts = -(-payload_bytes(dtype, elements) // max_bytes)
    while payload_bytes(dtype, -(-elements // parts)) > max_bytes:
        parts += 1
    return parts


def part_bounds(elements: int, parts: int) -> list[tuple[int, int]]:
    """(first, end) of each part, sizes as equal as possible."""
    edges = [index * elements // parts for index in range(parts + 1)]
    return list(itertools.pairwise(edges))


def split(wave: Wave, dtype: str, parts: int) -> list[WavePart]:
    """Encode a wave in parts.

    Args:
        wave: what to ship.
        dtype: wire format; ``fix64`` needs sums in ``fixed64`` and ships them unchanged.
        parts: from :func:`part_count`.

    Raises:
        InputError: the format does not fit the sums.
    """
    shipped = []
    for index, (first, end) in enumerate(part_bounds(wave.sums.elements, parts)):
        if dtype == "fix64":
            if wave.sums.arithmetic != "fixed64":
                raise InputError("shipped_dtype", dtype, "allowed: fix64 for fixed64 sums only")
            data = wave.sums.total[first:end].astype("<i8").tobytes()
            payload = Payload(dtype, end - first, data, wave.sums.fraction_bits)
        else:
            payload = encode(wave.sums.sums()[first:end], dtype)
        digest = hashlib.sha256(payload.data).hexdigest()
        shipped.append(WavePart(index, first, payload, digest))
    return shipped
