"""MCS tables against the spectral efficiencies printed in 38.214 tables 5.1.3.1-1 to -3."""

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.nr.mcs import mcs_table

# last column of the tables, typed in from the standard
EFFICIENCY = {
    1: "0.2344 0.3066 0.3770 0.4902 0.6016 0.7402 0.8770 1.0273 1.1758 1.3262 1.3281 1.4766 "
    "1.6953 1.9141 2.1602 2.4063 2.5703 2.5664 2.7305 3.0293 3.3223 3.6094 3.9023 4.2129 4.5234 "
    "4.8164 5.1152 5.3320 5.5547",
    2: "0.2344 0.3770 0.6016 0.8770 1.1758 1.4766 1.6953 1.9141 2.1602 2.4063 2.5703 2.7305 "
    "3.0293 3.3223 3.6094 3.9023 4.2129 4.5234 4.8164 5.1152 5.3320 5.5547 5.8906 6.2266 6.5703 "
    "6.9141 7.1602 7.4063",
    3: "0.0586 0.0781 0.0977 0.1250 0.1523 0.1934 0.2344 0.3066 0.3770 0.4902 0.6016 0.7402 "
    "0.8770 1.0273 1.1758 1.3281 1.4766 1.6953 1.9141 2.1602 2.4063 2.5664 2.7305 3.0293 3.3223 "
    "3.6094 3.9023 4.2129 4.5234",
}


@pytest.mark.parametrize("index", [1, 2, 3])
def test_efficiency_as_printed(index):
    table = mcs_table(index)
    printed = np.array(EFFICIENCY[index].split(), dtype=float)
    assert table.n_mcs == len(printed)
    np.testing.assert_allclose(table.spectral_efficiency, printed, atol=6e-5)


def test_where_the_modulation_changes():
    changes = {i: np.flatnonzero(np.diff(mcs_table(i).modulation_order)) + 1 for i in (1, 2, 3)}
    assert {i: c.tolist() for i, c in changes.items()} == {1: [10, 17], 2: [5, 11, 20], 3: [15, 21]}
    assert mcs_table(2).modulation_order[-1] == 8


def test_unknown_table_is_refused():
    with pytest.raises(InputError, match="mcs_table: 4 "):
        mcs_table(4)


def test_tables_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        mcs_table(1).code_rate[0] = 1.0
