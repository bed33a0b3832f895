"""Settings -> the models, tenants and keys that the services work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvmeta.types import CacheLayout
from router.control.limits import TenantLimits
from router.domain.decision import GateLimits
from router.domain.topology import ClusterKind, Instance
from router.domain.units import from_gbps
from router.gateway.admin_room import AdminKey, AdminRole
from router.service.models import ModelCatalog, ServedModel, TokenizerKind
from router.service.tenants import Tenant
from router.settings import Loaded, ProfileFile, Settings, build_layout, build_topology, digest_key
from router.settings.serving import (
    EngineTokenizerSettings,
    EstimateTokenizerSettings,
    GateSettings,
    HfTokenizerSettings,
    ModelSettings,
)
from router.throughput.curves import Extrapolation, Interpolation
from router.throughput.profiles import KvLine, Profile, ProfilePoint, ProfileSource
from router.throughput.stages import DecodeRules


class CompositionError(Exception):
    """A configuration that is sound by itself but cannot be run here; one readable line."""


def build_profile(
    file: ProfileFile,
    *,
    interpolation: Interpolation = Interpolation.PCHIP,
    extrapolation: Extrapolation = Extrapolation.LINEAR,
) -> Profile:
    """Return the interpolated profile of a profile file.

    Where S_kv is given as a line, the line counts, evaluated at the file's own lengths.
    """
    line = file.kv
    points = [
        ProfilePoint(
            point.tokens,
            point.kv_bytes
            if line is None
            else round(line.fixed_bytes + line.bytes_per_token * point.tokens),
            point.prefill_seconds,
        )
        for point in file.points
    ]
    return Profile.from_points(
        points,
        source=ProfileSource(file.source),
        hardware=file.hardware,
        kv_line=None if line is None else KvLine(line.fixed_bytes, line.bytes_per_token),
        interpolation=interpolation,
        extrapolation=extrapolation,
    )


def build_catalog(loaded: Loaded) -> ModelCatalog:
    """Return every model that clients may name."""
    return ModelCatalog(build_model(model, loaded) for model in loaded.settings.models)


def build_model(model: ModelSettings, loaded: Loaded) -> ServedModel:
    """Return one model with its profiles."""
    kind, bytes_per_token = _tokenizer_kind(model)
    files = {each: loaded.profile_of_kind(model.name, each) for each in ClusterKind}
    return ServedModel(
        name=model.name,
        layout=build_layout(model, loaded.settings),
        served_name=model.engine_name,
        aliases=frozenset(model.aliases),
        loras={lora.name: lora.served_name or lora.name for lora in model.loras},
        tokenizer=kind,
        bytes_per_token=bytes_per_token,
        profiles={each: build_profile(file) for each, file in files.items() if file is not None},
        gate_limits=build_gate_limits(model.gate),
        decode_slots=model.decode.max_concurrency,
        decode_rules=DecodeRules(
            slots=model.decode.max_concurrency,
            step_seconds=1 / model.decode.tokens_per_second_slo,
            output_tokens=model.decode.expected_output_tokens,
        ),
    )


def build_gate_limits(gate: GateSettings) -> GateLimits:
    """Return what is wanted of a model and its traffic before prefills leave home."""
    return GateLimits(
        kv_rate=None if gate.max_kv_gbps is None else from_gbps(gate.max_kv_gbps),
        long_share=gate.min_long_share,
        long_tokens=gate.min_long_tokens,
        gain=gate.min_gain,
    )


def _tokenizer_kind(model: ModelSettings) -> tuple[TokenizerKind, float]:
    match model.tokenizer:
        case EngineTokenizerSettings():
            return TokenizerKind.ENGINE, EstimateTokenizerSettings(kind="none").bytes_per_token
        case HfTokenizerSettings():
            return TokenizerKind.HF, EstimateTokenizerSettings(kind="none").bytes_per_token
        case EstimateTokenizerSettings(bytes_per_token=bytes_per_token):
            return TokenizerKind.NONE, bytes_per_token


class Layouts:
    """Tells the layout of an instance's blocks, by the settings of now.

    An instance that names no model serves the first one, as an engine serves one base model.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self, instance: Instance) -> CacheLayout:
        """Return how an instance's blocks are named and reused."""
        models = self.settings.models
        name = instance.model or models[0].name
        model = next(model for model in models if model.name == name)
        return build_layout(model, self.settings, revision=instance.revision)

    def renamed_by(self, settings: Settings, known: Mapping[str, Instance]) -> frozenset[str]:
        """Return which of the instances that stay would have their blocks named otherwise."""
        other = Layouts(settings)
        return frozenset(
            each.name
            for each in build_topology(settings).instances
            if each.name in known and other(each) != self(known[each.name])
        )


def fits(settings: Settings) -> Callable[[Instance], bool]:
    """Return what tells whether an instance's cluster and model are configured here."""
    clusters = {cluster.name for cluster in settings.clusters}
    models = {None, *(model.name for model in settings.models)}
    return lambda instance: instance.cluster in clusters and instance.model in models


def build_tenants(settings: Settings) -> list[Tenant]:
    """Return the tenants; keys become digests here and are kept nowhere else."""
    return [
        Tenant(
            name=tenant.name,
            key_digests=frozenset(digest_key(key) for key in tenant.api_keys),
            salt=None if tenant.cache_salt is None else tenant.cache_salt.get_secret_value(),
            home=tenant.home,
            may_choose_home=tenant.allow_home_header,
            weight=tenant.weight,
            priority=tenant.priority,
            may_choose_priority=tenant.allow_priority,
            limits=TenantLimits(
                tenant.max_concurrency, tenant.requests_per_minute, tenant.tokens_per_minute
            ),
        )
        for tenant in settings.tenants
    ]


def build_admin_keys(settings: Settings) -> tuple[AdminKey, ...]:
    """Return the keys of the admin API."""
    named = [
        AdminKey(key.name, digest_key(key.key), AdminRole(key.role)) for key in settings.admin.keys
    ]
    if settings.admin.api_key is not None:
        named.append(AdminKey("admin", digest_key(settings.admin.api_key), AdminRole.OPERATOR))
    return tuple(named)
