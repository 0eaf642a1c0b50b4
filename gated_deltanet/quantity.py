"""Numbers as people write them: 100B tokens, a length of 4K, 2Kx16."""

import re

DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
BINARY = {"": 1, "K": 2**10, "M": 2**20}
NUMBER = re.compile(r"(\d[\d_,]*(?:\.\d+)?)([A-Za-z]?)")


def parse_count(option: str, text: str) -> int:
    """Of tokens in all, in powers of ten: 100B is 100,000,000,000."""
    return parse(option, text, DECIMAL, "a number such as 15B or 300M")


def parse_size(option: str, text: str) -> int:
    """Of a length or a batch, in powers of two, as they are chosen: 4K is 4,096, and 0.5M is 524,288."""
    return parse(option, text, BINARY, "a number such as 4096, 4K or 0.5M")


def parse_shape(option: str, text: str) -> tuple[int, int]:
    """Length and batch: 2Kx16 (or 2K×16) is 16 sequences of 2,048 tokens."""
    length, cross, batch = text.replace("×", "x").partition("x")
    if not cross:
        raise ValueError(f"{option} has {text!r}, expected a length and a batch such as 2Kx16")
    return parse_size(option, length), parse_size(option, batch)


def parse(option: str, text: str, units: dict[str, int], expected: str) -> int:
    match = NUMBER.fullmatch(text.strip())
    unit = match[2].upper() if match else None
    if not match or unit not in units:
        raise ValueError(f"{option} has {text!r}, expected {expected}")
    value = float(match[1].replace(",", "").replace("_", "")) * units[unit]
    if not 0.5 < value < 2**63:
        raise ValueError(f"{option} has {text!r}, expected at least 1 and less than 2⁶³")
    return round(value)


def show_count(n: float) -> str:
    """1.32 B, 524 K: three digits, in powers of ten."""
    for unit in reversed(DECIMAL):
        if n >= DECIMAL[unit]:
            return f"{n / DECIMAL[unit]:.3g} {unit}".strip()
    return f"{n:.3g}"


def show_size(n: int) -> str:
    """4K, 1M: powers of two, where that is shorter."""
    for unit in reversed(BINARY):
        if n >= BINARY[unit] and n % BINARY[unit] == 0:
            return f"{n // BINARY[unit]}{unit}"
    return str(n)
