import pytest

from gated_deltanet.quantity import parse_count, parse_shape, parse_size, show_count, show_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100B", 10**11),
        ("1.5b", 1_500_000_000),
        ("300M", 3 * 10**8),
        ("1_000", 1000),
        ("12,345", 12345),
        ("2T", 2 * 10**12),
    ],
)
def test_counts_are_in_powers_of_ten(text, value):
    assert parse_count("--tokens", text) == value


@pytest.mark.parametrize(("text", "value"), [("4K", 4096), ("0.5M", 524288), ("2k", 2048), ("100", 100)])
def test_sizes_are_in_powers_of_two(text, value):
    assert parse_size("--length", text) == value


@pytest.mark.parametrize("text", ["", "B", "4G", "-1", "1e3", "4 K K", "nan", "0", "0.0001K", "1.2.3"])
def test_wrong_number_is_named_with_its_option(text):
    with pytest.raises(ValueError, match=r"--length has .*, expected (a number such as 4096, 4K|at least 1)"):
        parse_size("--length", text)


def test_shape_is_length_and_batch():
    assert parse_shape("--shapes", "2Kx16") == parse_shape("--shapes", "2048×16") == (2048, 16)
    with pytest.raises(ValueError, match="--shapes has '2K', expected a length and a batch such as 2Kx16"):
        parse_shape("--shapes", "2K")


def test_numbers_are_shown_short():
    assert [show_count(n) for n in (1_310_000_000, 524_288, 7)] == ["1.31 B", "524 K", "7"]
    assert [show_size(n) for n in (4096, 2**20, 1000, 1536)] == ["4K", "1M", "1000", "1536"]
