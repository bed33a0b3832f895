"""Self-contained HTML pages: one template, one style sheet, nothing loaded from elsewhere."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from router.commands.output import CommandFailed


def render_template(name: str, **values: object) -> str:
    """Render one of the package's templates with the pages' common style."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    style = Markup(_read("page_files/style.css"))  # noqa: S704 - our own file
    return environment.from_string(_read(name)).render(style=style, **values)


def write_page(path: Path, page: str) -> None:
    """Write a page; raises CommandFailed where it cannot be."""
    try:
        path.write_text(page, "utf-8")
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from error


def _read(name: str) -> str:
    return resources.files("router.commands").joinpath(name).read_text("utf-8")
