"""Validates descriptors before they are published. Nothing is imported, fetched or looked up to do so."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from yarl import URL

from longhouse.agents import entrypoints
from longhouse.agents.naming import AGENT_PREFIX, SESSION_ID, key, meanings, name_problem, tool_name
from longhouse.agents.strategies.base import AgentRegistry
from longhouse.agents.template import Template, tools_named_in, with_tool_names
from longhouse.agents.tool_descriptor import ISOLATED, REMEMBERS_READS, ToolDescriptor
from longhouse.catalog import drafts
from longhouse.catalog.drafts import Problem
from longhouse.egress import ANYWHERE, HTTP, PROXIES, TOOLS, Egress
from longhouse.journal.events import Effect
from longhouse.secrets import PROXY_READS_KEY, Secrets, is_like_a_key, is_unencrypted, keys_in
from longhouse.store.catalog.catalog import BUILT_IN, Catalog
from longhouse.store.catalog.publish import Published, PublishTerms, retry_on_change
from longhouse.store.catalog.repository import T, VersionRepository
from longhouse.tools.arguments import schema_problem
from longhouse.tools.bindings import python
from longhouse.tools.builtin.memory_paths import ROOT, MemoryRefused, normalised
from longhouse.tools.offering import named_tools_warning, policy_problem

AT_ONCE: Final = 50
"""Descriptors that are validated before other tasks of this process get their turn."""
ROUTER: Final = "auto"
"""The model name that is routed to a template, and is no template itself."""
FOR_ANYBODY: Final = (
    "its calls take effect once and nobody is asked before, in every agent whose template has no allowlist; set"
    " needs_approval, or name templates in security_policy.allow"
)
NOBODY: Final = ""
"""An owner of nothing: it sees what is public."""

Found = tuple[tuple[int | str, ...], str]
"""A field, and its problem."""


class CatalogValidator(msgspec.Struct, frozen=True):
    """Validates and publishes descriptors: all of a request or none."""

    catalog: Catalog
    egress: Egress = msgspec.field(default_factory=Egress)
    """Where tools may connect."""
    models: Egress = msgspec.field(default_factory=Egress)
    """Where templates may send their requests."""
    packages: Sequence[str] = ()
    secrets: Secrets = msgspec.field(default_factory=Secrets)
    known: Callable[[str], ToolDescriptor | None] = python.described
    """How the class of an entrypoint describes itself, if somebody has imported it; imports nothing."""

    async def publish(
        self,
        repository: VersionRepository[T],
        sent: Any,
        *,
        by: str,
        activate: bool = True,
        seen: Mapping[str, int] | None = None,
    ) -> list[Published]:
        """Publishes one descriptor or a list, decoded from JSON; a refusal names all problems. `seen` are the versions
        that these were made from."""
        many = isinstance(sent, list)
        listed: list[Any] = sent if many else [sent]
        if len(listed) > drafts.MOST:
            drafts.refuse([Problem(0, (), f"there are more than {drafts.MOST}; send fewer at once")])
        given: list[T] = await self._with_tool_names(await self._read(repository, listed, many))
        kept: set[str] = {
            one.name for one, value in zip(given, listed, strict=True) if not activate or "owner" not in value
        }
        terms = PublishTerms(seen=seen or {}, keep_owner=kept, apart=True)

        async def attempt() -> list[Published]:
            problems = [*_otherwise_active(listed, activate), *await self._compared(repository, given, kept)]
            drafts.refuse([one for one in problems if not one.is_warning], many=many)
            published = await repository.publish(given, by=by, activate=activate, terms=terms)
            warned = drafts.warnings(problems)
            return [replace(one, warnings=warned.get(nth, ())) for nth, one in enumerate(published)]

        # No retry with `seen`: a descriptor made from an outdated version must be made again by the caller.
        return await (attempt() if seen else retry_on_change(attempt))

    async def _read(self, repository: VersionRepository[T], listed: Sequence[Any], many: bool) -> list[T]:
        """The parsed descriptors, if all are valid."""
        given: list[T] = []
        for start in range(0, len(listed), AT_ONCE):
            problems: list[Problem] = []
            for nth, value in enumerate(listed[start : start + AT_ONCE], start):
                read = drafts.read(repository, nth, value)
                if isinstance(read, list):
                    problems += read
                else:
                    found = self._of_tool(read) if isinstance(read, ToolDescriptor) else self._of_template(read)
                    problems += [Problem(nth, where, problem) for where, problem in found]
                    given.append(read)
            drafts.refuse(problems, many=many)
            await asyncio.sleep(0)  # a long list must not block the streams of other requests
        return given

    async def tool_problems(self, given: Sequence[ToolDescriptor]) -> list[Problem]:
        """The problems of tools that files bring: the same that are refused when they are published over the API."""
        found = [Problem(nth, *one) for nth, tool in enumerate(given) for one in self._of_tool(tool)]
        kept = {one.name for one in given if one.owner is None}
        return [*found, *await self._compared(self.catalog.tools, given, kept)]

    async def _with_tool_names(self, given: Sequence[Any]) -> list[Any]:
        """The descriptors; templates with the real names of tools that they spell in another way, as files may, too."""
        templates = [one for one in given if isinstance(one, Template)]
        wanted = {name for one in templates for name in tools_named_in(one)}
        meant = {meaning for name in wanted for meaning in meanings(name)}
        owners = {one.owner or NOBODY for one in templates}
        known = {owner: await self.catalog.spelled_tools(meant, owner) for owner in owners}
        return [
            with_tool_names(one, partial(tool_name, known=known[one.owner or NOBODY]))
            if isinstance(one, Template)
            else one
            for one in given
        ]

    def _of_tool(self, tool: ToolDescriptor) -> Iterator[Found]:
        way = tool.runtime_binding
        if problem := name_problem(tool.name, for_agent=way.agent is not None):
            yield ("name",), problem
        if tool.input_schema is not None and (problem := schema_problem(tool.input_schema)):
            yield ("input_schema",), problem
        if way.python_entrypoint is not None and (problem := python.check(way.python_entrypoint, self.packages)):
            yield ("runtime_binding", "python_entrypoint"), problem
        elif way.python_entrypoint is not None:
            own = self.known(way.python_entrypoint)  # an unknown one is checked when a worker first binds the tool
            if own and (found := tool.weakened(own)):
                yield (found[0],), found[1]
        elif given := [name for name in ISOLATED if getattr(tool, name) is not None]:
            yield (given[0],), "it is for tools with a python_entrypoint: leave it out"
        if way.remote_endpoint is not None:
            yield from self._reach(way.remote_endpoint, way.api_key_ref)
        if way.mcp is not None and way.mcp != tool.name:
            yield ("runtime_binding", "mcp"), "it must be the tool's name, <server>.<tool>"
        if way.agent is not None and tool.name != f"{AGENT_PREFIX}{way.agent}":
            yield ("runtime_binding", "agent"), f"the tool of this agent is called {AGENT_PREFIX}<template>"
        if tool.remembers and way.python_entrypoint is None and tool.tool.effect != "read":
            yield ("remembers",), REMEMBERS_READS
        if tool.probe and (problem := _own_probe_problem(tool)):
            yield ("probe",), problem
        if way.agent is not None and tool.needs_approval:
            yield ("needs_approval",), "an agent is called at once; let the tools that it uses need approval"

    def _reach(self, endpoint: str, ref: str | None) -> Iterator[Found]:
        yield from _key_as_ref(ref, "runtime_binding", "api_key_ref")
        if problem := self.egress.problem(endpoint, TOOLS) or _key_in(endpoint):
            yield ("runtime_binding", "remote_endpoint"), problem
        elif problem := self._missing(ref, endpoint):
            yield ("runtime_binding", "api_key_ref"), problem

    def _of_template(self, template: Template) -> Iterator[Found]:
        found, policy = dict(of_template(template, self.packages)), template.llm_policy
        for name in ("base_url", "proxy"):
            where = ("llm_policy", name)
            url = getattr(policy, name)
            schemes = PROXIES if name == "proxy" else HTTP
            if url and where not in found and (problem := self.models.problem(url, schemes)):
                found[where] = problem
        base_url, of_base_url = policy.base_url, ("llm_policy", "base_url")
        if base_url and policy.proxy and not found and (problem := self.models.refusal_behind_proxy(URL(base_url))):
            found[of_base_url] = problem
        if base_url and of_base_url not in found and (problem := self._missing(policy.api_key_ref, base_url)):
            found["llm_policy", "api_key_ref"] = problem
        if base_url and policy.proxy and policy.api_key_ref and is_unencrypted(base_url):
            found.setdefault(("llm_policy", "proxy"), PROXY_READS_KEY)
        yield from found.items()

    def _missing(self, ref: str | None, to: str) -> str | None:
        """The problem of a secret that is not set, or not for this URL: reported now, not at the first call."""
        return self.secrets.problem(ref, to) if ref is not None and not is_like_a_key(ref) else None

    async def _compared(
        self, repository: VersionRepository[T], given: Sequence[T], kept: Collection[str]
    ) -> list[Problem]:
        """The problems with the catalog's content and among the descriptors; the names in `kept` keep their owners."""
        problems: list[Problem] = []
        known = await repository.alike([one.name for one in given], by=BUILT_IN)
        here: dict[str, int] = {}
        owners: list[str | None] = []
        for nth, one in enumerate(given):
            if (other := here.setdefault(key(one.name), nth)) != nth:
                problems.append(Problem(nth, ("name",), f"it is the name of [{other}] too"))
            alike = known.get(key(one.name), [])
            same = next((found for found in alike if found.name == one.name), None)
            if same is None:
                problem = "{} is there already, and looks the same"
                problems += [Problem(nth, ("name",), problem.format(other.name), True) for other in alike]
            elif same.is_by and repository.kind == "tool":
                problem = "a tool of this name comes with the program; give yours another name"
                problems.append(Problem(nth, ("name",), problem, True))
            owners.append(same.owner if same and one.name in kept else one.owner)
        await self.catalog.overlays.refresh()
        for nth, one in enumerate(given):
            if isinstance(one, ToolDescriptor) and self._is_for_anybody(one):
                problems.append(Problem(nth, ("needs_approval",), FOR_ANYBODY, is_warning=True))
        return [*problems, *await self._of_named_tools(given, owners), *await self._of_probes(given, owners)]

    def _is_for_anybody(self, tool: ToolDescriptor) -> bool:
        """Are its calls, which cannot be taken back, made without asking, by agents that nobody has named?"""
        overlay = self.catalog.overlays.of(tool.name)
        narrowed = overlay.over(tool) if overlay else tool
        known = narrowed.known_tool(self.known) or narrowed
        is_asked = known.needs_approval or narrowed.security_policy.allow.templates is not None
        return known.effect == "once" and not is_asked

    async def _of_probes(
        self, given: Sequence[Template | ToolDescriptor], owners: Sequence[str | None]
    ) -> list[Problem]:
        """Warnings about probes that could not be asked; one may come later, or in the same request."""
        sent = {one.name: one for one in given if isinstance(one, ToolDescriptor)}
        problems: list[Problem] = []
        for nth, one in enumerate(given):
            name = one.probe if isinstance(one, ToolDescriptor) else ""
            if name and (problem := await probe_problem(self.catalog, name, owners[nth], sent.get(name))):
                problems.append(Problem(nth, ("probe",), problem, is_warning=True))
        return problems

    async def _of_named_tools(
        self, given: Sequence[Template | ToolDescriptor], owners: Sequence[str | None]
    ) -> list[Problem]:
        """Problems of the tools that templates name: missing, disabled, or too many required ones."""
        problems: list[Problem] = []
        templates = [(nth, one, owners[nth] or NOBODY) for nth, one in enumerate(given) if isinstance(one, Template)]
        for owner in {whose for _, _, whose in templates}:
            theirs = [(nth, one) for nth, one, whose in templates if whose == owner]
            named = {name for _, one in theirs for name in one.tool_policy.named}
            active = await self.catalog.active_tools(named, owner)
            off = await self.catalog.switched_off(named - active.keys(), owner)
            for nth, one in theirs:
                problems += _missing(nth, one, active, off)
                if found := await policy_problem(self.catalog, one, owner):
                    where, problem = found
                    problems.append(Problem(nth, ("tool_policy", *where), problem))
                elif warning := named_tools_warning(one):
                    where = ("tool_policy", "max_tools_in_prompt")
                    problems.append(Problem(nth, where, warning, is_warning=True))
        return problems


