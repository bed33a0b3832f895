"""What can go wrong inside a stand-in engine, by who must act."""

from __future__ import annotations


class StandInError(Exception):
    """The root of this package's errors."""


class SpecError(StandInError):
    """A specification that no engine could run; the composer must change it."""


class RequestError(StandInError):
    """The client's request is at fault; becomes an OpenAI-style error body.

    `kind` is the body's `error.type`, `status` both the HTTP status and `error.code`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param


class PullError(StandInError):
    """KV could not be pulled from the engine that prefilled; policy decides what follows."""


class UnknownHandoffError(PullError):
    """No such hand-off: never made, used, expired, or of another incarnation of the engine."""


class LoadFailedError(StandInError):
    """A pull failed under `kv_load_failure_policy: fail`; becomes HTTP 500 (or a stream error)."""
