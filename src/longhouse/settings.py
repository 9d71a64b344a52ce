"""Settings from `LONGHOUSE_*` environment variables. Only `app` and the command line read them."""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from longhouse import prices as pricing
from longhouse.errors import SetupError
from longhouse.validation_messages import explain

File = Annotated[Path | None, BeforeValidator(lambda given: given or None)]


def comma_list(given: object) -> object:
    """The items of a comma-separated text."""
    return [item.strip() for item in given.split(",") if item.strip()] if isinstance(given, str) else given


Items = Annotated[tuple[str, ...], BeforeValidator(comma_list)]


def _schema(given: str) -> str:
    if not re.fullmatch(r"(?!pg_)[a-z_][a-z0-9_]{0,62}", given):
        raise ValueError("should be a name of lower-case letters, digits and _ that does not begin with pg_")
    return given


MOST_PROCESSES: Final = 64
PREFIX: Final = "LONGHOUSE_"
FILES: Final = ("config_file", "agents_file", "logging_config")
RENAMED: Final = {"log_dir": "session_log_dir", "logs_dir": "agent_log_dir"}
"""Former names of settings, which are accepted where the present one is not set."""
COMMON_VARIABLES: Final = {
    "otlp_endpoint": ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    "otlp_headers": ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"),
    "service_name": ("OTEL_SERVICE_NAME",),
}
"""Standard variables for the same settings; they are read where ours is not set."""


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{name}".upper()


def _variables_of(name: str) -> tuple[str, ...]:
    """All variables of a setting: the first that is set counts."""
    former = (variable_of(before) for before, present in RENAMED.items() if present == name)
    return (variable_of(name), *former, *COMMON_VARIABLES.get(name, ()))


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What variables set, in whatever case their names are written."""
    named = {name.upper(): value for name, value in environ.items()}
    found = {name: [named[one] for one in _variables_of(name) if one in named] for name in Settings.model_fields}
    return {name: values[0] for name, values in found.items() if values}


def _by_present_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, under the present names."""
    former = {RENAMED[name]: value for name, value in given.items() if name in RENAMED}
    return {**former, **{name: value for name, value in given.items() if name not in RENAMED}}


def _prices(given: tuple[str, ...]) -> tuple[str, ...]:
    pricing.parse(given)
    return given


def _networks(given: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_network(one)) for one in given)
    except ValueError:
        raise ValueError(
            "should be addresses or networks such as 127.0.0.1 or 10.0.0.0/8, with commas between them"
        ) from None


def _hosts(given: tuple[str, ...]) -> tuple[str, ...]:
    if not all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}", one) for one in given):
        raise ValueError("should be host names such as agents.example.com, without scheme or port, separated by commas")
    return tuple(one.lower() for one in given)


def _origins(given: tuple[str, ...]) -> tuple[str, ...]:
    if not all(re.fullmatch(r"[a-z][a-z0-9+.-]*://[a-z0-9._-]+(:[0-9]{1,5})?", one) for one in given):
        raise ValueError("should be origins such as https://app.example.com, without a path, separated by commas")
    return given


def _delays(given: tuple[str, ...]) -> tuple[str, ...]:
    if len(given) > 100 or not all(re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,3})?", one) for one in given):
        raise ValueError("should be seconds such as 5,300,1800: up to 100 numbers, with commas between them")
    return given


def _root_path(given: str) -> str:
    root = given.strip().rstrip("/")
    if root and not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+", root):
        raise ValueError("should be a path such as /longhouse, of letters, digits and . _ ~ -")
    return root


def _given_to_tools(names: tuple[str, ...]) -> tuple[str, ...]:
    if any(name.upper().startswith(PREFIX) for name in names):
        raise ValueError(f"variables that begin with {PREFIX} are the server's own and are not given to tools")
    return names


NATS_SCHEMES: Final = ("nats", "tls", "ws", "wss")


