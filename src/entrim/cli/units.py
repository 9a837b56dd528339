"""Sizes, times and patterns on the command line."""

import argparse
import math
import re
from collections.abc import Callable
from typing import Any

_PLAIN = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_BYTES = {"": 1, "B": 1} | {
    f"{letter}{unit}": base**power
    for power, letter in enumerate("kMG", 1)
    for unit, base in (("B", 1000), ("iB", 1024))
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_LONG = {"s": 1.0, "min": 60.0, "h": 3600.0}


def count(text: str) -> int | float:
    """Return a fraction or a number: 30%, 0.3, 200000, 200k, 1.5M.

    >>> count("30%"), count("0.3"), count("200k")
    (0.3, 0.3, 200000)
    """
    return _amount(text, _PLAIN, "30%, 0.3, 200000 or 200k")


def limit(text: str) -> int | float:
    """Return a fraction or a number; a small number without a unit is probably a percentage.

    >>> limit("50%"), limit("200k")
    (0.5, 200000)
    """
    found = count(text)
    if isinstance(found, int) and found <= 100 and text.strip().isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is ambiguous: write {text.strip()}% for a fraction, or a number above 100"
        )
    return found


def holdout(text: str) -> int | float:
    """Return a fraction or a number of images, or 0: 10%, 0.1, 200, 0.

    >>> holdout("10%"), holdout("200"), holdout("0")
    (0.1, 200, 0)
    """
    return 0 if text.strip() == "0" else count(text)


def fraction(text: str) -> float:
    """Return a fraction: 95% or 0.95.

    >>> fraction("95%"), fraction("0.9")
    (0.95, 0.9)
    """
    found = count(text)
    if not isinstance(found, float) or found >= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: write a fraction such as 95% or 0.95")
    return found


def size(text: str) -> int | float:
    """Return a fraction or a number of bytes: 30%, 500kB, 2MB, 1MiB."""
    return _amount(text, _BYTES, "30%, 500kB or 2MB")


def time(text: str) -> float:
    """Return seconds: 5ms, 800us, 0.2s."""
    return _seconds(text, _SECONDS, "5ms, 800us or 0.2s")


def duration(text: str) -> float:
    """Return seconds: 90s, 10min, 2h."""
    return _seconds(text, _LONG, "90s, 10min or 2h")


def numbers(text: str) -> tuple[float, ...]:
    """Return numbers separated by commas: 0.485,0.456,0.406."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers separated by commas") from None


def pair(text: str) -> tuple[float, float]:
    """Return a range: 1e-7,1e-2."""
    values = numbers(text)
    if len(values) != 2:
        raise argparse.ArgumentTypeError(f"{text!r}: write LOW,HIGH")
    return values[0], values[1]


def fractions(text: str) -> tuple[float, float]:
    """Return a range of fractions: 10%,40% or 0.1,0.4.

    >>> fractions("10%,0.4")
    (0.1, 0.4)
    """
    ends = [part.strip() for part in text.split(",")]
    found = numbers(",".join(end.removesuffix("%") for end in ends))
    if len(found) != 2:
        raise argparse.ArgumentTypeError(f"{text!r}: write LOW,HIGH, such as 10%,40%")
    low, high = (v / 100 if e.endswith("%") else v for v, e in zip(found, ends, strict=True))
    return low, high


def parse_choice(text: str) -> int | float:
    """Return a fraction of the score, 99% or 0.99, or the number of a trial.

    >>> parse_choice("99%"), parse_choice("0.95"), parse_choice("7"), parse_choice("100%")
    (0.99, 0.95, 7, 1.0)
    """
    if text.isdecimal():
        return int(text)
    found = count(text)
    if not isinstance(found, float):
        raise argparse.ArgumentTypeError(f"{text!r}: write 99%, 0.99, or the number of a trial")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """Return positive integers separated by commas: 3,32,32."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: write positive integers, such as 3,32,32")
    return found


def width(text: str) -> tuple[str, int | float]:
    """Return a pattern and its width: conv*=0.5, fc=64, or 50% for every group."""
    pattern, equals, value = text.rpartition("=")
    return (pattern if equals else "*", count(value))


def part(text: str) -> tuple[str, list[str]]:
    """Return the name and the patterns of a part: early=layer1.*,layer2.*, or one pattern.

    >>> part("early=layer1.*,layer2.*"), part("fc*")
    (('early', ['layer1.*', 'layer2.*']), ('fc*', ['fc*']))
    """
    name, equals, patterns = text.partition("=")
    found = patterns.split(",") if equals else [text]
    if not name or not all(found):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=PATTERN,PATTERN or PATTERN")
    return name, found


def eps(text: str) -> tuple[str, tuple[float, float]]:
    """Return a pattern with eps_w and eps_l2: conv*=-1e-4,1e-4."""
    pattern, equals, both = text.rpartition("=")
    values = numbers(both)
    if not equals or len(values) != 2:
        raise argparse.ArgumentTypeError(f"{text!r}: write PATTERN=EPS_W,EPS_L2")
    return pattern, (values[0], values[1])


def several(parse: Callable[[str], int | float]) -> Callable[[str], Any]:
    """Return a function that reads one value, or a tuple of values separated by commas.

    >>> several(limit)("30%"), several(limit)("30%,50%")
    (0.3, (0.3, 0.5))
    """

    def read(text: str) -> Any:
        found = tuple(parse(part) for part in text.split(","))
        return found[0] if len(found) == 1 else found

    return read


def _seconds(text: str, units: dict[str, float], known: str) -> float:
    number, unit = _split(text, known)
    if unit not in units:
        raise argparse.ArgumentTypeError(f"{text!r} has no unit: write {known}")
    return number * units[unit]


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
        raise argparse.ArgumentTypeError(f"{text!r}: a fraction is above 0% and at most 100%")
    return share


def _split(text: str, known: str) -> tuple[float, str]:
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][-+]?\d+)?)\s*([A-Za-z%]*)\s*", text)
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount: write {known}")
    return number, match[2]