def _own_probe_problem(tool: ToolDescriptor) -> str | None:
    """Why the tool cannot have this probe, whatever it is."""
    if tool.probe == tool.name:
        return "a tool cannot be its own probe; name another one, which only reads"
    if _effect_of(tool) in (None, "once"):
        return None
    return "only a tool with the effect once has a probe: a call of any other is simply made again"


async def probe_problem(
    catalog: Catalog, name: str, owner: str | None, sent: ToolDescriptor | None = None
) -> str | None:
    """Why this probe cannot be asked about calls of a tool of this owner; `sent`: it is published together with it."""
    probe = sent or await catalog.tools.find(name, owner=owner or NOBODY)
    if probe is None:
        return f"there is no tool {name!r} to ask: a person will be asked instead"
    if _effect_of(probe) in (None, "read"):
        return None
    return f"{name} does not only read, and is not asked: a person will be asked instead"


def _effect_of(tool: ToolDescriptor) -> Effect | None:
    """The effect of a tool; None where only its class says it, which nobody has imported."""
    return (tool.known_tool(python.described) or tool).effect


def _otherwise_active(sent: Sequence[Any], activate: bool) -> Iterator[Problem]:
    """Answers of the catalog contain `is_active`; sent back, its value must match what is requested."""
    problem = "what is published becomes active, unless activate=false says otherwise"
    for nth, value in enumerate(sent):
        if value.get("is_active", activate) not in (True, activate):
            yield Problem(nth, ("is_active",), problem)


