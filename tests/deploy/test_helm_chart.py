"""The Helm chart, rendered and validated without Helm or a cluster."""

import base64
import tomllib

import helm_python as helm
import kubernetes_validate
import pytest
import yaml
from rendered_chart import CHART, FULL, Object, container, pod_spec, render

KUBERNETES_VERSIONS = ("1.27", "1.37")
"""The oldest version that Chart.yaml admits, and the newest whose schemas are at hand."""


# ---------------------------------------------------------------------------- what it renders


def test_default_values_render_these_objects(chart: helm.Chart) -> None:
    """Without any value the chart installs a gateway and no optional part."""
    assert set(render(chart)) == {
        "ConfigMap",
        "Deployment",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    }


def test_full_values_render_every_object(chart: helm.Chart) -> None:
    """With every part switched on there is one object for each template file."""
    templates = [path.stem for path in (CHART / "templates").glob("*.yaml")]
    assert len(render(chart, FULL)) == len(templates)


def test_the_linter_has_no_warning() -> None:
    """`helm lint --strict` finds nothing above the level of advice."""
    report = helm.lint(CHART, strict=True, kube_version=f"v{KUBERNETES_VERSIONS[0]}.0")
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("values", [None, FULL], ids=["default", "full"])
def test_every_object_is_valid_kubernetes(
    chart: helm.Chart, values: Object | None, version: str
) -> None:
    """Each object passes the strict schema of the oldest and the newest Kubernetes."""
    for kind, document in render(chart, values).items():
        if kind != "ServiceMonitor":
            kubernetes_validate.validate(document, version, strict=True)


