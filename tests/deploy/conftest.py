"""What the deployment tests share: the repository, and the chart in it."""

from collections.abc import Iterator
from pathlib import Path

import helm_python as helm
import pytest
from rendered_chart import CHART

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded
