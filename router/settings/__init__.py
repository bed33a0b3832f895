"""The configuration: YAML, variables and secret files -> one frozen, checked value."""

from router.settings.errors import Fault, SettingsError
from router.settings.loading import Loaded, load, load_settings
from router.settings.profile_files import ProfileFile
from router.settings.root import Settings
from router.settings.secrets import digest_key
from router.settings.topology import (
    Topology,
    build_layout,
    build_topology,
    describe_instance,
    parse_instance,
)

__all__ = [
    "Fault",
    "Loaded",
    "ProfileFile",
    "Settings",
    "SettingsError",
    "Topology",
    "build_layout",
    "build_topology",
    "describe_instance",
    "digest_key",
    "load",
    "load_settings",
    "parse_instance",
]
