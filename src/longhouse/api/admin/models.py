"""The model endpoint: what this process was configured with, and a probe of another one before it is configured."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypedDict

import msgspec
from pydantic import Field, SecretStr

from longhouse.api import auth, wire
from longhouse.api.admin.operations import Sentence, Tone
from longhouse.api.http.json_route import of_app, strict_router
from longhouse.egress import ANYWHERE, LONGEST_URL, Egress
from longhouse.errors import CallerError, ProviderError, SetupError
from longhouse.models import probe as probing
from longhouse.models.http.client import HANG, open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.probe import ProbeFinding

PROBE_WITHIN: Final = 90.0
"""Seconds for all requests of a probe."""
ALLOW: Final = "; name it in LONGHOUSE_ALLOW_EGRESS, or run `longhouse probe` where the server runs"
TONES: Final[dict[bool | None, Tone]] = {True: "good", False: "bad", None: "wait"}

EXAMPLE: Final[dict[str, Any]] = {"base_url": "http://127.0.0.1:11434/v1", "model": "qwen3", "api_key": "sk-…"}
FOUND: Final[dict[str, Any]] = {
    "report": [{"ability": "forced_tool_choice", "holds": False, "why": "it called no tool"}],
    "sentences": [
        {"tone": "bad", "text": "forced_tool_choice: it called no tool."},
        {"tone": "wait", "text": "In the template's llm_policy.can, set to false: forced_tool_choice."},
    ],
}

router = strict_router("Admin", auth.admin)


class ConfiguredModel(msgspec.Struct, frozen=True):
    """What clients may know of the model that is configured: never its address or key."""

    name: str = ""
    is_demo: bool = True
    """None is configured: the demo model answers."""
    egress: Egress = msgspec.field(default_factory=Egress)
    """Where somebody with an admin key may send requests: where templates may."""
    hang: float = HANG


class ProbeReport(TypedDict):
    report: Sequence[ProbeFinding]
    sentences: list[Sentence]


class Probe(wire.StrictModel):
    base_url: Annotated[str, Field(min_length=1, max_length=LONGEST_URL)]
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    api_key: Annotated[SecretStr, Field(max_length=auth.MAX_KEY)] | None = None


@router.post(
    "/admin/models/probe",
    openapi_extra=wire.example(**EXAMPLE),
    responses={200: wire.answer("What the endpoint can.", FOUND)},
)
async def probe(
    caller: auth.Admin, asked: Probe, model: Annotated[ConfiguredModel, of_app("model")]
) -> wire.Json[ProbeReport]:
    """Finds out what an endpoint supports, as `longhouse probe` does. The key is used for this alone.

    Without API keys the caller sits at this machine, and any address may be probed that could be configured; with them,
    the addresses that templates may name."""
    egress = model.egress if caller.key else ANYWHERE
    if problem := egress.problem(asked.base_url):
        is_allowable = ANYWHERE.problem(asked.base_url) is None
        raise CallerError(
            f"This endpoint cannot be probed: {problem}{ALLOW if is_allowable else ''}.", param="base_url"
        )
    key = asked.api_key.get_secret_value() if asked.api_key else ""
    try:
        async with (
            asyncio.timeout(PROBE_WITHIN),
            open_endpoint(asked.base_url, key, egress=egress, hang=model.hang) as endpoint,
        ):
            findings = await probing.probe(OpenAIModel(endpoint), asked.model or model.name)
    except TimeoutError:
        raise _failed(f"The endpoint did not answer within {PROBE_WITHIN:g} s.") from None
    except (ProviderError, SetupError) as error:
        raise _failed(f"{error}") from None
    return wire.Json({"report": findings, "sentences": _sentences(findings)})


def _sentences(findings: Sequence[ProbeFinding]) -> list[Sentence]:
    found = [Sentence(TONES[one.holds], f"{one.ability}: {one.why}.") for one in findings]
    tone: Tone = "good" if all(one.holds for one in findings) else "wait"
    return [*found, *(Sentence(tone, text) for text in probing.advice(findings))]


def _failed(message: str) -> CallerError:
    return CallerError(message, code="probe_failed", param="base_url")
