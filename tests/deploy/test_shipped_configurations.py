"""The configurations that the compose file and the chart carry, read by the product itself."""

from pathlib import Path

import helm_python as helm
import pytest
from rendered_chart import FULL, SCHEMA, Object, container, pod_spec, render

from router.settings.loading import load
from router.settings.root import Settings


def write_mounted_files(objects: dict[str, Object], directory: Path) -> Path:
    """Lay out the chart's configuration volume in a directory; return the configuration's path."""
    data = objects["ConfigMap"]["data"]
    (volume,) = [entry for entry in pod_spec(objects)["volumes"] if entry["name"] == "config"]
    for item in volume["configMap"]["items"]:
        path = directory / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data[item["key"]])
    return directory / "config.yaml"


def environment_of(objects: dict[str, Object]) -> dict[str, str]:
    """Return the container's environment, a dummy for each value that a Secret would give."""
    return {
        variable["name"]: variable.get("value", f"secret-of-{variable['name']}")
        for variable in container(objects).get("env", [])
    }


def test_the_compose_configuration_loads(root: Path) -> None:
    """The gateway starts on the mounted file, with a profile for the pools of both clusters."""
    loaded = load(root / "deploy/compose/config.yaml", {})
    (model,) = loaded.settings.models
    for cluster in loaded.settings.clusters:
        assert loaded.profile_of(model.name, cluster.name) is not None
    assert loaded.settings.admin.api_key is None


def test_the_compose_admin_key_reaches_the_configuration(root: Path) -> None:
    """PRFAAS_ADMIN_KEY of the environment is the admin key."""
    environment = {"PRFAAS_ADMIN_KEY": "correct-horse"}
    settings = load(root / "deploy/compose/config.yaml", environment).settings
    assert settings.admin.api_key is not None


@pytest.mark.parametrize("values", [None, FULL], ids=["default", "full"])
def test_the_charts_configuration_loads(
    chart: helm.Chart, tmp_path: Path, values: Object | None
) -> None:
    """What the chart mounts is a configuration that the gateway starts on, overrides included."""
    objects = render(chart, values)
    path = write_mounted_files(objects, tmp_path)
    settings = load(path, environment_of(objects)).settings
    ports = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    assert settings.server.host == "0.0.0.0"
    assert settings.server.port == ports["http"]
    assert settings.admin.port == ports.get("admin")
    drain = settings.drain.delay_seconds + settings.drain.grace_seconds
    assert drain < pod_spec(objects)["terminationGracePeriodSeconds"]


def test_the_chart_knows_every_section_of_the_configuration() -> None:
    """A section that the product has can be given to the chart, and no other."""
    assert set(SCHEMA["properties"]["config"]["properties"]) == set(Settings.model_fields)
