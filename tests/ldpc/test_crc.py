"""CRCs against long division by the printed generator polynomials."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.ldpc.crc import attach_crc, crc_bits, crc_holds, crc_length

# powers of the generators as printed in 38.212 clause 5.1
POWERS = {
    "24A": [24, 23, 18, 17, 14, 11, 10, 7, 6, 5, 4, 3, 1, 0],
    "24B": [24, 23, 6, 5, 1, 0],
    "24C": [24, 23, 21, 20, 17, 15, 13, 12, 8, 4, 2, 1, 0],
    "16": [16, 12, 5, 0],
    "11": [11, 10, 9, 5, 0],
    "6": [6, 5, 0],
}


def remainder(bits, name):
    degree = POWERS[name][0]
    generator = sum(1 << p for p in POWERS[name])
    value = int("".join(map(str, bits)) or "0", 2) << degree
    while value.bit_length() > degree:
        value ^= generator << (value.bit_length() - degree - 1)
    return [int(b) for b in f"{value:0{degree}b}"]


@pytest.mark.parametrize("name", list(POWERS))
@settings(deadline=None)  # the first example compiles
@given(bits=st.lists(st.integers(0, 1), min_size=1, max_size=80))
def test_equals_polynomial_division(name, bits):
    assert crc_bits(np.array(bits, dtype=np.uint8), name).tolist() == remainder(bits, name)


@pytest.mark.parametrize("name", list(POWERS))
def test_attached_parity_divides_and_a_burst_is_seen(name):
    rng = np.random.default_rng(1)
    words = attach_crc(rng.integers(0, 2, (20, 300), dtype=np.uint8), name)
    assert words.shape == (20, 300 + crc_length(name))
    assert crc_holds(words, name).all()
    # any burst not longer than the parity is detected
    start = 57
    words[:, start] ^= 1
    words[:, start + crc_length(name) - 1] ^= 1
    assert not crc_holds(words, name).any()


def test_known_check_value():
    # CRC-16/XMODEM of "123456789" is 0x31C3
    bits = np.unpackbits(np.frombuffer(b"123456789", dtype=np.uint8))
    assert np.packbits(crc_bits(bits, "16")).tobytes().hex() == "31c3"
    # CRC-24/LTE-A of the same is 0xCDE703, CRC-24/LTE-B is 0x23EF52
    assert np.packbits(crc_bits(bits, "24A")).tobytes().hex() == "cde703"
    assert np.packbits(crc_bits(bits, "24B")).tobytes().hex() == "23ef52"


def test_unknown_crc_is_refused():
    with pytest.raises(InputError, match="crc: '32'"):
        crc_bits(np.zeros(8, dtype=np.uint8), "32")
