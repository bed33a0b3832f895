"""What must agree between sections. Each check yields the place and the contradiction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final

from router.domain.topology import ClusterKind, Role
from router.settings.actuator_checks import check_actuator, note_unscaled
from router.settings.errors import KeyPath, format_path
from router.settings.fleet_checks import check_addresses, note_idle_parts
from router.settings.root import Settings
from router.settings.secrets import digest_key
from router.settings.serving import HfTokenizerSettings
from router.settings.validation import Complaint, suggest

CONNECTORS: Final = ("nixl", "mooncake", "offloading-p2p", "lmcache", "none")
"""The connectors that come with the router."""

CONNECTOR_GROUP: Final = "prfaas.connectors"
"""Entry-point group under which installed packages add connectors."""


def check_settings(settings: Settings) -> Iterator[Complaint]:
    """Yield every contradiction between sections."""
    yield from check_names(settings)
    yield from check_clusters(settings)
    yield from check_models_of_instances(settings)
    yield from check_addresses(settings)
    yield from check_links(settings)
    yield from check_profiles(settings)
    yield from check_tokenizers(settings)
    yield from check_keys(settings)
    yield from check_homes(settings)
    yield from check_connector(settings)
    yield from check_ports(settings)
    yield from check_bodies(settings)
    yield from check_cors(settings)
    yield from check_pools(settings)
    yield from check_actuator(settings)


@dataclass(frozen=True, slots=True)
class _Named:
    path: KeyPath
    name: str


def _repeated(named: Iterable[_Named], what: str) -> Iterator[Complaint]:
    first: dict[str, KeyPath] = {}
    for item in named:
        if item.name in first:
            earlier = format_path(first[item.name])
            yield item.path, f"{what} {item.name!r} is already taken by {earlier}"
        else:
            first[item.name] = item.path


def check_names(settings: Settings) -> Iterator[Complaint]:
    """Names that clients, operators or metrics use are unique in their kind."""
    yield from _repeated(_model_names(settings), "the name")
    clusters = (_Named(("clusters", i, "name"), c.name) for i, c in enumerate(settings.clusters))
    yield from _repeated(clusters, "the cluster name")
    instances = (
        _Named(("clusters", i, "instances", j, "name"), instance.name)
        for i, cluster in enumerate(settings.clusters)
        for j, instance in enumerate(cluster.instances)
    )
    yield from _repeated(instances, "the instance name")
    links = (_Named(("links", i, "name"), link.name) for i, link in enumerate(settings.links))
    yield from _repeated(links, "the link name")
    tenants = (_Named(("tenants", i, "name"), t.name) for i, t in enumerate(settings.tenants))
    yield from _repeated(tenants, "the tenant name")
    holders = (
        _Named(("admin", "keys", i, "name"), k.name) for i, k in enumerate(settings.admin.keys)
    )
    yield from _repeated(holders, "the name")


def _model_names(settings: Settings) -> Iterator[_Named]:
    for i, model in enumerate(settings.models):
        yield _Named(("models", i, "name"), model.name)
        for j, alias in enumerate(model.aliases):
            yield _Named(("models", i, "aliases", j), alias)
        for j, lora in enumerate(model.loras):
            yield _Named(("models", i, "loras", j, "name"), lora.name)


def check_clusters(settings: Settings) -> Iterator[Complaint]:
    """Some PD cluster exists; PrfaaS clusters only prefill."""
    if all(cluster.kind is not ClusterKind.PD for cluster in settings.clusters):
        yield ("clusters",), "no cluster of kind pd: nobody could decode"
    for i, cluster in enumerate(settings.clusters):
        if cluster.kind is ClusterKind.PD:
            continue
        for j, instance in enumerate(cluster.instances):
            if instance.role is not Role.PREFILL:
                yield (
                    ("clusters", i, "instances", j, "role"),
                    f"must be prefill in a prfaas cluster (got {instance.role.value!r})",
                )


def check_models_of_instances(settings: Settings) -> Iterator[Complaint]:
    """Instances serve configured models, and it is clear which revision they run."""
    known = [model.name for model in settings.models]
    ambiguous = len({model.revision for model in settings.models}) > 1
    for i, cluster in enumerate(settings.clusters):
        for j, instance in enumerate(cluster.instances):
            where: KeyPath = ("clusters", i, "instances", j)
            if instance.model is not None and instance.model not in known:
                yield (
                    (*where, "model"),
                    f"no model is named {instance.model!r}{suggest(instance.model, known)}",
                )
            unsaid = instance.model is instance.revision is instance.compatibility is None
            if ambiguous and unsaid:
                yield where, "models differ in revision: give the instance its `model`"


def check_links(settings: Settings) -> Iterator[Complaint]:
    """Links join two known clusters; two links of the same direction would be one too many."""
    known = [cluster.name for cluster in settings.clusters]
    pairs: dict[tuple[str, str], str] = {}
    for i, link in enumerate(settings.links):
        for key, cluster in (("from", link.source), ("to", link.target)):
            if cluster not in known:
                yield ("links", i, key), f"no cluster is named {cluster!r}{suggest(cluster, known)}"
        if link.source == link.target:
            yield ("links", i, "to"), f"must be another cluster than `from` ({link.source!r})"
        earlier = pairs.setdefault((link.source, link.target), link.name)
        if earlier != link.name:
            yield (
                ("links", i),
                f"{link.source!r} to {link.target!r} is already joined by {earlier!r}",
            )


def check_profiles(settings: Settings) -> Iterator[Complaint]:
    """Profiles are given for pools that exist. Their content is checked when they are read."""
    pools = [*ClusterKind, *(cluster.name for cluster in settings.clusters)]
    for i, model in enumerate(settings.models):
        for pool in model.profiles:
            if pool not in pools:
                yield (
                    ("models", i, "profiles", pool),
                    f"no pool or cluster is named {pool!r}{suggest(pool, pools)}",
                )


def check_tokenizers(settings: Settings) -> Iterator[Complaint]:
    """Tokenizers on disk exist, so that no request is the first to find out."""
    for i, model in enumerate(settings.models):
        if isinstance(model.tokenizer, HfTokenizerSettings):
            path = model.tokenizer.path
            file = path / "tokenizer.json" if path.is_dir() else path
            if not file.is_file():
                yield ("models", i, "tokenizer", "path"), f"{file.name} does not exist there"
    path_or_none = settings.engines.tokenizer
    if path_or_none is not None and not path_or_none.exists():
        yield ("engines", "tokenizer"), "does not exist"


def check_keys(settings: Settings) -> Iterator[Complaint]:
    """A key has one owner: no two tenants, no two admins, no client that is an admin."""
    owners: dict[bytes, KeyPath] = {}
    keys: list[tuple[KeyPath, bytes]] = []
    if settings.admin.api_key is not None:
        keys.append((("admin", "api_key"), digest_key(settings.admin.api_key)))
    keys += [
        (("admin", "keys", i, "key"), digest_key(entry.key))
        for i, entry in enumerate(settings.admin.keys)
    ]
    keys += [
        (("tenants", i, "api_keys", j), digest_key(key))
        for i, tenant in enumerate(settings.tenants)
        for j, key in enumerate(tenant.api_keys)
    ]
    for path, digest in keys:
        if digest in owners:
            yield path, f"the same key as {format_path(owners[digest])}"
        else:
            owners[digest] = path


def check_homes(settings: Settings) -> Iterator[Complaint]:
    """A tenant's home is a PD cluster."""
    known = [cluster.name for cluster in settings.clusters if cluster.kind is ClusterKind.PD]
    for i, tenant in enumerate(settings.tenants):
        if tenant.home is not None and tenant.home not in known:
            yield (
                ("tenants", i, "home"),
                f"no pd cluster is named {tenant.home!r}{suggest(tenant.home, known)}",
            )


