"""(path, environment) -> settings, or every fault at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from router.domain.topology import ClusterKind
from router.settings.checks import check_settings
from router.settings.documents import Value, read_document
from router.settings.environment import apply_overrides
from router.settings.errors import Fault, KeyPath, SettingsError
from router.settings.interpolation import interpolate
from router.settings.neighbours import Naming, point_here
from router.settings.origins import Origins
from router.settings.profile_files import ProfileFile, read_profile
from router.settings.root import Settings
from router.settings.secrets import Surroundings
from router.settings.serving import ModelSettings
from router.settings.validation import UNKNOWN_KEY, Complaint, validate_value


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration in force: the settings, what they refer to, and where they came from.

    `profiles` is by model name and pool, a pool being a cluster kind or one cluster's name.
    `files` are all files that were read; a change of any may change the settings.
    """

    settings: Settings
    profiles: Mapping[tuple[str, str], ProfileFile]
    origins: Origins
    files: tuple[Path, ...]

    def profile_of(self, model: str, cluster: str) -> ProfileFile | None:
        """Return the profile of a model in a cluster: the cluster's own, else its kind's."""
        own = self.profiles.get((model, cluster))
        if own is not None:
            return own
        for configured in self.settings.clusters:
            if configured.name == cluster:
                return self.profiles.get((model, configured.kind.value))
        return None

    def profile_of_kind(self, model: str, kind: ClusterKind) -> ProfileFile | None:
        """Return the profile of a model for a kind of cluster."""
        return self.profiles.get((model, kind.value))


def load_settings(path: Path | str, environ: Mapping[str, str]) -> Settings:
    """Read the settings alone. Raises SettingsError with every fault found."""
    return load(path, environ).settings


def load(path: Path | str, environ: Mapping[str, str]) -> Loaded:
    """Read a configuration and the files that it names.

    `environ` gives `${VAR}` references and `PRFAAS_…__…` overrides. Nothing else is consulted, so
    equal files and variables give equal settings. Raises SettingsError with every fault found.
    """
    shown = os.fspath(path)
    absolute = Path(os.path.abspath(shown))  # noqa: PTH100  # resolve() follows mounted symlinks
    document = read_document(absolute, shown)
    unresolved: list[Complaint] = []
    root = interpolate(document.root, environ, lambda at, said: unresolved.append((at, said)))
    overlay = apply_overrides(root, environ)
    origins = Origins.of(document, overlay)
    around = Surroundings(absolute.parent)
    settings, complaints = _validate({} if overlay.root is None else overlay.root, around)

    unresolved = [(at, said) for at, said in unresolved if not origins.overridden(at)]
    unset = {at for at, _ in unresolved}
    complaints = unresolved + [(at, said) for at, said in complaints if at not in unset]
    faults = [*overlay.faults, *_place(complaints, origins)]
    profiles: dict[tuple[str, str], ProfileFile] = {}
    if settings is not None:
        profiles, wrong = _read_profiles(settings, origins, Naming(absolute.parent, shown))
        faults += wrong
    if faults or settings is None:
        raise SettingsError(faults)
    paths = [path for model in settings.models for path in model.profiles.values()]
    files = tuple(dict.fromkeys((absolute, *around.read, *paths)))
    return Loaded(settings, profiles, origins, files)


def _place(complaints: list[Complaint], origins: Origins) -> Iterator[Fault]:
    for at, said in complaints:
        yield Fault(origins.place_of(at, key=said.startswith(UNKNOWN_KEY)), at, said)


def _validate(root: Value, around: Surroundings) -> tuple[Settings | None, list[Complaint]]:
    """Return the settings and what is wrong with them.

    Where single values are wrong, the rest is checked as if they had been left out, so that one
    run tells everything. None where even that makes no settings.
    """
    outcome = validate_value(Settings, root, around)
    if isinstance(outcome, Settings):
        return outcome, list(check_settings(outcome))
    sound = root
    for at, _ in outcome:
        sound = _without(sound, at)
    rest = validate_value(Settings, sound, around)
    if isinstance(rest, list):
        return None, outcome
    return rest, [*outcome, *check_settings(rest)]


def _without(value: Value, path: KeyPath) -> Value:
    """Return `value` without what stands at `path`; a list goes whole, to keep indexes true."""
    match value, path:
        case dict(), (str(key), *rest) if key in value:
            kept = _without(value[key], tuple(rest)) if rest else None
            if kept is None:
                return {name: item for name, item in value.items() if name != key}
            return {**value, key: kept}
        case list(), (int(index), *rest) if rest and index < len(value):
            kept = _without(value[index], tuple(rest))
            return [*value[:index], kept, *value[index + 1 :]]
        case list(), (int(),):
            return None
        case _:
            return value


def _read_profiles(
    settings: Settings, origins: Origins, naming: Naming
) -> tuple[dict[tuple[str, str], ProfileFile], list[Fault]]:
    profiles: dict[tuple[str, str], ProfileFile] = {}
    faults: list[Fault] = []
    for index, model in enumerate(settings.models):
        for pool, path in model.profiles.items():
            at: KeyPath = ("models", index, "profiles", pool)
            shown = naming.of(path)
            try:
                profile = read_profile(path, shown)
            except SettingsError as error:
                faults += [point_here(fault, at, origins.place_of(at)) for fault in error.faults]
                continue
            faults += [
                Fault(origins.place_of(at), at, f"{shown} {said}")
                for said in _contradictions(model, profile)
            ]
            profiles[model.name, pool] = profile
    return profiles, faults


def _contradictions(model: ModelSettings, profile: ProfileFile) -> Iterator[str]:
    if profile.model not in {model.name, model.engine_name}:
        yield f"is a profile of model {profile.model!r}, not of {model.name!r}"
    if model.revision is not None and profile.revision != model.revision:
        yield f"is a profile of revision {profile.revision!r}, not of {model.revision!r}"
