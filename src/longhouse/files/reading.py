"""Reads config.yaml and agents.yaml, and lays them beneath and over the templates that the program brings."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from longhouse.agents import names
from longhouse.agents.template import Template
from longhouse.files.definitions import complete, define, tool_spots
from longhouse.files.document import read_document
from longhouse.files.endpoints import COMMON_REF
from longhouse.files.mistakes import Mistakes, checked, unknown
from longhouse.files.nodes import Node, Spot, merged, planted
from longhouse.files.sections import ENDPOINT, SEARCHING, SECTIONS, Said, said_of, section, template_of
from longhouse.files.shapes import Endpoint, Searching
from longhouse.secrets import Bound, elsewhere
from longhouse.tools.mcp_config import McpServer

_TEMPLATE: TypeAdapter[Template] = TypeAdapter(Template)


@dataclass(frozen=True, slots=True)
class Given:
    """All that the files say. Templates with mistakes are missing; `mistakes` has them, and `refuse` tells."""

    templates: tuple[Template, ...]
    touched: frozenset[str] = frozenset()
    """The templates that are other than the program brings them."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    searching: Searching = field(default_factory=Searching)
    common: Said = field(default_factory=Said)
    own: Mapping[str, Said] = field(default_factory=dict)
    """What single agents say beside their templates."""
    secrets: Mapping[str, Bound] = field(default_factory=dict, repr=False)
    """Keys by the names under which templates carry them, each with the address that it stands beside."""
    tool_spots: Mapping[tuple[str, str], Spot] = field(default_factory=dict)
    """Where a template's tool is named, of those that files name."""
    mistakes: Mistakes = field(default_factory=Mistakes)

    @property
    def servers(self) -> tuple[McpServer, ...]:
        every = {**self.common.servers}
        for said in self.own.values():
            every |= said.servers
        return tuple(every.values())

    def complain(self, template: str, tool: str, what: str) -> bool:
        """Notes what is wrong where a template names a tool; False where no file has named it."""
        spot = self.tool_spots.get((template, tool))
        if spot:
            self.mistakes.add(spot, what)
        return spot is not None


def read_files(
    config_file: Path | None, agents_file: Path | None, *, templates: Iterable[Template], tools: Collection[str]
) -> Given:
    """What the files make of these templates; `tools` are the names of this process's own tools.

    Only a file that is no YAML is refused at once. Other mistakes wait for those that the catalog will find.
    """
    brought = tuple(templates)
    if config_file is None and agents_file is None:
        return Given(brought)
    mistakes = Mistakes()
    config, agents = _document(config_file, mistakes), _document(agents_file, mistakes)
    if mistakes and (config is None or agents is None):
        mistakes.refuse()
    assert config is not None
    assert agents is not None
    _refuse_others(config, (*SECTIONS, "agents"), mistakes)
    _refuse_others(agents, ("agents",), mistakes)
    return _Laying(config, agents, brought, tools, mistakes).given()


def _document(path: Path | None, mistakes: Mistakes) -> Node | None:
    return Node({}, Spot(Path("-"), 0)) if path is None else read_document(path, mistakes)


def _refuse_others(document: Node, keys: Collection[str], mistakes: Mistakes) -> None:
    for name, node in document.without(keys).items.items():
        mistakes.add(node.spot, unknown(name, keys))


class _Laying:
    """Lays the layers over each other."""

    def __init__(
        self, config: Node, agents: Node, brought: tuple[Template, ...], tools: Collection[str], mistakes: Mistakes
    ) -> None:
        self._config = config
        self._mistakes = mistakes
        self._brought = {template.name: template for template in brought}
        self._llm = section(config, "llm", mistakes)
        self._said = said_of(config, mistakes)
        self._beneath = template_of(config, mistakes)
        every = merged(section(config, "agents", mistakes), section(agents, "agents", mistakes))
        self._defined = {name: define(name, node, self._llm, tools, mistakes) for name, node in every.items.items()}

    def given(self) -> Given:
        self._check_common()
        self._check_likeness()
        own = {name: defined.said for name, defined in self._defined.items()}
        self._check_servers(own)
        built = {name: self._built(name) for name in {**self._brought, **self._defined}}
        return Given(
            templates=tuple(template for template in built.values() if template),
            touched=frozenset(name for name, template in built.items() if template != self._brought.get(name)),
            endpoint=checked(Endpoint, self._llm.only(ENDPOINT), self._mistakes) or Endpoint(),
            searching=self._searching(),
            common=self._said,
            own=own,
            secrets=self._secrets(),
            tool_spots={
                (name, tool): spot
                for name, defined in self._defined.items()
                for tool, spot in tool_spots(defined.node).items()
            },
            mistakes=self._mistakes,
        )

    def _built(self, name: str) -> Template | None:
        defined, brought = self._defined.get(name), self._brought.get(name)
        servers = {**self._said.servers, **(defined.said.servers if defined else {})}
        if defined is None and not self._beneath.items and not servers:
            return brought
        node = self._beneath
        if brought:
            # Only what the program says of it: its defaults are beneath everything.
            spoken = _TEMPLATE.dump_python(brought, mode="json", exclude_defaults=True, exclude={"version"})
            node = merged(node, planted(spoken, node.spot))
        if defined:
            node = merged(node, defined.node)
        template = complete(name, node, list(servers), self._mistakes)
        if template:
            self._check_key(template, node)
        return template

    def _check_key(self, template: Template, node: Node) -> None:
        """A key of these files that an agent names is not sent to another address than the one it stands beside."""
        policy = template.llm_policy
        bound = self._secrets().get(policy.api_key_ref or "")
        if bound and policy.base_url and not bound.reaches(policy.base_url):
            self._mistakes.add(node.find(("llm_policy", "api_key_ref")), elsewhere(policy.api_key_ref or ""))

    def _searching(self) -> Searching:
        search = section(self._config, "search", self._mistakes).only(SEARCHING)
        searching: Searching | None = checked(Searching, search, self._mistakes)
        return searching or Searching()

    def _secrets(self) -> dict[str, Bound]:
        key, base_url = self._llm.plain.get("api_key"), self._llm.plain.get("base_url")
        stands = isinstance(key, str) and isinstance(base_url, str)
        common = {COMMON_REF: Bound(key, base_url)} if stands else {}
        own: dict[str, Bound] = {}
        for defined in self._defined.values():
            own |= defined.secrets
        return {**common, **own}

    def _check_common(self) -> None:
        """Also without agents that would inherit it."""
        complete("common", self._beneath, (), self._mistakes)
        key = self._llm.get("api_key") or self._llm.get("api_key_ref")
        if key and key.value is not None and not self._llm.plain.get("base_url"):
            self._mistakes.add(key.spot, "needs a base_url beside it: a key goes nowhere else")

    def _check_likeness(self) -> None:
        """Names that differ only in capitals would pass for each other."""
        seen = {names.key(name): name for name in self._brought}
        for name, defined in self._defined.items():
            other = seen.setdefault(names.key(name), name)
            if other != name:
                self._mistakes.add(defined.node.spot, f"is too much like {other!r}")

    def _check_servers(self, own: Mapping[str, Said]) -> None:
        """A server's name is good for the whole process: two agents share it only if they mean the same server."""
        there = dict(self._said.servers)
        for name, said in own.items():
            for server, entry in said.servers.items():
                if there.setdefault(server, entry) != entry:
                    spot = self._defined[name].node.spot.beneath("mcp", "mcpServers", server)
                    self._mistakes.add(spot, f"another server is called {server!r} already")
