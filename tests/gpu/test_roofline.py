"""Arithmetic intensity of decoding against the figures printed in WEAVER appendix A.1."""

import pytest

from ranloom.gpu.roofline import decode_point


def test_figures_of_appendix_a1():
    block = decode_point(n_edges=316, lifting_size=128, iterations=10)
    # "5.7 MB and 4.9 x 10^6 ops ... 0.9 ops/byte"
    assert round(block.bytes / 1e6, 1) == 5.7
    assert round(block.ops / 1e6, 1) == 4.9
    assert round(block.ops_per_byte, 1) == 0.9
    assert block.bound(246.0) == "memory"
    assert block.bound(0.5) == "compute"


def test_intensity_does_not_depend_on_size():
    small, large = decode_point(197, 2, 1), decode_point(316, 384, 10)
    assert small.ops_per_byte == pytest.approx(large.ops_per_byte)
