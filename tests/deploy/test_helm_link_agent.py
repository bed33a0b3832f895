"""The link agent's pods in the Helm chart."""

import helm_python as helm
import pytest
import typer
from rendered_chart import FULL, Object, render

from router.commands.app import build_app

AGENT: Object = {
    "enabled": True,
    "link": "prfaas-pd",
    "existingSecret": "link-agent",
    "nodeSelector": {"example.com/egress": "prfaas-pd"},
}
"""What nobody but the operator can know."""


def agent_pod(objects: dict[str, Object]) -> Object:
    return objects["DaemonSet"]["spec"]["template"]["spec"]


def parsed(objects: dict[str, Object]) -> Object:
    """Return what the command itself makes of the container's arguments."""
    (only,) = agent_pod(objects)["containers"]
    name, *arguments = only["args"]
    group = typer.main.get_command(build_app())
    command = group.get_command(typer.Context(group), name)
    assert command is not None
    return command.make_context(name, arguments).params


def test_there_is_none_unless_wanted(chart: helm.Chart) -> None:
    """A gateway needs no agent, and nobody gets pods in the hosts' network unasked."""
    assert "DaemonSet" not in render(chart)


def test_it_tells_the_gateways_of_its_release(chart: helm.Chart) -> None:
    """Few values are enough: it tells the Service at which the admin API is, once a second."""
    options = parsed(render(chart, {"linkAgent": AGENT}))
    assert options["link"] == "prfaas-pd"
    assert options["url"] == ["http://demo-prfaas-router.serving.svc:8000"]
    assert options["interval"] == 1
    assert not options["interface"]
    assert options["available_gbps"] is None
    apart = {"linkAgent": AGENT, "config": {"admin": {"port": 8001}}}
    objects = render(chart, apart)
    assert parsed(objects)["url"] == ["http://demo-prfaas-router-admin.serving.svc:8001"]
    assert objects["Service/admin"]["metadata"]["name"] == "demo-prfaas-router-admin"


def test_every_value_reaches_the_command(chart: helm.Chart) -> None:
    """Each of the agent's values is an option that the command takes as it was meant."""
    given = FULL["linkAgent"]
    options = parsed(render(chart, FULL))
    assert options["url"] == given["urls"]
    assert options["interface"] == given["interfaces"]
    assert options["peer"] == given["peers"]
    assert options["interval"] == given["intervalSeconds"]
    assert options["capacity_gbps"] == given["capacityGbps"]
    assert options["available_gbps"] == given["availableGbps"]
    closed = FULL["linkAgent"] | {"availableGbps": 0}
    assert parsed(render(chart, FULL | {"linkAgent": closed}))["available_gbps"] == 0


def test_it_sees_its_hosts_network_and_nothing_else(chart: helm.Chart) -> None:
    """On the named hosts alone, in their network, with no right, token or writable root."""
    objects = render(chart, {"linkAgent": AGENT})
    pod = agent_pod(objects)
    (only,) = pod["containers"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["nodeSelector"] == AGENT["nodeSelector"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert only["securityContext"]["readOnlyRootFilesystem"] is True
    assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "env" not in only
    assert "ports" not in only


def test_its_key_is_mounted_from_the_secret(chart: helm.Chart) -> None:
    """The key that it reads is the named one of the operator's Secret, and no other is there."""
    objects = render(chart, FULL)
    pod = agent_pod(objects)
    (only,) = pod["containers"]
    secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets == [{"secretName": "link-agent", "items": [{"key": "token", "path": "key"}]}]
    mounts = {mount["name"]: mount["mountPath"] for mount in only["volumeMounts"]}
    assert str(parsed(objects)["key_file"]) == f"{mounts['key']}/key"


def test_no_service_leads_to_it(chart: helm.Chart) -> None:
    """Its own selector finds its pods; those of the gateway and of the ingest do not."""
    objects = render(chart, FULL)
    labels = objects["DaemonSet"]["spec"]["template"]["metadata"]["labels"].items()
    assert objects["DaemonSet"]["spec"]["selector"]["matchLabels"].items() <= labels
    for kind in ("Service", "Service/admin"):
        assert not objects[kind]["spec"]["selector"].items() <= labels
    for kind in ("Deployment", "Deployment/kvmeta"):
        assert not objects[kind]["spec"]["selector"]["matchLabels"].items() <= labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"link": ""}, "name the link"),
        ({"existingSecret": ""}, "answers nobody from elsewhere without a key"),
        ({"nodeSelector": None}, "every node would report its egress"),
        ({"link": "east-west"}, 'is "east-west", and config.links has no link of that name'),
    ],
)
def test_an_agent_that_could_tell_nothing_true_is_refused(
    chart: helm.Chart, change: Object, message: str
) -> None:
    """Without a link, a key or a place to measure there is no pod, and the message says why."""
    with pytest.raises(helm.HelmRenderError) as refused:
        render(chart, {"linkAgent": AGENT | change})
    assert message in str(refused.value)


def test_another_clusters_gateways_may_have_any_link(chart: helm.Chart) -> None:
    """Where KV leaves there may be no gateway, so no link is known there."""
    elsewhere = AGENT | {"link": "far-away", "urls": ["https://gateway.example:8001"]}
    objects = render(chart, {"linkAgent": elsewhere, "replicaCount": 0})
    assert parsed(objects)["link"] == "far-away"
    assert objects["Deployment"]["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"urls": ["gateway:8001"]}, "/linkAgent/urls/0"),
        ({"interfaces": ["eth0/1"]}, "/linkAgent/interfaces/0"),
        ({"peers": ["the other side"]}, "/linkAgent/peers/0"),
        ({"intervalSeconds": 0}, "/linkAgent/intervalSeconds"),
        ({"capacityGbps": 0}, "/linkAgent/capacityGbps"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(
    chart: helm.Chart, change: Object, place: str
) -> None:
    """What the command would not take does not render either."""
    with pytest.raises(helm.HelmValuesError) as refused:
        render(chart, {"linkAgent": AGENT | change})
    assert place in str(refused.value)
