"""Renders the Helm chart and finds the parts of what it makes."""

import json
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

Object = dict[str, Any]

CHART = Path(__file__).parents[2] / "deploy/helm/prfaas-router"
SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
FULL: Object = yaml.safe_load((CHART / "ci/full-values.yaml").read_text())
"""Every value set to something that is not its default."""

_SECONDS = {"service-admin.yaml": "/admin", "deployment-kvmeta.yaml": "/kvmeta"}
"""Templates of an object whose kind another template has already."""


def render(chart: helm.Chart, values: Object | None = None) -> dict[str, Object]:
    """Return the rendered objects by their kind.

    `Service/admin` is the admin Service, `Deployment/kvmeta` the ingest's.
    """
    objects = {}
    for path, text in chart.render(values, name="demo", namespace="serving").items():
        if not path.endswith(".yaml"):
            continue
        documents = [document for document in yaml.safe_load_all(text) if document]
        assert len(documents) <= 1, f"{path} holds more than one object"
        for document in documents:
            suffix = next((name for end, name in _SECONDS.items() if path.endswith(end)), "")
            objects[document["kind"] + suffix] = document
    return objects


def pod_spec(objects: dict[str, Object]) -> Object:
    return objects["Deployment"]["spec"]["template"]["spec"]


def container(objects: dict[str, Object]) -> Object:
    (only,) = pod_spec(objects)["containers"]
    return only
