"""Sizes, times and patterns as they are written on a command line."""

import argparse
import math
import re

_PLAIN = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_BYTES = {"": 1, "B": 1} | {
    f"{letter}{unit}": base**power
    for power, letter in enumerate("kMG", 1)
    for unit, base in (("B", 1000), ("iB", 1024))
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def count(text: str) -> int | float:
    """Return a share or a number: 30%, 0.3, 200000, 200k, 1.5M.

    >>> count("30%"), count("0.3"), count("200k")
    (0.3, 0.3, 200000)
    """
    return _amount(text, _PLAIN, "30%, 0.3, 200000 or 200k")


def size(text: str) -> int | float:
    """Return a share or a number of bytes: 30%, 500kB, 2MB, 1MiB."""
    return _amount(text, _BYTES, "30%, 500kB or 2MB")


def time(text: str) -> float:
    """Return seconds: 5ms, 800us, 0.2s."""
    number, unit = _split(text, "5ms, 800us or 0.2s")
    if unit not in _SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} has no unit: write 5ms, 800us or 0.2s")
    return number * _SECONDS[unit]


def numbers(text: str) -> tuple[float, ...]:
    """Return numbers between commas: 0.485,0.456,0.406."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers between commas") from None


def sizes(text: str) -> tuple[int, ...]:
    """Return whole numbers between commas: 3,32,32."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: write whole numbers from 1, such as 3,32,32")
    return found


def width(text: str) -> tuple[str, int | float]:
    """Return a pattern and the channels that stay: conv*=0.5, fc=64, or 50% for every group."""
    pattern, equals, value = text.rpartition("=")
    return (pattern if equals else "*", count(value))


def eps(text: str) -> tuple[str, tuple[float, float]]:
    """Return a pattern with eps_w and eps_l2: conv*=-1e-4,1e-4."""
    pattern, equals, pair = text.rpartition("=")
    values = numbers(pair)
    if not equals or len(values) != 2:
        raise argparse.ArgumentTypeError(f"{text!r}: write PATTERN=EPS_W,EPS_L2")
    return pattern, (values[0], values[1])


def _amount(text: str, units: dict[str, int], known: str) -> int | float:
    number, unit = _split(text, known)
    if unit == "%":
        share = number / 100
    elif unit in units:
        amount = number * units[unit]
        if unit or (number > 1 or "." not in text):
            return round(amount)
        share = amount
    else:
        raise argparse.ArgumentTypeError(f"{text!r} has an unknown unit: write {known}")
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a share lies above 0% and up to 100%")
    return share


def _split(text: str, known: str) -> tuple[float, str]:
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][-+]?\d+)?)\s*([A-Za-z%]*)\s*", text)
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount: write {known}")
    return number, match[2]