def test_the_service_monitor_has_the_operators_form(chart: helm.Chart) -> None:
    """A ServiceMonitor, whose schema Kubernetes lacks, holds what the Prometheus operator reads."""
    objects = render(chart, FULL)
    monitor = objects["ServiceMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    (endpoint,) = monitor["spec"]["endpoints"]
    service = objects["Service/admin"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["path"] == "/metrics"
    assert endpoint["honorLabels"] is True
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize("values", [None, FULL], ids=["default", "full"])
def test_every_selector_finds_the_pods(chart: helm.Chart, values: Object | None) -> None:
    """Deployment, Services, budget and policy select the labels that the pods carry."""
    objects = render(chart, values)
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    for kind, document in objects.items():
        spec = document.get("spec", {})
        if kind.startswith("Service") and kind != "ServiceMonitor":
            selector = spec.get("selector")
        elif kind == "NetworkPolicy":
            selector = spec["podSelector"]["matchLabels"]
        elif kind in {"Deployment", "PodDisruptionBudget"}:
            selector = spec["selector"]["matchLabels"]
        else:
            continue
        if kind != "ServiceAccount":
            assert selector.items() <= labels, kind


def test_every_object_carries_the_standard_and_the_common_labels(chart: helm.Chart) -> None:
    """Objects can be found by application, release and the labels of the operator."""
    for kind, document in render(chart, FULL).items():
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "demo", kind
        assert labels["team"] == "inference", kind
        where = "engines" if kind.startswith("Role") else "serving"
        assert document["metadata"]["namespace"] == where, kind


def test_the_chart_and_the_package_have_one_version() -> None:
    """The chart's appVersion names the release that pyproject.toml builds."""
    project = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text())["project"]
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert described["appVersion"] == project["version"]
    assert described["kubeVersion"].startswith(f">={KUBERNETES_VERSIONS[0]}")


# ---------------------------------------------------------------------------- the pod

SHARED: Object = {"config": {"store": {"url": "redis://redis:6379"}}}

SCALING: Object = {
    "scheduler": {
        "long_loop": {
            "actuator": "kubernetes",
            "kubernetes": {
                "workloads": [
                    {
                        "cluster": "pd",
                        "prefill": {"name": "pd-prefill"},
                        "decode": {"name": "pd-decode"},
                    }
                ]
            },
        }
    }
}
"""What makes the gateway scale two stateful sets."""


@pytest.mark.parametrize("values", [None, FULL], ids=["default", "full"])
def test_the_pod_meets_the_restricted_standard(chart: helm.Chart, values: Object | None) -> None:
    """The pod runs without root, rights, capabilities, or a writable root file system."""
    objects = render(chart, values)
    pod = pod_spec(objects)["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_no_token_is_mounted_by_default(chart: helm.Chart) -> None:
    """The gateway does not speak to the Kubernetes API, so neither account nor pod has a token."""
    objects = render(chart)
    assert objects["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod_spec(objects)["automountServiceAccountToken"] is False


def test_only_who_scales_has_a_token(chart: helm.Chart) -> None:
    """With the actuator the gateway's pods carry the account's token, the ingest's do not."""
    objects = render(chart, SHARED | {"config": SHARED["config"] | SCALING})
    assert objects["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod_spec(objects)["automountServiceAccountToken"] is True
    ingest = objects["Deployment/kvmeta"]["spec"]["template"]["spec"]
    assert ingest["automountServiceAccountToken"] is False


def test_the_right_to_scale_names_what_is_scaled(chart: helm.Chart) -> None:
    """Stateful sets alone need no right on pods; where the engines are, for our account."""
    objects = render(chart, {"config": SCALING})
    names = ["pd-prefill", "pd-decode"]
    assert objects["Role"]["rules"] == [
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets"],
            "resourceNames": names,
            "verbs": ["get"],
        },
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets/scale"],
            "resourceNames": names,
            "verbs": ["get", "update"],
        },
    ]
    assert objects["Role"]["metadata"]["namespace"] == "serving"
    binding = objects["RoleBinding"]
    assert binding["roleRef"]["name"] == objects["Role"]["metadata"]["name"]
    (subject,) = binding["subjects"]
    account = objects["ServiceAccount"]["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


def test_every_kind_of_workload_has_its_right(chart: helm.Chart) -> None:
    """By the API group of each; pods may be marked for removal only where a Deployment is."""
    rules = render(chart, FULL)["Role"]["rules"]
    rights = {
        (rule["apiGroups"][0], resource): (rule.get("resourceNames"), rule["verbs"])
        for rule in rules
        for resource in rule["resources"]
    }
    group = "leaderworkerset.x-k8s.io"
    assert rights == {
        ("apps", "statefulsets"): (["pd-prefill", "pd-decode"], ["get"]),
        ("apps", "statefulsets/scale"): (["pd-prefill", "pd-decode"], ["get", "update"]),
        ("apps", "deployments"): (["kimi-prefill"], ["get"]),
        ("apps", "deployments/scale"): (["kimi-prefill"], ["get", "update"]),
        ("", "pods"): (None, ["get", "list", "patch"]),
        (group, "leaderworkersets"): (["kimi-decode"], ["get"]),
        (group, "leaderworkersets/scale"): (["kimi-decode"], ["get", "update"]),
    }


@pytest.mark.parametrize("values", [None, FULL], ids=["default", "full"])
def test_probes_ask_health_and_ready(chart: helm.Chart, values: Object | None) -> None:
    """Being without engines takes a pod out of the Service, and never restarts it."""
    gateway = container(render(chart, values))
    paths = {
        probe: gateway[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/health",
        "livenessProbe": "/health",
        "readinessProbe": "/ready",
    }
    assert "lifecycle" not in gateway


def test_ports_follow_the_configuration(chart: helm.Chart) -> None:
    """Container ports are those that the configuration makes the process listen on."""
    assert container(render(chart))["ports"] == [
        {"name": "http", "containerPort": 8000, "protocol": "TCP"}
    ]
    assert container(render(chart, FULL))["ports"] == [
        {"name": "http", "containerPort": 8080, "protocol": "TCP"},
        {"name": "admin", "containerPort": 8081, "protocol": "TCP"},
    ]


def test_r63_the_grace_period_covers_the_drain(chart: helm.Chart) -> None:
    """The pod is killed only after the drain's delay and grace, whatever the configuration says."""
    assert pod_spec(render(chart))["terminationGracePeriodSeconds"] == 5 + 180 + 15
    drain = {"config": {"drain": {"delay_seconds": 2.5, "grace_seconds": 600}}}
    assert pod_spec(render(chart, drain))["terminationGracePeriodSeconds"] == 603 + 15
    assert pod_spec(render(chart, FULL))["terminationGracePeriodSeconds"] == 400


def test_the_image_is_named_by_tag_or_digest(chart: helm.Chart) -> None:
    """The tag defaults to the version of the chart's product, and a digest wins over it."""
    assert container(render(chart))["image"] == "prfaas-router:0.1.0"
    assert container(render(chart, FULL))["image"].endswith("prfaas-router@sha256:" + "0" * 64)


# ---------------------------------------------------------------------------- configuration


def test_the_config_map_holds_the_configuration_as_given(chart: helm.Chart) -> None:
    """What stands under `config` reaches the file unchanged, numbers as numbers."""
    data = render(chart, FULL)["ConfigMap"]["data"]
    written = yaml.safe_load(data["config.yaml"])
    for section, value in FULL["config"].items():
        if isinstance(value, dict):
            assert value.items() <= written[section].items()
        else:
            assert written[section] == value
    assert yaml.safe_load(data["profile-h200.yaml"]) == FULL["profiles"]["h200.yaml"]


def test_profiles_lie_beside_the_configuration(chart: helm.Chart) -> None:
    """A profile that the configuration calls ./profiles/NAME is mounted under that name."""
    objects = render(chart, FULL)
    (volume,) = [entry for entry in pod_spec(objects)["volumes"] if entry["name"] == "config"]
    paths = {item["path"]: item["key"] for item in volume["configMap"]["items"]}
    assert paths == {
        "config.yaml": "config.yaml",
        "profiles/h200.yaml": "profile-h200.yaml",
    }
    assert set(paths.values()) == set(objects["ConfigMap"]["data"])


def test_a_changed_configuration_rolls_the_pods_if_wanted(chart: helm.Chart) -> None:
    """The checksum changes with the configuration, and is absent where the file is reloaded."""

    def checksum(values: Object) -> str | None:
        annotations = render(chart, values)["Deployment"]["spec"]["template"]["metadata"]
        return annotations["annotations"].get("checksum/config")

    before = checksum({})
    assert before == checksum({"service": {"port": 80}})
    assert before != checksum({"config": {"scheduler": {"policy": "slack"}}})
    assert checksum({"rollOnConfigChange": False}) is None


def test_the_admin_key_is_in_a_secret_and_nowhere_else(chart: helm.Chart) -> None:
    """A given key is stored in a Secret, and the pod reads it from there."""
    manifests = chart.render({"admin": {"key": "correct-horse"}}, name="demo")
    assert not [path for path, text in manifests.items() if "correct-horse" in text]
    objects = render(chart, {"admin": {"key": "correct-horse"}})
    secret = objects["Secret"]
    assert base64.b64decode(secret["data"]["admin-key"]) == b"correct-horse"
    (variable,) = container(objects)["env"]
    assert variable == {
        "name": "PRFAAS_ADMIN_KEY",
        "valueFrom": {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "admin-key"}},
    }


def test_an_existing_secret_is_used_instead(chart: helm.Chart) -> None:
    """With a Secret of the operator's own the chart makes none, even where a key is given too."""
    values = {"admin": {"key": "unused", "existingSecret": "mine", "existingSecretKey": "token"}}
    objects = render(chart, values)
    assert "Secret" not in objects
    (variable,) = container(objects)["env"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "token"}


def test_the_admin_port_has_a_service_of_its_own(chart: helm.Chart) -> None:
    """Publishing the gateway by a load balancer does not publish the admin API."""
    objects = render(chart, FULL)
    assert objects["Service"]["spec"]["type"] == "LoadBalancer"
    assert [port["name"] for port in objects["Service"]["spec"]["ports"]] == ["http"]
    assert objects["Service/admin"]["spec"]["type"] == "ClusterIP"


def test_the_network_policy_admits_whom_it_names(chart: helm.Chart) -> None:
    """The admin port is open to operators alone; without any, to nobody."""
    listed = render(chart, FULL)["NetworkPolicy"]["spec"]
    assert [rule["ports"][0]["port"] for rule in listed["ingress"]] == ["http", "admin"]
    assert listed["ingress"][1]["from"] == FULL["networkPolicy"]["operators"]
    assert listed["policyTypes"] == ["Ingress", "Egress"]
    bare = {"networkPolicy": {"enabled": True}, "config": {"admin": {"port": 8001}}}
    policy = render(chart, bare)["NetworkPolicy"]["spec"]
    assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]
    assert policy["policyTypes"] == ["Ingress"]


# ---------------------------------------------------------------------------- the ingest


@pytest.mark.parametrize(
    ("config", "apart"),
    [
        ({"store": {"url": "redis://redis:6379"}}, True),
        ({"store": {"url": "redis://redis:6379"}, "kvmeta": {"ingest": "external"}}, True),
        ({"store": {"url": "redis://redis:6379"}, "kvmeta": {"ingest": "embedded"}}, False),
        ({"store": {"url": "memory://"}}, False),
    ],
)
def test_the_ingest_runs_apart_where_the_product_has_it_so(
    chart: helm.Chart, config: Object, apart: bool
) -> None:
    """`prfaas kvmeta` has pods of its own exactly where gateways do not ingest themselves."""
    assert ("Deployment/kvmeta" in render(chart, {"config": config})) is apart


def test_no_service_leads_to_the_ingest(chart: helm.Chart) -> None:
    """The gateway's selectors do not find the ingest's pods, which listen to nobody."""
    objects = render(chart, FULL)
    ingest = objects["Deployment/kvmeta"]
    labels = ingest["spec"]["template"]["metadata"]["labels"].items()
    assert ingest["spec"]["selector"]["matchLabels"].items() <= labels
    for kind in ("Service", "Service/admin"):
        assert not objects[kind]["spec"]["selector"].items() <= labels
    assert not objects["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels


def test_the_ingest_meets_the_restricted_standard(chart: helm.Chart) -> None:
    """Its pod is as closed as the gateway's and reads the same configuration."""
    spec = render(chart, SHARED)["Deployment/kvmeta"]["spec"]["template"]["spec"]
    (only,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert only["securityContext"]["readOnlyRootFilesystem"] is True
    assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert only["args"] == ["kvmeta", "--config", "/etc/prfaas/config.yaml"]
