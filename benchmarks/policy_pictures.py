"""Pictures of docs/policies.md: what a first token costs in gaps, by token budget and by policy.

    python benchmarks/policy_pictures.py --data DIR --runs DIR [--to docs/images] [--half 1] [--workers 2]

--runs is the --out directory of bench_hindsight.py: what is there already is not simulated again. Each picture has one
panel a scenario, with the median time to first token across and the 99th percentile of gaps upwards, both
logarithmic: nearer to the lower left corner is better. The grey line joins the token budgets 256 to 4,096, the blue one
`interactive` with gap weights from 0 to 1.5, and single points are other presets.
"""

from __future__ import annotations

import argparse
import functools
import html
import math
import pathlib
from collections.abc import Sequence

from bench_hindsight import GRIDS, RIVALS, Scenario, columns, scenarios
from policy_runs import Run, figures_at, measures, run_all

SHOWN: tuple[Scenario, ...] = (
    ("h100", "conv", "80%"),
    ("h100", "code", "80%"),
    ("rtxpro", "mooncake", "80%"),
    ("b200", "reasoning", "80%"),
)
WEIGHTS = (0.0, 0.3, 0.7, 1.0, 1.5)
PRESETS = ("balanced@measured", "throughput@measured")
PANEL, MARGIN, GAP = 250, 62, 30
INK, GRID_INK, RIVAL_INK, OWN_INK, PRESET_INK = "#1f2933", "#d9dee3", "#6b7785", "#1864ab", "#c2410c"

Point = tuple[str, float, float]
"""(label, TTFT p50 ms, inter-token p99 ms)."""


def weight_name(grid: str, weight: float) -> str:
    """The policy of one point of the blue line, as bench_hindsight names it."""
    return f"interactive@{grid}@decode_gap_weight={weight:g}"


def points(found: dict[str, dict[str, float]], names: Sequence[str], labels: Sequence[str]) -> list[Point]:
    """One point for each policy."""
    return [(label, found[name]["ttft_p50"], found[name]["gap_p99"]) for name, label in zip(names, labels, strict=True)]


