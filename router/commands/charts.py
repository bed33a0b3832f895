"""Plots as inline SVG: enough for lines over an axis and for bars, in the page's own colours.

Colours are the classes `c1` to `c5`, text and grid the classes `ink` and `grid`, so that the page's
style sheet decides on them, in light and in dark. Every point tells its values on hover.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 640
_HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 14, 44


@dataclass(frozen=True, slots=True)
class Series:
    """A line through points; `colour` is 1 to 5, a dashed one is no main claim."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at `x` with a label."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `colour` is 1 to 5, `note` is told on hover."""

    label: str
    value: float
    colour: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from `low` to `high`, linear or logarithmic, and its label."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    def place(self, value: float) -> float:
        """Return where a value is, 0 at the low end and 1 at the high one."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> Iterator[float]:
        """Yield round values within the scale."""
        if self.log:
            yield from self._decades()
            return
        step = _round_step((self.high - self.low) / 6)
        count = math.floor(self.low / step)
        while count * step <= self.high * (1 + 1e-9):
            if count * step >= self.low:
                yield count * step
            count += 1

    def name(self, value: float) -> str:
        """Write a value of this scale."""
        if self.percent:
            return f"{value:.0%}"
        if value >= 10_000 or (value >= 1000 and value % 1000 == 0):
            return f"{value / 1000:g}K"
        return f"{value:.3g}"

    def _decades(self) -> Iterator[float]:
        decades = math.log10(self.high / self.low)
        steps = (1, 1.5, 2, 3, 5, 7) if decades <= 1.2 else (1, 2, 5) if decades <= 4 else (1,)
        power = math.floor(math.log10(self.low))
        while 10**power <= self.high:
            for step in steps:
                value = step * 10.0**power
                if self.low <= value <= self.high * (1 + 1e-9):
                    yield value
            power += 1


def draw_lines(
    title: str, x: Axis, y: Axis, series: Sequence[Series], marks: Sequence[Mark] = ()
) -> str:
    """Return a plot of lines. What is above the y axis is cut, so that infinite ceilings may be."""
    frame = _Frame(x, y)
    body = [*frame.grid(), *frame.marks(marks)]
    for each in series:
        points = [(a, b) for a, b in each.points if math.isfinite(b)]
        path = " ".join(f"{frame.x(a):.1f},{frame.y(min(b, 2 * y.high)):.1f}" for a, b in points)
        dash = ' stroke-dasharray="5 4"' if each.dashed else ""
        body.append(f'<polyline class="line c{each.colour}" points="{path}"{dash}/>')
        body += [
            f'<circle class="dot c{each.colour}" cx="{frame.x(a):.1f}" cy="{frame.y(b):.1f}" r="7">'
            f"<title>{escape(each.name)}: {b:.3g} at {x.name(a)}</title></circle>"
            for a, b in points
            if b <= y.high
        ]
    return _svg(title, body, _legend(series))


def draw_bars(title: str, y: Axis, x_label: str, bars: Sequence[Bar], best: int | None) -> str:
    """Return upright bars. The one at `best` is framed."""
    frame = _Frame(Axis(x_label, 0, len(bars)), y)
    body = [*frame.grid(x_ticks=False)]
    width = (_WIDTH - _LEFT - _RIGHT) / len(bars)
    every = math.ceil(len(bars) / 24)
    for i, bar in enumerate(bars):
        left = _LEFT + i * width + width * 0.12
        top = frame.y(bar.value)
        framed = " best" if i == best else ""
        body.append(
            f'<rect class="bar c{bar.colour}{framed}" x="{left:.1f}" y="{top:.1f}" rx="2"'
            f' width="{width * 0.76:.1f}" height="{_HEIGHT - _BOTTOM - top:.1f}">'
            f"<title>{escape(bar.note or bar.label)}</title></rect>"
        )
        if i % every == 0:
            body.append(
                f'<text class="ink" text-anchor="middle" x="{left + width * 0.38:.1f}"'
                f' y="{_HEIGHT - _BOTTOM + 16}">{escape(bar.label)}</text>'
            )
        if len(bars) <= 12:
            body.append(
                f'<text class="value" text-anchor="middle" x="{left + width * 0.38:.1f}"'
                f' y="{top - 5:.1f}">{bar.value:.3g}</text>'
            )
    return _svg(title, body, [])


