"""The whole chain from transport block to bits and back, with retransmissions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.errors import InputError
from ranloom.ldpc.decoder import DecoderSettings
from ranloom.ldpc.rate_matching import REDUNDANCY_VERSIONS
from ranloom.ldpc.transport_block import (
    Receiver,
    TransportBlockFormat,
    encode_transport_block,
)
from ranloom.nr.mcs import mcs_table
from ranloom.nr.tbs import transport_block_bits


def make_format(mcs, n_prb, table=1):
    rows = mcs_table(table)
    order = int(rows.modulation_order[mcs])
    return TransportBlockFormat(
        tbs_bits=transport_block_bits(n_prb, mcs, table=table),
        code_rate=float(rows.code_rate[mcs]),
        modulation_order=order,
        coded_bits=156 * n_prb * order,
    )


def llr_of(bits, sigma, rng):
    return 2 * (1 - 2.0 * bits + sigma * rng.normal(size=len(bits))) / sigma**2


@settings(deadline=None, max_examples=25)
@given(mcs=st.integers(0, 28), n_prb=st.integers(1, 40), version=st.sampled_from([0, 3]))
def test_noiseless_round_trip(mcs, n_prb, version):
    # versions 0 and 3 decode on their own at every rate
    form = make_format(mcs, n_prb)
    rng = np.random.default_rng(mcs * 100 + n_prb)
    bits = rng.integers(0, 2, form.tbs_bits, dtype=np.uint8)
    receiver = Receiver(form, DecoderSettings(iterations=50))
    receiver.add(20.0 * (1 - 2.0 * encode_transport_block(bits, form, version)), version)
    found, holds, _ = receiver.decode()
    if version == 0:
        assert holds
        np.testing.assert_array_equal(found, bits)
    # version 3 starts in the parity part and carries little more than K bits at high rates
    assert not holds or (found == bits).all()


def test_noise_is_corrected_and_too_much_is_reported():
    form = make_format(9, 60)
    assert form.segmentation.n_code_blocks == 2
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2, form.tbs_bits, dtype=np.uint8)
    sent = encode_transport_block(bits, form)
    good, bad = (Receiver(form, DecoderSettings()) for _ in range(2))
    good.add(llr_of(sent, 0.6, rng))
    found, holds, ran = good.decode()
    assert holds
    assert (found == bits).all()
    assert (ran < 10).all()
    bad.add(llr_of(sent, 1.2, rng))
    assert not bad.decode()[1]


def test_retransmissions_combine():
    form = make_format(9, 30)
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2, form.tbs_bits, dtype=np.uint8)
    receiver = Receiver(form, DecoderSettings(iterations=20))
    decoded = []
    for version in REDUNDANCY_VERSIONS:
        receiver.add(llr_of(encode_transport_block(bits, form, version), 1.1, rng), version)
        found, holds, _ = receiver.decode()
        decoded.append(holds)
    assert decoded == [False, True, True, True]
    assert (found == bits).all()


def test_new_parity_beats_repetition_at_a_high_rate():
    """What the BLER model calls the redundancy share, seen on the decoder itself."""
    form = make_format(9, 12)  # rate 0.66
    rng = np.random.default_rng(4)
    fails = {0: 0, 2: 0}
    for _ in range(30):
        bits = rng.integers(0, 2, form.tbs_bits, dtype=np.uint8)
        first = llr_of(encode_transport_block(bits, form, 0), 1.17, rng)
        for version in fails:
            receiver = Receiver(form, DecoderSettings(iterations=20))
            receiver.add(first, 0)
            again = encode_transport_block(bits, form, version)
            receiver.add(llr_of(again, 1.17, rng), version)
            fails[version] += not receiver.decode()[1]
    assert fails[2] < fails[0]


def test_wrong_lengths_are_refused():
    form = make_format(5, 3)
    with pytest.raises(InputError, match=r"^bits: "):
        encode_transport_block(np.zeros(form.tbs_bits + 1, dtype=np.uint8), form)
    with pytest.raises(InputError, match=r"^llr: "):
        Receiver(form, DecoderSettings()).add(np.zeros(form.coded_bits - 2))
