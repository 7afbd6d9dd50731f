"""Figures of `pith report --lines`, as a board of rows and as cells of tables."""

import json
import sys

MISSING = "-"
LEAST = 0.5  # of the predictions or samples that a row of a real model has at most: with fewer it is
             # left out
LEAST_SAMPLES = 8  # of a task: as many do, however many others have
SOLVED = 0.5  # of a task: with fewer answers from the exact cache it says nothing about policies


class Scoreboard:
    """The figures of `pith report --lines`, by (kind, name, length) and policy."""

    def __init__(self, lines, least=1):
        """`least`: the share of the most predictions or samples that a row must have."""
        self.least = least
        self.heads, self.rows = {}, {}
        at = None
        for line in map(json.loads, lines):
            if "result" in line:
                at = line["result"], line["name"], line["length"]
                if at in self.heads:
                    sys.exit(f"results: two settings of {at}: start with an empty work folder")
                self.heads[at], self.rows[at] = line, {}
            else:
                self.rows[at][line["policy"]] = line
        self.lengths = sorted({length for _, name, length in self.rows if name == "continue"})

    def ppl(self, mode, length):
        return self.finished("ppl", mode, length)

    def task(self, name, length):
        return self.finished("task", name, length)

    def finished(self, kind, name, length):
        """Rows that have as many predictions or samples as any other, or `least` of that: the
        others are left out."""
        rows = self.rows.get((kind, name, length), {})
        most = max((row["count"] for row in rows.values()), default=0)
        needed = enough_samples(self.least, most) if kind == "task" else self.least * most
        return {policy: row for policy, row in rows.items() if row["count"] >= needed}

    def policies(self, length):
        """By falling bits."""
        after = self.ppl("continue", length)
        return sorted(after, key=lambda policy: -after[policy]["bits"])


def enough_samples(least, most):
    """Of a task, where others have `most`."""
    return most if least == 1 else min(least * most, LEAST_SAMPLES)


def number(value, digits=3):
    if value == 0:
        return "0"
    return f"{value:.1e}" if abs(value) < 1e-4 else f"{value:.{digits}g}"


def with_error(pair):
    mean, error = pair
    return number(mean) if error == 0 else f"{number(mean)} ±{number(error, 2)}"


def table(heads, rows):
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads),
            *("| " + " | ".join(row) + " |" for row in rows)]


def score(rows, policy):
    return f"{100 * rows[policy]['score'][0]:.0f}" if policy in rows else MISSING


def counted(rows, policy):
    """The share found with Wilson's interval: 100% of 16 is not every answer."""
    if policy not in rows:
        return MISSING
    share, count = rows[policy]["score"][0], rows[policy]["count"]
    low, high = (100 * end for end in rows[policy]["interval"])
    return f"{100 * share:.0f}% of {count} ({low:.0f} to {high:.0f})"


def score_of(rows, policy):
    """With the number of samples where there are more than the least."""
    count = rows.get(policy, {}).get("count", 0)
    return score(rows, policy) + (f" ({count})" if count > LEAST_SAMPLES else "")


def solved(rows):
    """Whether the exact cache answers enough of a task."""
    return "exact" not in rows or rows["exact"]["score"][0] >= SOLVED


def exact_alone(board):
    rows = []
    for (kind, name, length), found in board.rows.items():
        if kind == "task" and "exact" in found and (len(found) == 1 or not solved(found)):
            row = found["exact"]
            rows.append([f"`{name}`", str(length), str(row["count"]),
                         f"{100 * row['score'][0]:.0f}"])
    return table(["task", "tokens", "samples", "exact cache, %"], rows) if rows else []
