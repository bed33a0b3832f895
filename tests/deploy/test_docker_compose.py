"""docker-compose.yml and the configuration that it mounts."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

SUBCOMMANDS = {
    "serve", "kvmeta", "demo", "engines", "plan", "profile", "simulate", "replay", "explain",
    "ctl", "config", "doctor", "link-agent",
}  # fmt: skip
LISTENING_SERVICES = ("gateway", "engines-pd", "engines-prfaas")
PRODUCT_SERVICES = (*LISTENING_SERVICES, "kvmeta")
SERVICES = (*PRODUCT_SERVICES, "redis", "prometheus")
AGENT = "link-agent"
"""Of a profile of its own, in another service's network."""

Document = dict[str, Any]


@pytest.fixture(scope="module")
def compose(root: Path) -> Document:
    return yaml.safe_load((root / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def config(root: Path) -> Document:
    return yaml.safe_load((root / "deploy/compose/config.yaml").read_text())


@pytest.fixture(scope="module")
def prometheus(root: Path) -> Document:
    return yaml.safe_load((root / "deploy/prometheus/prometheus.yml").read_text())


def instance_urls(config: Document) -> dict[str, str]:
    """Return instance name -> URL over all clusters."""
    return {
        instance["name"]: instance["url"]
        for cluster in config["clusters"]
        for instance in cluster["instances"]
    }


def test_the_services_are_the_documented_ones(compose: Document) -> None:
    """The file starts our processes, Redis and Prometheus; a link agent only where asked for."""
    assert set(compose["services"]) == {*SERVICES, AGENT}
    asked_for = {name for name in compose["services"] if "profiles" in compose["services"][name]}
    assert asked_for == {AGENT}


@pytest.mark.parametrize("name", [*SERVICES, AGENT])
def test_every_service_has_an_image_and_a_health_check(compose: Document, name: str) -> None:
    """Each service says what it runs, pinned by a tag, and what serves how to tell it is well."""
    service = compose["services"][name]
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", service["image"])
    if name in {"kvmeta", AGENT}:  # they listen to nobody; the image's check would ask in vain
        assert service["healthcheck"] == {"disable": True}
    else:
        assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", PRODUCT_SERVICES)
def test_every_command_is_one_that_the_product_has(compose: Document, name: str) -> None:
    """A service of ours runs a subcommand of `prfaas` on the mounted configuration."""
    command = compose["services"][name]["command"]
    assert command[0] in SUBCOMMANDS
    assert command[command.index("--config") + 1] == "/etc/prfaas/config.yaml"


def test_the_link_agent_measures_where_the_links_bytes_leave(
    compose: Document, config: Document
) -> None:
    """It shares the network of the link's PrfaaS cluster, knows the link, and tells the gateway."""
    service = compose["services"][AGENT]
    assert service["profiles"] == [AGENT]
    command, *options = service["command"]
    assert command == AGENT
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert given["--url"] == f"http://gateway:{config['server']['port']}"
    (link,) = [link for link in config["links"] if link["name"] == given["--link"]]
    host = service["network_mode"].removeprefix("service:")
    assert compose["services"][host]["command"][-1] == link["from"]
    assert set(service["depends_on"]) == {host}
    assert "networks" not in service
    assert service["environment"] == compose["services"]["gateway"]["environment"]


@pytest.mark.parametrize("name", ["engines-pd", "engines-prfaas"])
def test_every_engine_service_is_the_host_of_its_cluster(
    compose: Document, config: Document, name: str
) -> None:
    """The cluster that a service serves has all its instances under that service's host name."""
    command = compose["services"][name]["command"]
    served = command[command.index("--cluster") + 1]
    (cluster,) = [cluster for cluster in config["clusters"] if cluster["name"] == served]
    for instance in cluster["instances"]:
        for key in ("url", "kv_events", "kv_replay"):
            assert urlsplit(instance[key]).hostname == name


@pytest.mark.parametrize("name", SERVICES)
def test_dependencies_networks_and_mounts_exist(root: Path, compose: Document, name: str) -> None:
    """Whatever a service depends on, joins or mounts is declared here or lies in the repository."""
    service = compose["services"][name]
    assert set(service.get("depends_on", {})) <= set(compose["services"])
    assert set(service["networks"]) <= set(compose["networks"])
    for volume in service.get("volumes", []):
        source, target, *mode = volume.split(":")
        assert target.startswith("/")
        if source.startswith("."):
            assert (root / source).exists(), source
            assert mode == ["ro"]
        else:
            assert source in compose["volumes"]


def test_the_gateway_shares_a_network_with_all_engines(compose: Document) -> None:
    """Gateway and engines meet on one network, and so do Prometheus and what it scrapes."""
    services = compose["services"]
    for name in PRODUCT_SERVICES:
        assert "serving" in services[name]["networks"]
    for name in (*PRODUCT_SERVICES, "prometheus"):
        assert "monitoring" in services[name]["networks"]


def test_processes_and_store_share_a_network(compose: Document, config: Document) -> None:
    """The store that the configuration names is a service that our processes can reach."""
    host = urlsplit(config["store"]["url"]).hostname
    assert "serving" in compose["services"][host]["networks"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(compose: Document, name: str) -> None:
    """An open gateway is never published to the machine's network by default."""
    for port in compose["services"][name].get("ports", []):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", [*PRODUCT_SERVICES, AGENT])
def test_our_containers_have_no_privilege(compose: Document, name: str) -> None:
    """Our containers cannot write their root, gain rights or use a capability."""
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_the_admin_key_is_optional(compose: Document, config: Document) -> None:
    """Without PRFAAS_ADMIN_KEY the file still starts, and the key is written down nowhere."""
    environment = compose["services"]["gateway"]["environment"]
    assert environment["PRFAAS_ADMIN_KEY"] == "${PRFAAS_ADMIN_KEY:-}"
    assert config["admin"]["api_key"] == "${PRFAAS_ADMIN_KEY:-}"


def test_compose_waits_longer_than_the_drain(compose: Document, config: Document) -> None:
    """Docker kills the gateway only after delay and grace of its drain are over."""
    drain = {"delay_seconds": 5, "grace_seconds": 180} | config.get("drain", {})
    period = compose["services"]["gateway"]["stop_grace_period"]
    assert int(period.removesuffix("s")) > drain["delay_seconds"] + drain["grace_seconds"]


def test_the_health_checks_ask_addresses_that_are_served(
    compose: Document, config: Document
) -> None:
    """A health check asks the port of the gateway, or of an instance in the configuration."""
    served = {f"{url}/health" for url in instance_urls(config).values()}
    served.add(f"http://127.0.0.1:{config['server']['port']}/health")
    for name in LISTENING_SERVICES:
        script = compose["services"][name]["healthcheck"]["test"][-1]
        compile(script, name, "exec")
        (asked,) = re.findall(r"http://[^']+", script)
        assert asked in served


def test_prometheus_scrapes_the_gateway_and_every_engine(
    config: Document, prometheus: Document
) -> None:
    """The scraped addresses are exactly the gateway's and those of all configured instances."""
    scraped = {
        target
        for job in prometheus["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    engines = {urlsplit(url).netloc for url in instance_urls(config).values()}
    assert scraped == engines | {f"gateway:{config['server']['port']}"}


def test_the_configuration_names_profiles_that_are_mounted(root: Path, config: Document) -> None:
    """Every profile of the configuration is a file beside it, for the same model and revision."""
    for model in config["models"]:
        for path in model["profiles"].values():
            profile = yaml.safe_load((root / "deploy/compose" / path).read_text())
            assert (profile["model"], profile["revision"]) == (model["name"], model["revision"])
            tokens = [point["tokens"] for point in profile["points"]]
            assert tokens == sorted(tokens)
