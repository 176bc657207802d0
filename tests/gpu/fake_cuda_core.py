"""A stand-in for ``cuda.core``: one DGX Spark whose driver grants partitions as a real one does."""

from __future__ import annotations

import sys
from collections import namedtuple
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

ComputeCapability = namedtuple("ComputeCapability", ["major", "minor"])
OPEN: list[int] = []  # SM counts of the green contexts that exist


class CUDAError(Exception):
    """As in cuda.core: no RuntimeError."""


@dataclass
class SMResourceOptions:
    count: int | None = None
    backfill: bool = False


@dataclass
class ContextOptions:
    resources: list


@dataclass
class SMResource:
    sm_count: int

    def split(self, options):
        if options.count % 8 or not 8 <= options.count <= self.sm_count:
            raise CUDAError("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION: bad count")
        if options.count == 24 and not options.backfill:
            raise CUDAError("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION: topology")
        return [SMResource(options.count)], SMResource(self.sm_count - options.count)


class Stream:
    handle = 4711

    def close(self):
        pass


@dataclass
class Context:
    sm_count: int

    def create_stream(self):
        return Stream()

    def close(self):
        OPEN.remove(self.sm_count)


class Device:
    name = "NVIDIA GB10"
    compute_capability = ComputeCapability(12, 1)

    def __init__(self, index=0):
        self.resources = SimpleNamespace(sm=SMResource(48))

    @classmethod
    def get_all_devices(cls):
        return (cls(0),)

    def set_current(self):
        pass

    def create_context(self, options):
        (group,) = options.resources
        OPEN.append(group.sm_count)
        return Context(group.sm_count)


def modules() -> dict[str, ModuleType]:
    """What goes into ``sys.modules``."""
    return {"cuda": ModuleType("cuda"), "cuda.core": sys.modules[__name__]}
