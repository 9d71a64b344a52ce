"""What can be set from outside: `LONGHOUSE_*` variables. Only `app` and the command line read this."""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from longhouse.errors import SetupError
from longhouse.validation_messages import explain

File = Annotated[Path | None, BeforeValidator(lambda given: given or None)]


def _lower(given: object) -> object:
    return given.lower() if isinstance(given, str) else given


def _schema(given: str) -> str:
    if not re.fullmatch(r"(?!pg_)[a-z_][a-z0-9_]{0,62}", given):
        raise ValueError("a name of small letters, digits and _ is needed, and not one that begins with pg_")
    return given


PREFIX: Final = "LONGHOUSE_"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            # Without the values, which may be secrets.
            wrong = (f"{PREFIX}{where[0]}".upper() + f": {says}" for where, says in explain(error))
            raise SetupError("; ".join(wrong)) from None

    config_file: File = Path("config.yaml")
    agents_file: File = Path("agents.yaml")
    logging_config: File = Path("logging_config.yaml")
    """The usual files are read if they are there; one that is named has to be; an empty name is none."""
    default_template: str = "sgr_tool_calling_agent"
    """Whom `longhouse chat` talks to, and who answers where `auto` finds nobody that fits."""
    host: str = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65535)
    data_dir: Path = Path(".longhouse")
    pg_bin: Path | None = None
    database_url: SecretStr | None = None
    database_schema: Annotated[str, AfterValidator(_schema)] = "longhouse"
    """Where new tables go; those of an installation that had no choice stay where they are."""
    llm_base_url: str | None = None
    llm_api_key: SecretStr = SecretStr("")
    llm_model: str = "gpt-4o-mini"
    llm_proxy: str | None = None
    llm_timeout: float = Field(default=60.0, gt=0)
    """Seconds of silence after which a model's stream counts as dead."""
    patience: float = Field(default=60.0, ge=0)
    """Seconds that provider trouble is waited out while a client waits; fifteen times that when none does."""
    allow_egress: str = ""
    """What published tools and templates may reach beside public addresses: `host:port` or networks, with commas."""
    tool_packages: str = ""
    """Packages that entrypoints of tools may come from, with commas between them."""
    worker_slots: int = Field(default=32, ge=1)
    lease_seconds: float = Field(default=6.0, ge=1)
    embeddings_base_url: str | None = None
    embeddings_api_key: SecretStr = SecretStr("")
    embeddings_model: str = "text-embedding-3-small"
    embeddings_table: File = None
    """A folder with another table than the one that ships with us; with an endpoint, none is read."""
    redis_url: SecretStr | None = None
    """Where conversations are mirrored to."""
    log_dir: Path | None = None
    """Where a log of each conversation is written to."""
    log_language: Literal["en", "ru", "zh"] = "en"
    tavily_api_key: SecretStr = SecretStr("")
    tavily_base_url: str | None = None
    reports_dir: Path | None = None
    mcp_config: Path | None = None
    logs_dir: Path | None = None
    log_level: Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower)] = "info"
    admin_key: SecretStr = SecretStr("")
    """Empty: the only keys are those in the database; with none there either, everybody is let in."""
    rate_limit: int = Field(default=600, ge=1)
    """Requests a minute for each key; like the next two, a key may have its own."""
    max_concurrent: int = Field(default=100, ge=1)
    sessions_per_hour: int = Field(default=1_000, ge=1)