def _missing(nth: int, template: Template, active: Collection[str], off: Collection[str]) -> Iterator[Problem]:
    """Tools of servers and agents, with a dot in the name, may come later; disabled tools only cause a warning."""
    for listed in ("required", "allowlist"):
        for place, name in enumerate(getattr(template.tool_policy, listed) or ()):
            where = ("tool_policy", listed, place)
            if name in off:
                problem = f"{name} is switched off: agents work without it until it is active again"
                yield Problem(nth, where, problem, is_warning=True)
            elif "." not in name and name not in active:
                yield Problem(nth, where, "there is no tool of this name")


def of_template(template: Template, packages: Sequence[str] = ()) -> Iterator[Found]:
    """The problems of a template, whoever publishes it: field and sentence. Nothing is imported: a class of an allowed
    package may still turn out to be none when its first agent works."""
    # The tool that calls its agent has a longer name.
    if problem := name_problem(template.name) or name_problem(f"{AGENT_PREFIX}{template.name}", for_agent=True):
        yield ("name",), problem
    elif key(template.name) == ROUTER:
        yield ("name",), f"{ROUTER} lets the server choose an agent; use another name"
    elif SESSION_ID.fullmatch(template.name):
        yield ("name",), "it looks like the id of a session, which clients name in its place; use another name"
    if problem := _class_problem(template.base_agent_class, packages):
        yield ("base_agent_class",), problem
    for name, placeholder in template.prompt_pack.gaps.items():
        yield ("prompt_pack", name), f"it has no {placeholder}: what people say would not reach the model"
    for name in ("base_url", "proxy"):
        if (url := getattr(template.llm_policy, name)) and (problem := _misplaced(url)):
            yield ("llm_policy", name), problem
    yield from _key_as_ref(template.llm_policy.api_key_ref, "llm_policy", "api_key_ref")
    if problem := next(filter(None, map(_path_problem, template.memory_policy.show)), None):
        yield ("memory_policy", "show"), problem


def _class_problem(name: str, packages: Sequence[str]) -> str | None:
    if AgentRegistry.get(name) is not None:
        return None
    known = ", ".join(sorted({cls.name for cls in AgentRegistry.list_items()}))
    return entrypoints.check(name, packages) if ":" in name else f"there is no agent class of this name; known: {known}"


def _path_problem(path: str) -> str | None:
    """The problem of a memory file's path."""
    try:
        found = normalised(path)
    except MemoryRefused as error:
        return str(error)
    return None if found and found == path.removeprefix(f"{ROOT}/") else f"write it as {found or 'people/ann.md'}"


def _misplaced(address: str) -> str | None:
    """The problem of a model's URL, whoever names it."""
    try:
        return ANYWHERE.refusal_of(URL(address)) or _key_in(address)
    except ValueError:
        return "this is not an address"


def _key_in(url: str) -> str | None:
    found = [name for name, _ in keys_in(url)]
    if not found:
        return None
    return f"{found[0][:64]!r} in its query looks like a key; name a secret in api_key_ref, and it is sent as a header"


def _key_as_ref(ref: str | None, *where: str) -> Iterator[Found]:
    if ref is not None and is_like_a_key(ref):
        yield where, "it looks like a key; name a secret here, and give its value to the process"
