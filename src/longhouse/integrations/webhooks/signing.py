"""Signatures of Standard Webhooks (https://www.standardwebhooks.com), version 1: HMAC-SHA256 with a shared secret."""

import base64
import hashlib
import hmac
from collections.abc import Sequence

from longhouse.store.automation.webhooks import PREFIX


def headers_of(delivery: str, timestamp: int, payload: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """The headers by which a receiver knows that the payload is ours; one signature for each secret."""
    signed = f"{delivery}.{timestamp}.".encode() + payload
    signatures = (hmac.digest(_key(secret), signed, hashlib.sha256) for secret in secrets)
    return {
        "webhook-id": delivery,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(one).decode()}" for one in signatures),
    }


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(PREFIX))
