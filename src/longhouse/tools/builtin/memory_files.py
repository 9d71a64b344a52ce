"""The ten memory tools: long-term files under `memory_dir` that an agent keeps across conversations."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, ParamSpec

from pydantic import Field

from longhouse.journal.events import Effect
from longhouse.journal.messages import clean
from longhouse.store import memory_files
from longhouse.store.memory_files import MAX_ENTRIES, MAX_FILE, MAX_SCOPE, File, Scope, Verdict
from longhouse.tools.base import BaseTool
from longhouse.tools.context import ToolContext
from longhouse.tools.memory_access import ROOT, BadPath, Memory, plain

PATH: Final = f"A path inside {ROOT}, such as people/ann.md"

WHY: Final[dict[Verdict, str]] = {
    "missing": "there is no {path}",
    "exists": "{path} is there already; change it with updatefiletool, or delete it first",
    "is_file": "{path} is a file",
    "is_directory": "{path} is a directory",
    "parent_is_file": "{path} would stand inside of a file",
    "not_empty": "{path} is a directory that is not empty",
    "not_found": "{path} does not contain old_content; read it and copy the passage exactly",
    "file_full": f"{{path}} would be larger than {MAX_FILE} bytes; split it",
    "scope_full": f"{ROOT} would be larger than {MAX_SCOPE} bytes; delete what is no longer needed",
    "too_many": f"{ROOT} would hold more than {MAX_ENTRIES} entries; join files, or delete some",
    "forgotten": "this conversation was deleted: nothing of it is written down any more",
}

P = ParamSpec("P")


class PathRefused(Exception):  # noqa: N818 - it says what happened to the call
    """The operation is refused; the agent reads the message."""


def told(call: Callable[P, Coroutine[Any, Any, str]]) -> Callable[P, Coroutine[Any, Any, str]]:
    """Decorator: turns errors into text that begins with `Error: `."""

    @functools.wraps(call)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return await call(*args, **kwargs)
        except (BadPath, PathRefused) as error:
            return f"Error: {error}"

    return wrapper


class CreateFileTool(BaseTool):
    """Create a new file in your long-term memory, together with the directories it stands in."""

    effect: ClassVar[Effect] = "idempotent"

    path: str = Field(description=PATH)
    content: str = Field(default="", description="The text of the file; link to others as [[people/ann]]")

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        path, content = _below_root(self.path), clean(self.content)
        return _done(await _memory(context).write(scope_of(context), path, content, key=context.key), path)


class ReadFileTool(BaseTool):
    """Read a file of your long-term memory."""

    path: str = Field(description=PATH)

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        path = plain(self.path)
        return _text(await _memory(context).read(scope_of(context), path), path)


class UpdateFileTool(BaseTool):
    """Change a file of your long-term memory: the first place that reads old_content will read new_content."""

    effect: ClassVar[Effect] = "idempotent"

    path: str = Field(description=PATH)
    old_content: str = Field(description="The passage to replace, exactly as it is; empty only for an empty file")
    new_content: str = Field(description="What stands there afterwards")

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        path, old, new = _below_root(self.path), clean(self.old_content), clean(self.new_content)
        return _done(await _memory(context).update(scope_of(context), path, old, new, key=context.key), path)


class DeleteFileTool(BaseTool):
    """Delete a file, or an empty directory, of your long-term memory."""

    effect: ClassVar[Effect] = "idempotent"

    path: str = Field(description=PATH)

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        path = _below_root(self.path)
        return _done(await _memory(context).delete(scope_of(context), path, key=context.key), path)


class CheckIfFileExistsTool(BaseTool):
    """Say True or False: is there such a file in your long-term memory?"""

    path: str = Field(description=PATH)

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return str(await _memory(context).exists(scope_of(context), plain(self.path), directory=False))


class CreateDirTool(BaseTool):
    """Create a directory in your long-term memory, together with those it stands in."""

    effect: ClassVar[Effect] = "idempotent"

    path: str = Field(description=f"A path inside {ROOT}, such as people")

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        path = _below_root(self.path)
        return _done(await _memory(context).make_dir(scope_of(context), path, key=context.key), path)


class CheckIfDirExistsTool(BaseTool):
    """Say True or False: is there such a directory in your long-term memory?"""

    path: str = Field(description=f"A path inside {ROOT}, such as people")

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return str(await _memory(context).exists(scope_of(context), plain(self.path), directory=True))


class GetSizeTool(BaseTool):
    """Tell the size in bytes of a file, or of everything in a directory, of your long-term memory."""

    path: str = Field(default="", description=f"A path inside {ROOT}; empty for all of it")

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        path = plain(self.path)
        size = await _memory(context).size(scope_of(context), path)
        return _done("missing", path) if size is None else str(size)


class GetListFilesTool(BaseTool):
    """List the files and directories of your long-term memory, one path a line; directories end with a slash."""

    path: str = Field(default="", description=f"A directory inside {ROOT}; empty for all of it")

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        memory, scope, path = _memory(context), scope_of(context), plain(self.path)
        entries = await memory.list(scope, path)
        if not entries and not await memory.exists(scope, path, directory=True):
            return _done("is_file" if await memory.exists(scope, path, directory=False) else "missing", path)
        return "\n".join(f"{entry.path}/" if entry.is_directory else entry.path for entry in entries) or "(empty)"


class GoToLinkTool(BaseTool):
    """Read the file of your long-term memory that a link such as [[people/ann]] leads to."""

    link: str = Field(description="The link: [[path]], [[path|words]] or [[path#heading]]; .md may be left out")

    @told
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        memory, scope, path = _memory(context), scope_of(context), plain(_target(self.link))
        note = path if not path or path.endswith(".md") else plain(f"{path}.md")
        found = await memory.read(scope, note)
        if found is None or found.content is None:
            found = await memory.read(scope, path) or found
        return _text(found, path)


MEMORY_TOOLS: Final = (
    CreateFileTool, ReadFileTool, UpdateFileTool, DeleteFileTool, CheckIfFileExistsTool, CreateDirTool,
    CheckIfDirExistsTool, GetSizeTool, GetListFilesTool, GoToLinkTool,
)  # fmt: skip


def scope_of(context: ToolContext) -> Scope:
    """The owner and scope of the files. Without API keys, the owner is the user of requests that name none."""
    owner, user, conversation = context.owner, context.user, context.conversation_id
    match context.memory_scope:
        case "owner":
            return memory_files.of_owner(owner)
        case "agent":
            return memory_files.of_agent(owner, user, context.agent, conversation)
        case "conversation":
            return memory_files.of_conversation(owner, user, conversation)
        case unknown:
            raise PathRefused(f"no memory is set up here: {unknown!r} is not a scope")


def _memory(context: ToolContext) -> Memory:
    if context.services.memory is None:
        raise PathRefused("no memory is set up here")
    return context.services.memory


def _below_root(path: str) -> str:
    path = plain(path)
    if not path:
        raise PathRefused(f"this needs a path inside {ROOT}, such as people/ann.md")
    return path


def _done(verdict: Verdict, path: str) -> str:
    if verdict in ("done", "repeated"):
        return "True"
    raise PathRefused(WHY[verdict].format(path=path or ROOT))


def _text(found: File | None, path: str) -> str:
    if path and found is None:
        return _done("missing", path)
    if found is None or found.content is None:
        return _done("is_directory", path)
    return found.content


def _target(link: str) -> str:
    """The target of a link: `[[people/ann#Work|her job]]` gives people/ann."""
    link = link.strip().removeprefix("!").removeprefix("[[").removesuffix("]]")
    return link.split("|", 1)[0].split("#", 1)[0].strip()
