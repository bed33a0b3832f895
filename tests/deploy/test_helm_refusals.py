"""What the Helm chart refuses, and how it says so."""

from collections.abc import Iterator

import helm_python as helm
import pytest
import yaml
from rendered_chart import CHART, FULL, SCHEMA, Object, render

SHARED_STORE: Object = {"config": {"store": {"url": "redis://redis:6379/0"}}}

OPEN_OBJECTS = {
    "properties/global": "Helm's own",
    "properties/config/properties/server": "checked by `prfaas config check`",
    "properties/config/properties/store": "checked by `prfaas config check`",
    "properties/config/properties/admin": "checked by `prfaas config check`",
    "properties/config/properties/models/items": "checked by `prfaas config check`",
    "properties/config/properties/clusters/items": "checked by `prfaas config check`",
    "properties/config/properties/links/items": "checked by `prfaas config check`",
    "properties/config/properties/tenants/items": "checked by `prfaas config check`",
    "properties/config/properties/transfer": "checked by `prfaas config check`",
    "properties/config/properties/kvmeta": "checked by `prfaas config check`",
    "properties/config/properties/scheduler": "checked by `prfaas config check`",
    "properties/config/properties/upstream": "checked by `prfaas config check`",
    "properties/config/properties/admission": "checked by `prfaas config check`",
    "properties/config/properties/engines": "checked by `prfaas config check`",
    r"properties/profiles/patternProperties/^[A-Za-z0-9][A-Za-z0-9._-]*\.ya?ml$": "a profile file",
    "properties/extraVolumes/items": "a volume of any kind, checked by Kubernetes",
    "definitions/stringMap": "labels and annotations",
    "definitions/freeObject": "checked by Kubernetes",
    "definitions/quantities": "resource names are free",
}


def merged(*parts: Object) -> Object:
    """Return the parts laid over each other, later ones winning, maps merged."""
    result: Object = {}
    for part in parts:
        for key, value in part.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


def object_schemas(schema: object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Yield (path, schema) of every schema of an object in a schema, definitions included."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from object_schemas(item, f"{path}/{index}")
    elif isinstance(schema, dict):
        if schema.get("type") == "object":
            yield path.strip("/"), schema
        for key, value in schema.items():
            yield from object_schemas(value, f"{path}/{key}")


def closed_values(schema: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path in the values of every map that admits only listed keys."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    if schema.get("additionalProperties") is False:
        yield path
    for key, value in schema.get("properties", {}).items():
        yield from closed_values(value, (*path, key))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicaCount": 2}, "replicaCount is 2, but config.store.url is memory://"),
        ({"autoscaling": {"enabled": True}}, "autoscaling.enabled needs a store"),
        ({"workers": 2}, "workers is 2, but config.store.url is memory://"),
        ({"replicaCount": 2, "config": {"store": {"url": None}}}, "replicaCount is 2"),
    ],
)
def test_a_memory_store_has_one_replica(chart: helm.Chart, values: Object, message: str) -> None:
    """Two replicas on memory would each hold half of the truth, so they do not render."""
    with pytest.raises(helm.HelmRenderError) as refused:
        render(chart, values)
    assert message in str(refused.value)


