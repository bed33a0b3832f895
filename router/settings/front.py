"""What faces clients and operators: server, store, admin, tenants, admission, drain."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, field_serializer
from pydantic_core import PydanticCustomError

from router.settings.fields import (
    Duration,
    HttpPath,
    ListenPort,
    Name,
    Port,
    PositiveCount,
    PositiveDuration,
    PositiveNumber,
    Section,
    StoreUrl,
    Text,
    redact_url,
)
from router.settings.secrets import ApiKey, OptionalApiKey, Secret


class CorsSettings(Section):
    """Cross-origin access for browsers. Off unless an origin is listed."""

    allow_origins: tuple[Text, ...] = ()
    """Origins that may call, `*` for any; empty answers no preflight (as Starlette's default)."""
    allow_headers: tuple[Text, ...] = ("*",)
    """Request headers that a page may send; `*` echoes those asked for, since OpenAI's client sends
    its own `x-stainless-*` set."""
    allow_credentials: bool = False
    """Whether browsers may send cookies (Starlette's default; the API itself uses none)."""
    max_age_seconds: PositiveDuration = 600
    """How long a browser keeps a preflight's answer (Starlette's default)."""


_INTERNAL_PATHS: Final = frozenset(
    # vLLM 0.33: what steers an engine or tells of it, much of it without any key there.
    [
        "/health",
        "/load",
        "/version",
        "/metrics",
        "/ping",
        "/kv_event_sources",
        "/scale_elastic_ep",
        "/is_scaling_elastic_ep",
        "/start_profile",
        "/stop_profile",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/sleep",
        "/wake_up",
        "/is_sleeping",
        "/release_kv_cache_memory",
        "/collective_rpc",
        "/server_info",
        "/pause",
        "/resume",
        "/is_paused",
        "/abort_requests",
        "/update_weights",
        "/init_weight_transfer_engine",
        "/get_world_size",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/inference/v1/abort_requests",
    ]
)
_OWN_PATHS: Final = ("/ready", "/v1/models", "/openapi.json")


def _check_passed_path(path: str) -> str:
    if path.rstrip("/") in _INTERNAL_PATHS or path.startswith("/update_weights"):
        raise PydanticCustomError("path", "is for operators of an engine, never for clients")
    if path.startswith(_OWN_PATHS):
        raise PydanticCustomError("path", "is the gateway's own")
    return path


PassedPath = Annotated[HttpPath, AfterValidator(_check_passed_path)]


class ClientTimeoutSettings(Section):
    """How long clients may take. Time runs only while it is the client's turn."""

    head_seconds: PositiveDuration = 20
    """For the whole head of a request, from its first byte (from the connection for the first
    one); then 408. Apache's `RequestReadTimeout` gives 20 s."""
    body_seconds: PositiveDuration = 30
    """For a body's next byte, and for all of it this and a second for each 500 bytes (Apache's
    rate); then 408. Half of nginx's `client_body_timeout`: prompts come at once."""
    idle_seconds: PositiveDuration = 75
    """For a next request on a kept connection. nginx's `keepalive_timeout`, so that a pool before
    us closes first."""
    stall_seconds: PositiveDuration = 60
    """For taking what was written: a reader that takes nothing for so long is cut, and its decode
    leg with it. nginx's `send_timeout`."""


class ServerSettings(Section):
    """The gateway's listener."""

    host: Text = "127.0.0.1"
    """Address to listen on. Loopback by default: without tenants the gateway is open to all that
    reach it. Containers set 0.0.0.0."""
    port: ListenPort = 8000
    """Port to listen on (vLLM's own default); 0 lets the kernel choose."""
    max_body_bytes: PositiveCount = 16 * 1024 * 1024
    """Largest request body; more is 413. 16 MiB is a prompt of about four million tokens of text
    (4 bytes a token), well over the longest context served today."""
    max_buffered_bytes: PositiveCount = 512 * 1024 * 1024
    """Bytes of all request bodies that are held at once; more is 503. A full queue
    (`admission.queue_size`) of prompts of 512 KiB, more than 100,000 tokens each."""
    max_connections: PositiveCount = 4096
    """Most client connections of a process; those beyond get 503, save for `/health`, `/ready`,
    `/metrics` and `/admin`. Sixteen decode instances at their 256 streams. Each stream also takes
    a connection to its engine: the process needs twice as many open files."""
    max_head_bytes: Annotated[PositiveCount, Field(ge=1024)] = 64 * 1024
    """Largest head of a request; more is 431. uvicorn's own bound; nginx allows 32 KiB."""
    max_head_fields: Annotated[PositiveCount, Field(ge=16)] = 100
    """Most header fields of a request; more is 431 (Apache's `LimitRequestFields`)."""
    timeouts: ClientTimeoutSettings = ClientTimeoutSettings()
    """How long clients may take."""
    expose_routing_headers: bool = True
    """Whether answers carry `x-prfaas-*`; `x-request-id` stays in any case."""
    passthrough_paths: tuple[PassedPath, ...] = ()
    """Further engine paths that clients may POST to, such as `/tokenize` or
    `/v1/audio/transcriptions`; they go to one `both` or `decode` instance. Empty, since engines
    expose much that is not for clients; what steers an engine is refused."""
    cors: CorsSettings = CorsSettings()
    """Cross-origin access."""
    openapi: bool = True
    """Whether each listener describes what it serves at `/openapi.json`, as vLLM's does."""


class StoreSettings(Section):
    """Where shared state lives."""

    url: StoreUrl = SecretStr("memory://")
    """`memory://` (one process, nothing to run), or Redis 7 and later: `redis://`, `rediss://`,
    `unix://`, `redis+sentinel://host1,host2/service`, `redis+cluster://host1,host2`."""
    timeout_ms: PositiveDuration = 100
    """How long a request, or an order, waits for the store; then it goes on alone. A hundred round
    trips in a data center. Look-ups have `kvmeta.lookup_timeout_ms`."""

    @field_serializer("url")
    def _show_without_password(self, url: SecretStr) -> str:
        return redact_url(url.get_secret_value())

    @property
    def embedded(self) -> bool:
        """Whether state lives in this process, so that there can be no other one."""
        return self.url.get_secret_value().startswith("memory:")


class AdminKeySettings(Section):
    """One more key for the admin API."""

    name: Name
    """Who holds the key; the audit trail shows it."""
    key: ApiKey
    """The key: plain, `sha256:HEX` or `file:PATH`."""
    role: Literal["viewer", "telemetry", "operator"] = "viewer"
    """`viewer` reads, `telemetry` may also report link telemetry (for link agents), `operator` may
    change everything. The least right is the default."""


class AdminSettings(Section):
    """The admin API."""

    api_key: OptionalApiKey = None
    """An operator's key. Without any key only loopback is answered."""
    keys: tuple[AdminKeySettings, ...] = ()
    """Further keys, each with a name and a role."""
    decision_log_size: PositiveCount = 4096
    """Decisions that a process keeps, to be seen and to be made again: twenty minutes at the 3.2
    requests a second of the paper's case study. Of a dozen instances each takes about 5 KB."""
    port: Port | None = None
    """Own listener for `/admin` and `/metrics`; without it they share the gateway's port."""


class TenantSettings(Section):
    """A customer: keys, isolation, share and limits."""

    name: Name
    """The tenant's name in metrics and decisions."""
    api_keys: Annotated[tuple[ApiKey, ...], Field(min_length=1)]
    """The keys that its clients send as Bearer; plain, `sha256:HEX` or `file:PATH`."""
    cache_salt: Secret = None
    """Isolates the tenant's cached prefixes. Left out, a salt is derived from a secret in the
    store, so that isolation is the default."""
    weight: PositiveNumber = 1
    """Share of decode slots when requests queue, against other tenants' weights. It also is its
    share of the queue's places when that is full."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Who goes first when requests queue: the lower number, as in vLLM, before any weight counts.
    It gives way to those who have waited half of `admission.queue_timeout_seconds`, so that nobody
    starves."""
    allow_priority: bool = False
    """Whether a request may name its own priority, by the header `x-prfaas-priority` or the body's
    `priority`: not before its tenant's, but after it. Without tenants every request may."""
    max_concurrency: PositiveCount | None = None
    """Most requests at once; left out, the decode slots alone bound it."""
    requests_per_minute: PositiveCount | None = None
    """Requests a minute, in a bucket that holds one minute's worth and refills evenly, as OpenAI's
    limits do; left out, unlimited. What is refused uses nothing up."""
    tokens_per_minute: PositiveCount | None = None
    """Prompt tokens a minute, in such a bucket. A longer prompt than that is never accepted; left
    out, unlimited."""
    home: Name | None = None
    """Its home PD cluster; left out, the least loaded one of each request."""
    allow_home_header: bool = False
    """Whether its clients may choose the home cluster with `x-prfaas-home`. Off, since what a
    client says about routing counts only where the operator allows it."""


class AdmissionSettings(Section):
    """The queue before the decode slots."""

    queue_size: PositiveCount = 1024
    """Most requests waiting for a decode slot; beyond it 503 with Retry-After, for the last of the
    tenant that waits with most for its weight. As many as `upstream.max_connections_per_instance`:
    a queue as long as an instance is wide."""
    queue_timeout_seconds: PositiveDuration = 60
    """Longest wait for a slot; then 503. Load balancers commonly give up at 60 s."""


class DrainSettings(Section):
    """What happens between SIGTERM and the end."""

    delay_seconds: Duration = 5
    """How long to serve on while `/ready` says 503, so that load balancers notice first: a few
    probe periods of a usual readiness probe."""
    grace_seconds: Duration = 180
    """How long running streams may take to finish after that. Kubernetes'
    terminationGracePeriodSeconds must be larger than both together."""
