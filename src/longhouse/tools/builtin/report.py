"""The report tool: Markdown with its sources, stored as an artifact of the session."""

import asyncio
import hashlib
import re
import unicodedata
import uuid
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import structlog
from pydantic import Field

from longhouse.journal.events import Effect
from longhouse.journal.messages import clean
from longhouse.journal.roles import Role
from longhouse.tools.base import BaseTool
from longhouse.tools.builtin.research import known
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import MadeFile, ToolContext

log = structlog.get_logger()

_LONGEST_SLUG: Final = 50
_CITED: Final = re.compile(r"\[(\d{1,6}(?:\s*,\s*\d{1,6})*)\]")
_MARKUP: Final = re.compile(r"([\\`*_\[\]<>#|!&])")


class CreateReportTool(BaseTool):
    """Write the report of a research: Markdown that cites its sources as [1], [2]. The list of sources is added."""

    tool_role: ClassVar[Role] = "reports"
    effect: ClassVar[Effect] = "idempotent"
    closing: ClassVar[bool] = True

    title: str = Field(min_length=1, max_length=300, description="The title of the report")
    content: str = Field(min_length=1, description="The report in Markdown, in the language of the user")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        title, content = " ".join(clean(self.title).split()), clean(self.content).strip()
        every = known(context)
        cited = sorted({int(one) for found in _CITED.findall(content) for one in found.split(",")})
        listed = [every[number] for number in cited if number in every] or _all(context)
        text = _report(title, content, listed)
        # The same name for every attempt: a retry writes the same report.
        name = f"{_slug(title)}-{hashlib.sha256(context.own_key.encode()).hexdigest()[:8]}.md"
        made = MadeFile(path=f"reports/{name}", content=text.encode(), media_type="text/markdown")
        context.made.append(made)
        if isinstance(config, ToolConfig) and config.execution.reports_dir:
            await _write(Path(config.execution.reports_dir), name, made.content)
        summary = {
            "title": title,
            "word_count": len(content.split()),
            "sources_count": len(listed),
            "unknown_citations": [number for number in cited if number not in every],
            "path": made.path,
            "download": f"/v1/sessions/{context.session_id}/artifacts/{context.call}",
        }
        return msgspec.json.encode(summary).decode()


def _all(context: ToolContext) -> list[dict[str, Any]]:
    """All sources, for a report that cites none by number."""
    kept = [source for source in known(context).values() if source["url"] in context.sources]
    return sorted({one["url"]: one for one in kept}.values(), key=lambda one: int(one["number"]))


def _report(title: str, content: str, listed: list[dict[str, Any]]) -> str:
    parts = [content if content.startswith("# ") else f"# {_plain(title)}\n\n{content}"]
    if listed:
        lines = [f"- [{one['number']}] {_plain(one['title'] or 'Untitled')}: <{one['url']}>" for one in listed]
        parts.append("## Sources\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Escapes untrusted text for Markdown."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _slug(title: str) -> str:
    """A title as a file name: letters and digits of any script, no character with a meaning for the file system."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", title).lower())
    return "-".join(words)[:_LONGEST_SLUG].strip("-") or "report"


async def _write(folder: Path, name: str, content: bytes) -> None:
    """Writes a copy to a folder. The artifact is the report: a failed write, as on a full disk, does not lose it."""
    try:
        await asyncio.to_thread(_replace, folder, name, content)
    except OSError as error:
        message = "a report could not be written to its folder"
        log.warning("report_write_failed", message=message, name=name, error=error.strerror)


def _replace(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        with half.open("xb") as file:
            file.write(content)
        half.replace(folder / name)
    finally:
        half.unlink(missing_ok=True)