def test_a_shared_store_may_have_many_replicas(chart: helm.Chart) -> None:
    """With a store that replicas share, a count renders, and so does an autoscaler instead."""
    counted = render(chart, merged(SHARED_STORE, {"replicaCount": 2}))
    assert counted["Deployment"]["spec"]["replicas"] == 2
    scaled = render(chart, merged(SHARED_STORE, {"autoscaling": {"enabled": True}}))
    assert "replicas" not in scaled["Deployment"]["spec"]
    target = scaled["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target["name"] == scaled["Deployment"]["metadata"]["name"]


@pytest.mark.parametrize(
    ("workers", "passed"), [(1, []), (4, ["--workers", "4"])], ids=["one", "four"]
)
def test_workers_are_passed_to_the_gateway(
    chart: helm.Chart, workers: int, passed: list[str]
) -> None:
    """With a shared store a pod runs as many processes as it is told; one is the command's own."""
    rendered = render(chart, merged(SHARED_STORE, {"workers": workers}))
    (container,) = rendered["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["serve", "--config", "/etc/prfaas/config.yaml", *passed]


def test_r63_a_grace_period_shorter_than_the_drain_is_refused(chart: helm.Chart) -> None:
    """A grace period that would cut streams does not render, and the message says why."""
    with pytest.raises(helm.HelmRenderError, match=r"is 100, but config\.drain needs 185"):
        render(chart, {"terminationGracePeriodSeconds": 100})


def test_an_autoscaler_upside_down_is_refused(chart: helm.Chart) -> None:
    """A minimum over the maximum does not render."""
    bounds = {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}}
    with pytest.raises(helm.HelmRenderError, match="minReplicas is larger"):
        render(chart, merged(SHARED_STORE, bounds))


@pytest.mark.parametrize(
    "path", list(closed_values(SCHEMA)), ids=lambda path: ".".join(path) or "root"
)
def test_an_unknown_value_is_refused(chart: helm.Chart, path: tuple[str, ...]) -> None:
    """A misspelt key is an error in every map of the values, and the message names it."""
    values: Object = {"unknownKey": 1}
    for key in reversed(path):
        values = {key: values}
    with pytest.raises(helm.HelmValuesError, match="unknownKey"):
        render(chart, values)


@pytest.mark.parametrize(
    "values",
    [
        {"imagePullSecrets": [{"name": "a", "unknownKey": 1}]},
        {"extraEnv": [{"name": "A", "unknownKey": 1}]},
        {"extraEnvFrom": [{"unknownKey": 1}]},
        {"extraVolumeMounts": [{"name": "a", "mountPath": "/a", "unknownKey": 1}]},
        {"tolerations": [{"unknownKey": 1}]},
        {"networkPolicy": {"clients": [{"unknownKey": 1}]}},
        {"networkPolicy": {"egress": [{"unknownKey": 1}]}},
        {"networkPolicy": {"egress": [{"ports": [{"unknownKey": 1}]}]}},
    ],
)
def test_an_unknown_value_in_a_list_is_refused(chart: helm.Chart, values: Object) -> None:
    """A misspelt key is an error in the entries of lists as well."""
    with pytest.raises(helm.HelmValuesError, match="unknownKey"):
        render(chart, values)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"replicaCount": "two"}, "/replicaCount"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"image": {"repository": ""}}, "/image/repository"),
        ({"config": {"server": {"port": 0}}}, "/config/server/port"),
        ({"config": {"drain": {"grace_seconds": -1}}}, "/config/drain/grace_seconds"),
        ({"config": {"drain": None}}, "/config"),
        ({"profiles": {"../h200.yaml": {}}}, "/profiles"),
        ({"service": {"type": "ExternalName"}}, "/service/type"),
        ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "maxUnavailable"),
        ({"serviceMonitor": {"interval": "often"}}, "/serviceMonitor/interval"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(
    chart: helm.Chart, values: Object, place: str
) -> None:
    """A value of the wrong type or form does not render, and the message says where it is."""
    with pytest.raises(helm.HelmValuesError) as refused:
        render(chart, values)
    assert place in str(refused.value)


def test_the_schema_is_closed_but_for_named_exceptions() -> None:
    """Every object of the schema admits only its own keys, but for those free by nature."""
    open_objects = {
        path
        for path, schema in object_schemas(SCHEMA)
        if schema.get("additionalProperties") is not False
    }
    assert open_objects == set(OPEN_OBJECTS)


def test_values_yaml_documents_every_key() -> None:
    """Each key that the schema admits at the top stands in values.yaml with its default."""
    documented = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(SCHEMA["properties"]) - {"global"} == set(documented)


def test_the_full_values_differ_from_the_defaults() -> None:
    """The full example sets every key, so that no template branch goes without a render."""
    assert set(FULL) == set(SCHEMA["properties"]) - {"global"}