def check_connector(settings: Settings) -> Iterator[Complaint]:
    """The connector is ours or an installed package's."""
    connector = settings.transfer.connector
    if connector in CONNECTORS:
        return
    known = [*CONNECTORS, *entry_points(group=CONNECTOR_GROUP).names]
    if connector not in known:
        yield (
            ("transfer", "connector"),
            f"no connector is named {connector!r}{suggest(connector, known)}",
        )


def check_ports(settings: Settings) -> Iterator[Complaint]:
    """Two listeners have two ports."""
    if settings.admin.port is not None and settings.admin.port == settings.server.port:
        yield ("admin", "port"), f"must be another port than server.port ({settings.server.port})"


def check_bodies(settings: Settings) -> Iterator[Complaint]:
    """The largest body fits into what is set aside for all of them."""
    largest = settings.server.max_body_bytes
    if settings.server.max_buffered_bytes < largest:
        path = ("server", "max_buffered_bytes")
        yield path, f"must be at least server.max_body_bytes ({largest})"


def check_cors(settings: Settings) -> Iterator[Complaint]:
    """Cookies are for pages that are named: browsers refuse them for `*`."""
    cors = settings.server.cors
    if cors.allow_credentials and "*" in cors.allow_origins:
        path = ("server", "cors", "allow_credentials")
        yield path, "must be false where any origin (`*`) may call: name the origins"


def check_pools(settings: Settings) -> Iterator[Complaint]:
    """A pool answers within the time of a decision, or each prompt would go local for it."""
    budget = settings.scheduler.decision_timeout_ms
    for i, cluster in enumerate(settings.clusters):
        if cluster.pool is not None and cluster.pool.timeout_ms >= budget:
            yield (
                ("clusters", i, "pool", "timeout_ms"),
                f"must be less than scheduler.decision_timeout_ms ({budget:g})",
            )


def note_oddities(settings: Settings) -> Iterator[str]:
    """Yield what is allowed but probably not meant, for `config check` and the log."""
    sources = {link.source for link in settings.links}
    for cluster in settings.clusters:
        if cluster.kind is ClusterKind.PRFAAS and cluster.name not in sources:
            yield f"no link leaves {cluster.name}: it will never be used"
    yield from note_idle_parts(settings)
    yield from note_unscaled(settings)
    yield from _note_what_does_not_run(settings)
    if settings.scheduler.policy == "slack":
        yield from _note_unprofiled(settings)
    if not settings.tenants and settings.server.host not in {"127.0.0.1", "::1", "localhost"}:
        yield f"no tenants: whoever reaches {settings.server.host}:{settings.server.port} is served"


def _note_unprofiled(settings: Settings) -> Iterator[str]:
    """Yield the models whose prompts cannot be ordered: nobody knows how long they take."""
    for model in settings.models:
        pools = {
            cluster.kind
            for cluster in settings.clusters
            if any(each.model in (None, model.name) for each in cluster.instances)
            if cluster.kind not in model.profiles
        }
        if pools:
            yield (
                f"scheduler.policy 'slack': {model.name} has no profile for"
                f" {' and '.join(sorted(pools))}: its prompts go by `paper`"
            )


def _note_what_does_not_run(settings: Settings) -> Iterator[str]:
    """Yield the settings of the loops that are read but not acted on."""
    actuator = settings.scheduler.long_loop.actuator
    if actuator != "dry_run" and not _any_convertible(settings):
        yield f"long_loop.actuator {actuator!r}: no instance is `convertible`, so nothing converts"


def _any_convertible(settings: Settings) -> bool:
    return any(
        instance.convertible for cluster in settings.clusters for instance in cluster.instances
    )
