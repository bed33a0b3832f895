"""Plots as SVG: scales, ticks, and values that cannot be drawn."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest

from router.commands.charts import Axis, Bar, Mark, Series, draw_bars, draw_lines, top_of


def test_a_scale_has_round_ticks_within_it() -> None:
    """Linear scales step by 1, 2 or 5; logarithmic ones stand at 1, 2 and 5 of each decade."""
    assert list(Axis("", 0, 3.5).ticks()) == [0, 1, 2, 3]
    assert list(Axis("", 100, 2000, log=True).ticks()) == [100, 200, 500, 1000, 2000]
    assert Axis("", 0, 1, percent=True).name(0.25) == "25%"
    assert Axis("", 0, 1).name(20_000) == "20K"


@pytest.mark.parametrize("log", [False, True])
def test_ends_of_a_scale_are_the_ends_of_the_drawing(log: bool) -> None:
    """The low end is at 0, the high end at 1."""
    axis = Axis("", 10, 1000, log=log)
    assert axis.place(10) == pytest.approx(0)
    assert axis.place(1000) == pytest.approx(1)


def test_infinite_values_are_left_out() -> None:
    """Ceilings of stages without requests are infinite; the drawing is still sound XML."""
    series = [Series("a < b", [(1, 1.0), (2, math.inf), (3, 2.0)], 1)]
    text = draw_lines("t", Axis("x", 1, 3), Axis("y", 0, 3), series, [Mark(2, "here & now")])
    svg = ET.fromstring(text[text.index("<svg") :])
    assert len(svg.findall(".//circle")) == 2
    assert "inf" not in text
    assert "a &lt; b" in text
    assert "here &amp; now" in text


def test_bars_tell_their_values() -> None:
    """Each bar has its value above it and its note on hover; the best is marked."""
    text = draw_bars("t", Axis("y", 0, 3), "x", [Bar("1", 1.5, 1, "one"), Bar("2", 2.5, 2)], 1)
    svg = ET.fromstring(text)
    assert [bar.get("class") for bar in svg.findall(".//rect[@rx]")] == ["bar c1", "bar c2 best"]
    assert [title.text for title in svg.findall(".//title")] == ["one", "2"]


def test_a_scale_over_nothing_is_still_a_scale() -> None:
    """All zero or all infinite values do not make an axis of no length."""
    assert top_of([0.0]) > 0
    assert top_of([math.inf]) > 0