def _nats(given: SecretStr | None) -> SecretStr | None:
    """Refuses what the client would fail on later, with a piece of a password in its message."""
    servers = given.get_secret_value().split(",") if given else []
    if not all(map(_is_nats, servers)):
        raise ValueError(
            "should be an address such as nats://user:password@host:4222, or several with commas between them; "
            "write / ? # , and % of a password as %2F %3F %23 %2C %25"
        )
    # One user for all: servers that the client hears of later come without any.
    if len({server.rpartition("@")[0].partition("://")[2] for server in servers if "@" in server}) > 1:
        raise ValueError("should name the same user and password in each address")
    return given or None


def _is_nats(server: str) -> bool:
    try:
        found = urlsplit(server if "://" in server else f"nats://{server}")
        # An @ behind the address: a character of the password has ended it too early.
        rest = f"{found.path}{found.query}{found.fragment}"
        return found.scheme in NATS_SCHEMES and bool(found.hostname) and found.port != 0 and "@" not in rest
    except ValueError:
        return False


class Settings(BaseModel):
    model_config = ConfigDict(extra="ignore")

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**{**_from_environment(os.environ), **_by_present_name(given)})
        except ValidationError as error:
            # The message leaves out the values, which may be secrets.
            wrong = (f"{variable_of(str(where[0]))}: {problem}" for where, problem in explain(error))
            raise SetupError("; ".join(wrong)) from None

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: dict[str, Any]) -> dict[str, Any]:
        """An empty variable sets nothing, as in an `.env` that was not filled in; for files it means none."""
        return {name: value for name, value in given.items() if value != "" or name in FILES}

    config_file: File = Path("config.yaml")
    agents_file: File = Path("agents.yaml")
    logging_config: File = Path("logging_config.yaml")
    """Default files are read if they exist; a file that is set must exist; an empty name means no file."""
    default_template: str = "sgr_tool_calling_agent"
    """The agent of `longhouse chat`, and of `auto` when no agent fits."""
    host: str = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65535)
    serve_workers: int = Field(default=1, ge=1, le=MOST_PROCESSES)
    """Processes of `longhouse serve`, each of which takes requests and works on sessions."""
    root_path: Annotated[str, AfterValidator(_root_path)] = ""
    """The path below which a reverse proxy shows this server; empty: it has a host name of its own."""
    trusted_proxies: Annotated[Items, AfterValidator(_networks)] = ()
    """Addresses of reverse proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed."""
    data_dir: Path = Path(".longhouse")
    pg_bin: Path | None = None
    database_url: SecretStr | None = None
    database_schema: Annotated[str, AfterValidator(_schema)] = "longhouse"
    """The schema of new tables; an older installation keeps its tables where they are."""
    llm_base_url: str | None = None
    llm_api_key: SecretStr = SecretStr("")
    llm_model: str = "gpt-4o-mini"
    llm_proxy: str | None = None
    llm_timeout: float = Field(default=60.0, gt=0)
    """Seconds without data after which a model's stream has timed out."""
    patience: float = Field(default=60.0, ge=0)
    """Seconds of retries after provider errors while a client waits; fifteen times as long without a client."""
    allow_egress: Items = ()
    """Non-public addresses that published tools and templates may reach: `host:port` or networks, with commas."""
    tool_packages: Items = ()
    """Packages that tool entrypoints may come from, separated by commas."""
    tool_processes: int = Field(default=16, ge=1, le=1_000)
    """Processes of their own that Python tools of such packages have at a time; one package has half of them."""
    tool_environment: Annotated[Items, AfterValidator(_given_to_tools)] = ()
    """Environment variables that such tools find besides PATH, HOME and the locale, separated by commas."""
    worker_slots: int = Field(default=32, ge=1)
    lease_seconds: float = Field(default=6.0, ge=1)
    embeddings_base_url: str | None = None
    embeddings_api_key: SecretStr = SecretStr("")
    embeddings_model: str = "text-embedding-3-small"
    embeddings_table: File = None
    """A folder with an embedding table in place of the built-in one; not read when an endpoint is set."""
    nats_url: Annotated[SecretStr | None, AfterValidator(_nats)] = None
    """The NATS servers that carry hints between processes, separated by commas; without them, Postgres does."""
    redis_url: SecretStr | None = None
    """The Redis server to which conversations are mirrored."""
    session_log_dir: Path | None = None
    """The folder of session logs, one for each conversation."""
    log_language: Literal["en", "ru", "zh"] = "en"
    memory_enabled: bool = True
    """Whether agents remember, within a session, what their reading tools returned."""
    memory_max_chunks: int = Field(default=10, ge=0, le=100)
    memory_min_relevance: float = Field(default=0.5, ge=0, le=1)
    memory_language: Literal["en", "ru", "zh"] = "en"
    """The language of the headings over what is remembered."""
    conversation_memory_enabled: bool = True
    """Whether the ledger collects interactions."""
    documents_max_bytes: int = Field(default=50 * 1024 * 1024, ge=1024)
    """Bytes of a file that may become a document."""
    documents_max_count: int = Field(default=10_000, ge=1)
    """Documents of one owner; shared ones are not counted."""
    tavily_api_key: SecretStr = SecretStr("")
    tavily_base_url: str | None = None
    reports_dir: Path | None = None
    mcp_config: Path | None = None
    cors_origins: Annotated[Items, AfterValidator(_origins)] = ()
    """Origins whose pages may call the API below /v1 with a key; separated by commas."""
    mcp_hosts: Annotated[Items, AfterValidator(_hosts)] = ()
    """Host names by which the MCP server at /mcp is asked, besides local names and addresses; separated by commas."""
    agent_log_dir: Path | None = None
    """The folder of agent logs, one for each session."""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(lambda given: str(given).lower())
    ] = "info"
    metrics_owners: int = Field(default=20, ge=0, le=10_000)
    """Owners that the metrics of a process name, the first that it meets; all others are counted as `other`."""
    otlp_endpoint: str | None = None
    """The collector that traces are sent to, by OTLP over HTTP; without one, nothing is traced."""
    otlp_headers: SecretStr = SecretStr("")
    """Headers for it, such as a key: `name=value`, separated by commas."""
    service_name: str = "longhouse"
    """The name of this installation in traces."""
    trace_share: float = Field(default=1.0, ge=0, le=1)
    """The share of turns that are traced; where a request says whether it is, that counts."""
    admin_key: SecretStr = SecretStr("")
    """Empty: only keys in the database are valid; if there are none either, access is open to everybody."""
    rate_limit: int = Field(default=600, ge=1)
    """Requests per minute for each key; a key may override this and the next three."""
    max_concurrent: int = Field(default=100, ge=1)
    sessions_per_hour: int = Field(default=1_000, ge=1)
    max_running: int | None = Field(default=None, ge=1, le=1_000_000)
    """Sessions of each key that run at once; None: any number. The same in all processes."""
    webhook_timeout: float = Field(default=15.0, gt=0, le=300)
    """Seconds in which the receiver of a webhook must answer."""
    webhook_retry_delays: Annotated[Items, AfterValidator(_delays)] = (
        "5", "300", "1800", "7200", "18000", "36000", "50400", "72000", "86400",
    )  # fmt: skip
    """Seconds before each further attempt of a delivery, separated by commas; after the last one it has failed."""
    webhook_pause_days: float = Field(default=5.0, gt=0, le=365)
    """Days in which no delivery succeeds, after which a webhook is paused."""
    webhook_log_days: float = Field(default=30.0, gt=0, le=36_500)
    """Days for which deliveries are kept, sent or not."""
    max_schedules: int = Field(default=100, ge=1, le=1_000_000)
    """Schedules that an owner may have."""
    prices: Annotated[Items, AfterValidator(_prices)] = ()
    """What a million tokens of a model cost, read and written: `gpt-4o-mini=0.15/0.60`, separated by commas."""
    currency: str = Field(default="USD", pattern="^[A-Z]{3}$")
    """The currency of these prices."""

    retain_days: int | None = Field(default=None, ge=1, le=36_500)
    """Days after which sessions at rest are erased, unless their owner has another policy; None: never."""

    def file_of(self, name: Literal["config_file", "agents_file", "logging_config"]) -> Path | None:
        """The file of this setting: a file that is set must exist, the default file is read if it exists."""
        path: Path | None = getattr(self, name)
        return path if path and (name in self.model_fields_set or path.exists()) else None
