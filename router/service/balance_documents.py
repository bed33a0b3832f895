"""The documents in which the long loop is shown: what it found, and how far a conversion is."""

from __future__ import annotations

from datetime import UTC, datetime

from router.control.balance import Finding, Proposal, StageReading
from router.control.conversions import Progress
from router.domain.conversions import Conversion
from router.domain.units import Seconds
from router.service.decisions import Document
from router.service.findings import Findings


def describe_findings(findings: Findings, at: datetime | None) -> list[Document]:
    """Return what the last window came to for each model and PD cluster, and when that was."""
    when = None if at is None else at.isoformat()
    return [
        {"model": model, "pd": pd, "at": when, **describe_finding(finding)}
        for (model, pd), finding in findings.items()
    ]


def describe_finding(finding: Finding) -> Document:
    """Return one verdict and what it was made of; a stage that nobody knows is null."""
    return {
        "verdict": finding.verdict,
        "binding": finding.binding,
        "prefill": _stage(finding.prefill),
        "decode": _stage(finding.decode),
        "balance_residual": finding.residual,
        "proposal": None if finding.proposal is None else describe_proposal(finding.proposal),
    }


def describe_proposal(proposal: Proposal) -> Document:
    """Return a proposal; rates are the model's, in requests per second."""
    return {
        **_conversion(proposal.conversion),
        "binding": proposal.binding,
        "balance_residual": proposal.residual,
        "prefill": proposal.prefill,
        "decode": proposal.decode,
        "best_prefill": proposal.best_prefill,
        "best_decode": proposal.best_decode,
        "rate": proposal.rate,
        "next_rate": proposal.next_rate,
        "best_rate": proposal.best_rate,
        "gain": proposal.gain,
        "windows": proposal.windows,
    }


def describe_progress(progress: Progress | None) -> Document | None:
    """Return how far the conversion under way is, or how the latest ended."""
    if progress is None:
        return None
    return {
        **_conversion(progress.conversion),
        "phase": progress.phase,
        "over": progress.phase.is_over,
        "began_at": _moment(progress.began_at),
        "since": _moment(progress.since),
        "term": progress.term,
        "cause": progress.cause,
        "aborted_by": progress.aborted_by,
    }


def _conversion(conversion: Conversion) -> Document:
    return {
        "model": conversion.model,
        "cluster": conversion.cluster,
        "instance": conversion.instance,
        "source": conversion.source,
        "target": conversion.target,
    }


def _stage(reading: StageReading | None) -> Document | None:
    if reading is None:
        return None
    return {"queued": reading.queued, "busy": reading.busy, "held": reading.held}


def _moment(at: Seconds) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
