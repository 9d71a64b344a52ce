"""What the HTTP client raises."""

import os
import ssl

from longhouse.egress import EgressRefused


class HttpFailure(Exception):  # noqa: N818 - callers turn it into an error of theirs
    """A request without a usable response."""

    def __init__(self, what: str, why: str = "", *, kind: str = "", retryable: bool = True) -> None:
        super().__init__(what)
        self.what = what
        """What the server did, safe for every reader; a sentence puts its name in front."""
        self.why = why
        """Details for the operator: one bounded line without secrets."""
        self.kind = kind
        """The type of the connection error; empty where a response arrived."""
        self.retryable = retryable
        """Whether a retry may succeed."""

    def sentence(self, who: str) -> str:
        return f"{who} {self.what}: {self.why}" if self.why else f"{who} {self.what}"


def is_retryable(status: int) -> bool:
    """Whether a request that failed with this status may be retried."""
    return status in (408, 409, 425, 429) or status >= 500


def late(within: float) -> HttpFailure:
    return HttpFailure(f"did not answer within {within:g} seconds", kind="TimeoutError")


def unreachable(error: OSError, within: float) -> HttpFailure:
    """No connection came about. The error itself may hold an address, so it is not the cause."""
    kind = type(error).__name__
    if isinstance(error, TimeoutError) and error.errno is None:
        return HttpFailure(f"could not be reached within {within:g} s", kind="ConnectionTimeoutError")
    if isinstance(error, ssl.CertificateError):
        return HttpFailure("has no certificate that we trust", kind=kind, retryable=False)
    if isinstance(error, EgressRefused):
        why = str(error.strerror)
        return HttpFailure("could not be reached", why, kind=why, retryable=False)
    return HttpFailure("could not be reached", _reason(error), kind=kind)


def _reason(error: OSError) -> str:
    """The system's error message without the address that asyncio adds."""
    if (error.errno or 0) > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno or 0)
    return error.strerror or "no connection"
