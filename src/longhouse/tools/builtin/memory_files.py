"""The ten memory tools: long-term files under `memory_dir` that an agent keeps across conversations."""

from abc import abstractmethod
from typing import Any, ClassVar, Final

from pydantic import Field

from longhouse.journal.events import Effect
from longhouse.journal.messages import clean
from longhouse.store.memory import memory_scopes
from longhouse.store.memory.memory_files import MAX_ENTRIES, MAX_FILE, MAX_SCOPE, File, Memories, Verdict
from longhouse.store.memory.memory_scopes import Scope
from longhouse.tools.base import BaseTool
from longhouse.tools.builtin.memory_paths import ROOT, MemoryRefused, normalised
from longhouse.tools.context import ToolContext

_PATH: Final = f"A path inside {ROOT}, such as people/ann.md"

REASONS: Final[dict[Verdict, str]] = {
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


class MemoryCall(BaseTool, is_base=True):
    """The work of a memory tool is in `use`; a refusal becomes text that begins with `Error: `."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        try:
            if context.services.memory is None:
                raise MemoryRefused("no memory is set up here")
            return await self.use(context.services.memory, scope_of(context), context.own_key)
        except MemoryRefused as error:
            return f"Error: {error}"

    @abstractmethod
    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        """What the tool does with the files of its scope; `key` is the idempotency key of the call."""


class PathCall(MemoryCall, is_base=True):
    """Works on one path."""

    path: str = Field(description=_PATH)


class PathChange(PathCall, is_base=True):
    """Changes what is at one path: to do it again changes nothing more."""

    effect: ClassVar[Effect] = "idempotent"


class CreateFileTool(PathChange):
    """Create a new file in your long-term memory, together with the directories it stands in."""

    content: str = Field(default="", description="The text of the file; link to others as [[people/ann]]")

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        path, content = _below_root(self.path), clean(self.content)
        return _done(await memory.write(scope, path, content, key=key), path)


class ReadFileTool(PathCall):
    """Read a file of your long-term memory."""

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        path = normalised(self.path)
        return _text(await memory.read(scope, path), path)


class UpdateFileTool(PathChange):
    """Change a file of your long-term memory: the first place that reads old_content will read new_content."""

    old_content: str = Field(description="The passage to replace, exactly as it is; empty only for an empty file")
    new_content: str = Field(description="What stands there afterwards")

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        path, old, new = _below_root(self.path), clean(self.old_content), clean(self.new_content)
        return _done(await memory.update(scope, path, old, new, key=key), path)


class DeleteFileTool(PathChange):
    """Delete a file, or an empty directory, of your long-term memory."""

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        path = _below_root(self.path)
        return _done(await memory.delete(scope, path, key=key), path)


class CheckIfFileExistsTool(PathCall):
    """Say True or False: is there such a file in your long-term memory?"""

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        return str(await memory.exists(scope, normalised(self.path), directory=False))


class CreateDirTool(PathChange):
    """Create a directory in your long-term memory, together with those it stands in."""

    path: str = Field(description=f"A path inside {ROOT}, such as people")

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        path = _below_root(self.path)
        return _done(await memory.make_dir(scope, path, key=key), path)


class CheckIfDirExistsTool(MemoryCall):
    """Say True or False: is there such a directory in your long-term memory?"""

    path: str = Field(description=f"A path inside {ROOT}, such as people")

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        return str(await memory.exists(scope, normalised(self.path), directory=True))


class GetSizeTool(MemoryCall):
    """Tell the size in bytes of a file, or of everything in a directory, of your long-term memory."""

    path: str = Field(default="", description=f"A path inside {ROOT}; empty for all of it")

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        path = normalised(self.path)
        size = await memory.size(scope, path)
        return _done("missing", path) if size is None else str(size)


class GetListFilesTool(MemoryCall):
    """List the files and directories of your long-term memory, one path a line; directories end with a slash."""

    path: str = Field(default="", description=f"A directory inside {ROOT}; empty for all of it")

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        path = normalised(self.path)
        entries = await memory.list(scope, path)
        if not entries and not await memory.exists(scope, path, directory=True):
            return _done("is_file" if await memory.exists(scope, path, directory=False) else "missing", path)
        return "\n".join(f"{entry.path}/" if entry.is_directory else entry.path for entry in entries) or "(empty)"


class GoToLinkTool(MemoryCall):
    """Read the file of your long-term memory that a link such as [[people/ann]] leads to."""

    link: str = Field(description="The link: [[path]], [[path|words]] or [[path#heading]]; .md may be left out")

    async def use(self, memory: Memories, scope: Scope, key: str) -> str:
        path = normalised(_target(self.link))
        note = path if not path or path.endswith(".md") else normalised(f"{path}.md")
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
    # A conversation's files are those of its session, whoever else writes in it: they are forgotten with it.
    user = context.session.user if context.session else context.user
    try:
        return memory_scopes.scope_for(
            context.memory_scope, context.owner, user, context.agent, context.conversation_id
        )
    except ValueError as error:
        raise MemoryRefused(f"no memory is set up here: {error}") from None


def _below_root(path: str) -> str:
    path = normalised(path)
    if not path:
        raise MemoryRefused(f"this needs a path inside {ROOT}, such as people/ann.md")
    return path


def _done(verdict: Verdict, path: str) -> str:
    if verdict in ("done", "repeated"):
        return "True"
    raise MemoryRefused(REASONS[verdict].format(path=path or ROOT))


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