class Panel:
    """One scenario's axes: logarithmic, with a tenth of room around every point."""

    def __init__(self, left: float, title: str, everything: Sequence[Point]) -> None:
        self.left, self.top, self.title = left, 40.0, title
        self._x = _span([x for _, x, _ in everything])
        self._y = _span([y for _, _, y in everything])

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies in the picture."""
        across = (math.log(x) - self._x[0]) / (self._x[1] - self._x[0])
        up = (math.log(y) - self._y[0]) / (self._y[1] - self._y[0])
        return self.left + across * PANEL, self.top + (1 - up) * PANEL

    def frame(self) -> list[str]:
        """Title, border and grid lines at round numbers."""
        parts = [
            f'<rect x="{self.left}" y="{self.top}" width="{PANEL}" height="{PANEL}" fill="none" stroke="{GRID_INK}"/>',
            _text(self.left + PANEL / 2, self.top - 12, self.title, "middle", INK, 13),
        ]
        bottom = self.top + PANEL
        for value in _round_numbers(self._x):
            x = self.at(value, math.exp(self._y[0]))[0]
            parts.append(f'<path d="M{x:.1f} {self.top}V{bottom}" stroke="{GRID_INK}"/>')
            parts.append(_text(x, bottom + 16, _ms(value), "middle", INK, 11))
        for value in _round_numbers(self._y):
            y = self.at(math.exp(self._x[0]), value)[1]
            parts.append(f'<path d="M{self.left} {y:.1f}H{self.left + PANEL}" stroke="{GRID_INK}"/>')
            parts.append(_text(self.left - 6, y + 4, _ms(value), "end", INK, 11))
        return parts

    def line(self, line: Sequence[Point], ink: str, joined: bool = True, left: bool = False) -> list[str]:
        """Points with their labels, joined where they are one line; `left`: labels stand on that side."""
        places = [self.at(x, y) for _, x, y in line]
        parts = []
        if joined:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            parts.append(f'<path d="{path}" fill="none" stroke="{ink}" stroke-width="1.5"/>')
        lowest = math.inf  # labels of one line that would lie on each other are moved down
        for (label, _, _), (x, y) in sorted(zip(line, places, strict=True), key=lambda one: one[1][1]):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{ink}"/>')
            label_y = y + 4 if lowest == math.inf else max(y + 4, lowest + 11)
            lowest = label_y
            parts.append(_text(x - 7 if left else x + 7, label_y, label, "end" if left else "start", ink, 11))
        return parts


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = math.log(min(values)), math.log(max(values))
    room = max(0.1 * (high - low), 0.05)
    return low - room, high + 1.6 * room


def _round_numbers(span: tuple[float, float]) -> list[float]:
    """1, 2 and 5 times powers of ten within a logarithmic span; more where these are fewer than two."""
    low, high = span
    decades = range(math.floor(low / math.log(10)), math.ceil(high / math.log(10)) + 1)
    found = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    inside = [value for value in found if low <= math.log(value) <= high]
    if len(inside) > 1:
        return inside
    finer = [factor * 10.0**decade for decade in decades for factor in (1, 1.2, 1.4, 1.6, 2, 3, 4, 5, 7)]
    return [value for value in finer if low <= math.log(value) <= high]


def _ms(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"


def _text(x: float, y: float, text: str, anchor: str, ink: str, size: int) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{ink}" font-size="{size}">'
        f"{html.escape(text)}</text>"
    )


def picture(cells: dict[Scenario, dict[str, dict[str, float]]], grid: str) -> str:
    """The SVG of all panels."""
    parts: list[str] = []
    for place, (scenario, found) in enumerate(cells.items()):
        rivals = points(found, RIVALS, [name.removeprefix("budget:") for name in RIVALS])
        own = points(found, [weight_name(grid, weight) for weight in WEIGHTS], [f"{weight:g}" for weight in WEIGHTS])
        presets = points(found, PRESETS, [name.partition("@")[0] for name in PRESETS])
        left = MARGIN + place * (PANEL + MARGIN + GAP)
        panel = Panel(left, " · ".join(scenario), [*rivals, *own, *presets])
        parts += panel.frame() + panel.line(rivals, RIVAL_INK) + panel.line(own, OWN_INK, left=True)
        parts += panel.line(presets, PRESET_INK, joined=False)
    width = MARGIN + len(cells) * (PANEL + MARGIN + GAP)
    legend = (
        ("token budgets, each with graphs of exactly its steps' sizes", RIVAL_INK),
        ("interactive, by decode_gap_weight", OWN_INK),
        ("other presets", PRESET_INK),
    )
    x = float(MARGIN)
    for words, ink in legend:
        parts.append(f'<circle cx="{x}" cy="{PANEL + 92}" r="4" fill="{ink}"/>')
        parts.append(_text(x + 9, PANEL + 96, words, "start", ink, 12))
        x += 60 + 6.4 * len(words)
    axes = "across: time to first token, median; upwards: gap between tokens, 99th percentile"
    parts.append(_text(MARGIN, PANEL + 74, axes, "start", INK, 12))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {PANEL + 110}" font-family="sans-serif">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--runs", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path("docs/images"), metavar="DIR")
    parser.add_argument("--grid", choices=GRIDS, default="step4")
    parser.add_argument("--half", type=int, choices=(0, 1), default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    found = scenarios(str(options.data), options.half, 1.0, options.workers, options.runs)
    policies = [*(weight_name(options.grid, weight) for weight in WEIGHTS), *PRESETS]
    runs: dict[Scenario, dict[str, Run]] = {scenario: columns(found[scenario], policies) for scenario in SHOWN}
    tasks = [run for by_name in runs.values() for run in by_name.values()]
    measure = functools.partial(figures_at, options.runs)
    documents = dict(zip(tasks, run_all(tasks, measure, options.workers, "policies"), strict=True))
    cells = {s: {name: measures(documents[run]) for name, run in by_name.items()} for s, by_name in runs.items()}
    options.to.mkdir(parents=True, exist_ok=True)
    path = options.to / "policy-trade-offs.svg"
    path.write_text(picture(cells, options.grid))
    print(path)


if __name__ == "__main__":
    main()
