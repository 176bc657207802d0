"""Device cards: the shipped ones, and what is refused."""

import pytest

from ranloom.errors import InputError
from ranloom.gpu.card import load_card


@pytest.fixture
def card_text(root):
    return (root / "data" / "cards" / "dgx_spark.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "sm_count", "first", "last"),
    [
        ("dgx_spark", 48, [8, 16, 24], [40, 48]),
        ("h200", 132, [8, 16, 24], [128, 132]),
        ("gh200", 132, [8, 16, 24], [128, 132]),
        ("l40s", 142, [4, 6, 8], [140, 142]),
        ("l40", 142, [4, 6, 8], [140, 142]),
    ],
)
def test_levels_of_shipped_cards(root, name, sm_count, first, last):
    card = load_card(root / "data" / "cards" / f"{name}.yaml")
    assert card.sm_count == sm_count
    assert card.levels[:3].tolist() == first
    assert card.levels[-2:].tolist() == last


def test_every_shipped_card_loads(root):
    assert len([load_card(p) for p in sorted((root / "data" / "cards").glob("*.yaml"))]) >= 5


def test_ridge_points_span_the_published_range(root):
    # WEAVER appendix A.1: DGX Spark, GH200 and L40S lie between 246 and 458 ops/byte
    ridges = [
        load_card(root / "data" / "cards" / f"{n}.yaml").ridge_ops_per_byte
        for n in ("gh200", "l40s", "dgx_spark")
    ]
    assert [round(r) for r in ridges] == [246, 419, 458]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sm_count: 48", "sm_count: 50", "sm_count: 50 .* multiple of sm_step .8."),
        ("sm_count: 48", "sm_count: 4", "sm_min: 8 .* up to 4"),
        ("sm_min: 8", "sm_min: 12", "sm_min: 12 .* multiple of sm_step"),
        ("sm_count: 48", "sm_count: 0", "sm_count: 0 .* above 0"),
        ("sm_count: 48", "sm_count: 48.5", "sm_count: 48.5 .* whole number"),
        ("sm_step: 8", "sm_step: eight", "sm_step: 'eight'"),
        ("power_w: 140", "power_w: .nan", "power_w: nan"),
        ("power_w: 140", "power_w: -1", "power_w: -1"),
        ("power_w: 140", "power_w: true", "power_w: True"),
        ("full_device_level: false", "full_device_level: maybe", "true or false"),
        ("power_w: 140", "power_kw: 140", "power_kw: 140 .* known keys"),
        ("power_w: 140", "", "power_w: 'missing'"),
        ('compute_capability: "12.1"', "compute_capability: 12.1", "quote numbers"),
        ("name: DGX Spark", "name: [", "a device card"),
    ],
)
def test_bad_card_is_refused_in_one_line(tmp_path, card_text, old, new, message):
    assert old in card_text
    path = tmp_path / "card.yaml"
    path.write_text(card_text.replace(old, new))
    with pytest.raises(InputError, match=message) as refused:
        load_card(path)
    assert "\n" not in str(refused.value)


def test_file_that_is_no_card_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_card(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(InputError, match="a mapping"):
        load_card(tmp_path / "list.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="a device card"):
        load_card(tmp_path / "binary.yaml")


def test_level_check_names_the_levels(root):
    card = load_card(root / "data" / "cards" / "h200.yaml")
    card.check_level(132, "x")
    with pytest.raises(InputError, match=r"^here: 12 .* 8, 16, 24, 32, ... 132"):
        card.check_level(12, "here")
