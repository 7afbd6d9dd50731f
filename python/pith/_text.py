"""Figures as plots and the report show them."""

import html
import math


def figure(x, digits=3):
    """`digits` significant ones; 0 is "0" and nothing else is: 0.00004 is "4.00e-05"."""
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    place = math.floor(math.log10(abs(x)))
    if not -4 <= place <= 5:
        return f"{x:.{digits - 1}e}"
    return f"{x:.{max(0, digits - 1 - place)}f}"


def estimate(mean, error):
    """Both to the place of the error's second digit: "0.055 ±0.013"."""
    if not error or not math.isfinite(error):
        return figure(mean)
    place = math.floor(math.log10(error))
    if place < -5:
        return f"{figure(mean)} ±{error:.1e}"
    decimals = min(max(1 - place, 0), 6)
    return f"{mean:.{decimals}f} ±{error:.{decimals}f}"


def percent(share):
    """0 and 100 only where they are exact."""
    if share in (0, 1):
        return f"{100 * share:.0f}%"
    if abs(share) < 0.0005:
        return f"{figure(100 * share, 1)}%"
    return f"{99.9 if 0.9995 < share < 1 else 100 * share:.1f}%"


def size(count):
    """ "33.6 MB"."""
    unit = 0
    while count >= 999.5 and unit < 4:
        count, unit = count / 1000, unit + 1
    decimals = 0 if unit == 0 or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{decimals}f} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"


def seconds(time):
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms")):
        if time < limit:
            return f"{figure(time * scale)} {unit}"
    return f"{figure(time)} s"


def policy_html(policy):
    """Escaped, with places where a narrow column may break it."""
    return "".join(html.escape(c) + ("<wbr>" if c in "()+,_=" else "") for c in policy)
