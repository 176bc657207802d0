"""Cross-check with Sionna (Apache-2.0): sizes on the full grid, encoder bit by bit, BER.

Needs the extra ``oracle`` (``pip install sionna-no-rt``).
"""

import numpy as np
import pytest

from ranloom.ldpc.decoder import DecoderSettings
from ranloom.ldpc.transport_block import Receiver, TransportBlockFormat, encode_transport_block
from ranloom.nr.mcs import mcs_table
from ranloom.nr.segmentation import segment_arrays
from ranloom.nr.tbs import tbs_table, transport_block_bits

torch = pytest.importorskip("torch")
utils = pytest.importorskip("sionna.phy.nr.utils", reason="sionna-no-rt is not installed")


@pytest.fixture(scope="module")
def phy_nr():
    torch.set_num_threads(1)
    return pytest.importorskip("sionna.phy.nr")


@pytest.mark.parametrize("table", [1, 2, 3])
def test_mcs_tables(table):
    ours = mcs_table(table)
    order, rate = utils.decode_mcs_index(
        torch.arange(ours.n_mcs), table_index=table, is_pusch=True, transform_precoding=False
    )
    np.testing.assert_array_equal(order.numpy(), ours.modulation_order)
    np.testing.assert_allclose(rate.numpy(), ours.code_rate, atol=1e-6)


@pytest.mark.parametrize("table", [1, 2, 3])
@pytest.mark.parametrize(("symbols", "dmrs", "layers"), [(14, 12, 1), (12, 12, 2), (7, 24, 4)])
def test_sizes_and_segmentation_on_the_full_grid(table, symbols, dmrs, layers):
    ours = mcs_table(table)
    options = {"n_layers": layers, "n_symbols": symbols, "n_dmrs_per_prb": dmrs}
    sizes = tbs_table(273, table=table, **options)[:, 1:].astype(np.int64)
    blocks = segment_arrays(sizes, ours.code_rate_x2048[:, None])
    order = np.broadcast_to(ours.modulation_order[:, None], sizes.shape).ravel().copy()
    rate = np.broadcast_to(ours.code_rate[:, None], sizes.shape).ravel().copy()
    n_prb = np.tile(np.arange(1, 274), ours.n_mcs)
    theirs = utils.calculate_tb_size(
        torch.tensor(order, dtype=torch.int32),
        torch.tensor(rate, dtype=torch.float32),
        num_prbs=torch.tensor(n_prb, dtype=torch.int32),
        num_ofdm_symbols=torch.full(order.shape, symbols, dtype=torch.int32),
        num_dmrs_per_prb=torch.full(order.shape, dmrs, dtype=torch.int32),
        num_layers=torch.full(order.shape, layers, dtype=torch.int32),
        return_cw_length=False,
    )
    np.testing.assert_array_equal(theirs[0].numpy(), sizes.ravel())
    np.testing.assert_array_equal(theirs[1].numpy(), blocks.payload_bits.ravel())
    np.testing.assert_array_equal(theirs[2].numpy(), blocks.n_code_blocks.ravel())


def random_format(rng):
    table = int(rng.integers(1, 4))
    rows = mcs_table(table)
    mcs, n_prb = int(rng.integers(0, rows.n_mcs)), int(rng.integers(1, 120))
    layers, symbols = int(rng.integers(1, 5)), int(rng.integers(5, 15))
    order = int(rows.modulation_order[mcs])
    return TransportBlockFormat(
        transport_block_bits(n_prb, mcs, table=table, n_layers=layers, n_symbols=symbols),
        float(rows.code_rate[mcs]),
        order,
        12 * (symbols - 1) * n_prb * order * layers,
        layers,
    )


def test_encoder_is_bit_exact(phy_nr):
    rng = np.random.default_rng(50)
    compared = 0
    while compared < 50:
        form = random_format(rng)
        # Sionna has no repetition coding: rates below the mother code's are refused
        mother = 1 / 3 if form.segmentation.base_graph == 1 else 1 / 5
        if form.tbs_bits / form.coded_bits < 1.02 * mother:
            continue
        encoder = phy_nr.TBEncoder(
            target_tb_size=form.tbs_bits,
            num_coded_bits=form.coded_bits,
            target_coderate=form.code_rate,
            num_bits_per_symbol=form.modulation_order,
            num_layers=form.n_layers,
            use_scrambler=False,
        )
        assert encoder.num_cbs == form.segmentation.n_code_blocks
        bits = rng.integers(0, 2, form.tbs_bits, dtype=np.uint8)
        theirs = encoder(torch.tensor(bits, dtype=torch.float32)[None])[0].numpy()
        np.testing.assert_array_equal(encode_transport_block(bits, form), theirs)
        compared += 1


def test_decoders_err_alike_on_the_same_noise(phy_nr):
    """Block error rates of both decoders near the waterfall: their 95 % intervals overlap."""
    rng = np.random.default_rng(9)
    form = TransportBlockFormat(1032, 0.5, 2, 2064)
    encoder = phy_nr.TBEncoder(
        target_tb_size=1032,
        num_coded_bits=2064,
        target_coderate=0.5,
        num_bits_per_symbol=2,
        use_scrambler=False,
    )
    decoder = phy_nr.TBDecoder(encoder, num_bp_iter=20, cn_update="offset-minsum")
    n, sigma = 400, 0.875
    bits = rng.integers(0, 2, (n, 1032), dtype=np.uint8)
    sent = np.stack([encode_transport_block(b, form) for b in bits])
    llr = 2 * (1 - 2.0 * sent + sigma * rng.normal(size=sent.shape)) / sigma**2
    # Sionna's sign convention is the opposite: positive for a one
    _, theirs_hold = decoder(torch.tensor(-llr, dtype=torch.float32))
    settings = DecoderSettings("flooding", "offset", 16, iterations=20)
    fails = 0
    for row in llr:
        receiver = Receiver(form, settings)
        receiver.add(row)
        fails += not receiver.decode()[1]
    theirs = int((~theirs_hold.numpy().astype(bool)).sum())
    spread = 1.96 * np.sqrt((fails * (n - fails) + theirs * (n - theirs)) / n)
    assert 0.05 * n < theirs < 0.95 * n
    assert abs(fails - theirs) <= spread
