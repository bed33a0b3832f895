"""The reference cases of the throughput model, as values of the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from router.domain.units import BytesPerSecond, from_gbps
from router.throughput.curves import Extrapolation, Interpolation
from router.throughput.profiles import Profile, ProfilePoint, ProfileSource
from router.throughput.stages import DecodeRules, Deployment, PdPool, RemotePool
from router.throughput.workloads import Atoms, TruncatedLogNormal, Workload

MIB: Final = 2**20
DOCUMENT: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "model_checks.json").read_text("utf-8")
)
CHECKS: Final[Mapping[str, Mapping[str, Any]]] = {each["id"]: each for each in DOCUMENT["checks"]}

CASE_WORKLOAD: Final = TruncatedLogNormal(9.9, 1.0, 128, 128_000)


def build_workload(name: str) -> Workload:
    """Return a workload of the reference file."""
    given = DOCUMENT["workloads"][name]
    if given["type"] == "discrete":
        return Atoms.of(dict(zip(given["lengths"], given["w"], strict=True)))
    return TruncatedLogNormal(given["mu"], given["sigma"], given["lo"], given["hi"])


def build_profile(
    name: str,
    *,
    interpolation: Interpolation = Interpolation.PCHIP,
    extrapolation: Extrapolation = Extrapolation.LINEAR,
) -> Profile:
    """Return a profile of the reference file."""
    given = DOCUMENT["profiles"][name]
    unit, sizes = (MIB, given["S_mib"]) if "S_mib" in given else (1e6, given["S_MB"])
    points = [
        ProfilePoint(tokens, round(size * unit), seconds)
        for tokens, size, seconds in zip(given["tokens"], sizes, given["T"], strict=True)
    ]
    return Profile.from_points(
        points,
        source=ProfileSource.MODELLED if "fit" in name else ProfileSource.QUOTED,
        interpolation=interpolation,
        extrapolation=extrapolation,
    )


def build_deployment(inputs: Mapping[str, Any], *, prefill: int = 0, decode: int = 0) -> Deployment:
    """Return the deployment of a check's inputs."""
    interpolation = Interpolation(inputs.get("interp", "pchip"))
    remote = build_profile(
        inputs.get("remote", inputs.get("profile", "")), interpolation=interpolation
    )
    local = build_profile(
        inputs.get("local", inputs.get("profile", "")), interpolation=interpolation
    )
    egress = (
        BytesPerSecond(inputs["B_MBps"] * 1e6)
        if "B_MBps" in inputs
        else from_gbps(inputs["B_gbps"])
    )
    rules = DecodeRules(inputs["BSmax"], inputs["Tdec"], inputs["Lout"])
    return Deployment(
        (RemotePool("prfaas", remote, inputs["Nprf"], egress),),
        (PdPool("pd", local, inputs.get("Np", prefill), inputs.get("Nd", decode), rules),),
    )


def case_study(
    *,
    gbps: float = 100,
    prefill: int = 3,
    decode: int = 5,
    interpolation: Interpolation = Interpolation.PCHIP,
) -> Deployment:
    """Return the paper's case study: 4 x 8 H200 behind a link, 8 x 8 H20."""
    inputs = CHECKS["eq6.case.pchip.repr"]["inputs"]
    changed = {"B_gbps": gbps, "Np": prefill, "Nd": decode, "interp": interpolation.value}
    return build_deployment({**inputs, **changed})


def expected(check: Mapping[str, Any], key: str) -> float:
    """Return an expected number; the file writes infinity as text."""
    value = check["expected"][key]
    return math.inf if value == "inf" else float(value)


def agrees(check: Mapping[str, Any], key: str, value: float) -> bool:
    """Whether a value is within the check's tolerance, or rounds to the six places printed."""
    wanted = expected(check, key)
    if math.isinf(wanted):
        return math.isinf(value)
    tolerance = check["tol"] * (abs(wanted) if check["tol_kind"] == "rel" else 1.0)
    return abs(value - wanted) <= max(tolerance, 5e-7)