def top_of(values: Sequence[float], *, room: float = 1.12) -> float:
    """Return the end of a scale from 0 that shows all finite values, with room above them."""
    finite = [value for value in values if math.isfinite(value)]
    return max(finite, default=1.0) * room or 1.0


@dataclass(frozen=True, slots=True)
class _Frame:
    """Turns values into places on the drawing."""

    x_axis: Axis
    y_axis: Axis

    def x(self, value: float) -> float:
        return _LEFT + self.x_axis.place(value) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - self.y_axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self, *, x_ticks: bool = True) -> Iterator[str]:
        for value in self.y_axis.ticks():
            at = self.y(value)
            yield (
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}"'
                f' y2="{at:.1f}"/>'
                f'<text class="ink" text-anchor="end" x="{_LEFT - 8}" y="{at + 4:.1f}">'
                f"{self.y_axis.name(value)}</text>"
            )
        if x_ticks:
            yield from self._x_ticks()
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        yield (
            f'<text class="ink label" text-anchor="middle" x="{middle}" y="{_HEIGHT - 8}">'
            f"{escape(self.x_axis.label)}</text>"
            '<text class="ink label" text-anchor="middle"'
            f' transform="translate(13 {_HEIGHT / 2 - 16}) rotate(-90)">'
            f"{escape(self.y_axis.label)}</text>"
        )

    def marks(self, marks: Sequence[Mark]) -> Iterator[str]:
        for i, mark in enumerate(marks):
            at = self.x(mark.x)
            right = at > _WIDTH * 0.82
            anchor, shift = ("end", -6) if right else ("start", 6)
            yield (
                f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}"'
                f' y2="{_HEIGHT - _BOTTOM}"/>'
                f'<text class="value" text-anchor="{anchor}" x="{at + shift:.1f}"'
                f' y="{_TOP + 12 + 14 * i}">{escape(mark.label)}</text>'
            )

    def _x_ticks(self) -> Iterator[str]:
        last = -math.inf
        for value in self.x_axis.ticks():
            at = self.x(value)
            yield (
                f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_HEIGHT - _BOTTOM}"'
                f' y2="{_HEIGHT - _BOTTOM + 4}"/>'
            )
            if at - last > 34:
                last = at
                yield (
                    f'<text class="ink" text-anchor="middle" x="{at:.1f}"'
                    f' y="{_HEIGHT - _BOTTOM + 17}">{self.x_axis.name(value)}</text>'
                )


def _legend(series: Sequence[Series]) -> list[str]:
    return [
        f'<span class="key"><i class="c{each.colour}{" dashed" if each.dashed else ""}"></i>'
        f"{escape(each.name)}</span>"
        for each in series
    ]


def _svg(title: str, body: Sequence[str], legend: Sequence[str]) -> str:
    keys = f'<div class="keys">{"".join(legend)}</div>' if legend else ""
    high = _HEIGHT - _BOTTOM
    return (
        f'{keys}<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<clipPath id="{_slug(title)}"><rect x="{_LEFT}" y="{_TOP - 2}"'
        f' width="{_WIDTH - _LEFT - _RIGHT}" height="{high - _TOP + 2}"/></clipPath>'
        f"{_clipped(body, _slug(title))}</svg>"
    )


def _clipped(body: Sequence[str], name: str) -> str:
    """Let only lines and their dots end at the frame: labels may stand outside."""
    cut = ("<polyline", "<circle")
    inside = "".join(part for part in body if part.startswith(cut))
    outside = "".join(part for part in body if not part.startswith(cut))
    return f'{outside}<g clip-path="url(#{name})">{inside}</g>'


def _slug(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.lower())


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(unit * power for unit in (1, 2, 5, 10) if unit * power >= step * 0.999)
