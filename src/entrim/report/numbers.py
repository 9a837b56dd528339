"""Numbers formatted for people."""

import math
from datetime import datetime

_LETTERS = ("", " k", " M", " G", " T")
_BYTES = (" B", " kB", " MB", " GB", " TB")


def short(count: int | float, letters: tuple[str, ...] = _LETTERS) -> str:
    """Return a count in three digits.

    >>> short(312_960), short(64), short(999_999)
    ('313 k', '64', '1 M')
    """
    power = 0
    while power < len(letters) - 1 and float(f"{count / 1000**power:.3g}") >= 1000:
        power += 1
    return f"{float(f'{count / 1000**power:.3g}'):g}{letters[power]}"


def size(count: int | float) -> str:
    """Return a number of bytes in three digits, in powers of 1000."""
    return short(count, _BYTES)


def seconds(value: int | float) -> str:
    """Return a time in a suitable unit.

    >>> seconds(0.00037), seconds(0.25), seconds(84), seconds(4000)
    ('0.37 ms', '250 ms', '84 s', '1 h 7 min')
    """
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def clock(value: int | float) -> str:
    """Return a time as a clock shows it.

    >>> clock(7.9), clock(3725)
    ('0:07', '1:02:05')
    """
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(date: str | None) -> str | None:
    """Return a date of a record for people.

    >>> moment("2026-11-16T18:34:07+00:00")
    '2026-11-16, 18:34 UTC'
    """
    return None if date is None else f"{datetime.fromisoformat(date):%Y-%m-%d, %H:%M} UTC"


def percent(share: int | float) -> str:
    """Return a share as a percentage in two or three digits."""
    value = 100 * share
    if 0 < value < 0.01:
        return "< 0.01 %"
    return f"{value:.2g} %" if value < 10 else f"{value:.0f} %"


def times(before: int | float, after: int | float) -> str:
    """Return by how many times `after` is smaller."""
    if not after or not math.isfinite(before / after):
        return "–"
    return f"{float(f'{before / after:.3g}'):g}×"


def power_of_ten(value: int | float) -> str:
    """Return a small number with a power of ten.

    >>> power_of_ten(3.26e-16), power_of_ten(1e-9), power_of_ten(0.0)
    ('3.3·10⁻¹⁶', '10⁻⁹', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits, power = f"{value:.1e}".split("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if digits == "1.0" else f"{digits}·10{raised}"
