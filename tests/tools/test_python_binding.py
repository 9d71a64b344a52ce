"""Tools by entrypoint: judged by their text alone, imported when they are bound, and whatever happens then is told."""

import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.journal.events import Fault
from longhouse.tools.base import BaseTool
from longhouse.tools.bindings.python import MOVED, bound, check, known, load
from longhouse.tools.builtin.clock import ClockTool

TOOL = """
from pathlib import Path
from typing import ClassVar
from longhouse.tools import BaseTool

Path(__file__).with_suffix(".imported").touch()


class Greet(BaseTool):
    "Greet somebody."

    tool_name: ClassVar[str] = "greet_by_entrypoint"
    finishes: ClassVar[bool] = True
    who: str

    async def __call__(self, context, config=None, **kwargs):
        return f"Hello {self.who}"


def function():
    ...


number = 7
"""

Package = Callable[[str], str]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Writes modules of a package that can be imported; gives the module's name."""
    name = f"canary_{uuid.uuid4().hex[:12]}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        module = f"m{uuid.uuid4().hex[:8]}"
        (tmp_path / name / f"{module}.py").write_text(text)
        return f"{name}.{module}"

    yield write
    for module in [one for one in sys.modules if one.partition(".")[0] == name]:
        del sys.modules[module]


def described(entrypoint: str) -> ToolDescriptor:
    return ToolDescriptor(
        name="greet",
        version=3,
        description_short="Greets.",
        runtime_binding=RuntimeBinding(python_entrypoint=entrypoint),
    )


@pytest.mark.parametrize(
    "entrypoint",
    [
        "os:system",
        "builtins:eval",
        "subprocess:Popen",
        "antigravity:Tool",
        "..x:y",
        ".allowed:Tool",
        "allowed..mod:Tool",
        "allowed.mod:__class__",
        "allowed.mod:_Tool",
        "allowed._mod:Tool",
        "allowed.mod:Tool.__init__",
        "allowed.mod:Tool.method",
        "allowed.mod:Tool()",
        "allowed.mod",
        "allowed.mod:",
        ":Tool",
        "allowed.mod:Tool:Tool",
        "allowed.mod:Tool\n",
        "allowed/mod:Tool",
        "allowed mod:Tool",
        "allоwed.mod:Tool",  # the fourth letter is Cyrillic
        "allowedness.mod:Tool",
        "not.allowed.mod:Tool",
        "longhouse.app:Tool",
        "longhouse.toolsets:Tool",
        "allowed.mod:" + "T" * 300,
        "",
    ],
)
def test_what_is_not_allowed_is_refused_and_not_imported(entrypoint: str) -> None:
    before = set(sys.modules)
    assert check(entrypoint, ["allowed", "", " "])
    with pytest.raises(EntrypointError):
        load(entrypoint, ["allowed", "", " "])
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("entrypoint", "allowed"),
    [
        ("allowed:Tool", ["allowed"]),
        ("allowed.mod.deep:Tool2", ["other", "allowed"]),
        ("allowed.mod:Tool", ["allowed.mod"]),
        ("allowed.mod:Tool", [" allowed "]),
        ("longhouse.tools.builtin.clock:ClockTool", []),
    ],
)
def test_a_class_of_an_allowed_package_is_allowed(entrypoint: str, allowed: list[str]) -> None:
    assert check(entrypoint, allowed) is None


def test_a_package_above_the_allowed_one_is_not_allowed() -> None:
    assert check("allowed.other:Tool", ["allowed.mod"])


def test_checking_imports_nothing_and_loading_does(package: Package, tmp_path: Path) -> None:
    module = package(TOOL)
    canary = (tmp_path / Path(*module.split("."))).with_suffix(".imported")
    assert check(f"{module}:Greet", [module.partition(".")[0]]) is None
    assert not canary.exists()
    loaded = load(f"{module}:Greet", [module.partition(".")[0]])
    assert canary.exists()
    assert issubclass(loaded, BaseTool)


def test_our_own_tools_are_always_there() -> None:
    assert load("longhouse.tools.builtin.clock:ClockTool", []) is ClockTool


@pytest.mark.parametrize(
    "entrypoint",
    [
        "longhouse.tools.clock:ClockTool",
        "longhouse.tools.delegate:CollectTool",
        "longhouse.tools.find:FindToolsTool",
        "longhouse.tools.plan:ReasoningTool",
        "longhouse.tools.report:CreateReportTool",
        "longhouse.tools.research:WebSearchTool",
        "longhouse.tools.talk:FinalAnswerTool",
        "longhouse.tools.workspace:ReadFileTool",
    ],
)
def test_a_class_that_a_catalog_of_before_names_is_found_where_it_is_now(entrypoint: str) -> None:
    module, _, name = entrypoint.partition(":")
    assert check(entrypoint, []) is None
    found = load(entrypoint, [])
    assert (found.__name__, known(entrypoint)) == (name, found)
    assert module in MOVED
    assert found.__module__ == MOVED[module]


@pytest.mark.parametrize("name", ["number", "Path", "BaseTool", "Missing"])
def test_what_is_no_tool_class_is_told(package: Package, name: str) -> None:
    module = package(TOOL)
    with pytest.raises(EntrypointError, match=f"has no tool class {name}"):
        load(f"{module}:{name}", [module])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise BaseException('all is lost')", "BaseException: all is lost"),
        ("import a_package_that_is_not_there", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_an_import_that_raises_is_told_to_the_agent(package: Package, text: str, told: str) -> None:
    module = package(text)
    binding = bound(described(f"{module}:Greet"), [module])
    assert binding.tool.ref == "greet@3"
    fault = binding.bind("{}")
    assert isinstance(fault, Fault)
    assert fault.code == "tool_failed"
    assert fault.message.startswith(f"greet cannot be used: {module} cannot be imported: ")
    assert told in fault.message


def test_a_module_that_is_missing_is_tried_again(package: Package, tmp_path: Path) -> None:
    module = package(TOOL)
    file = (tmp_path / Path(*module.split("."))).with_suffix(".py")
    text = file.read_text()
    file.write_text("raise RuntimeError('half installed')")
    binding = bound(described(f"{module}:Greet"), [module])
    assert isinstance(binding.bind('{"who": "Ann"}'), Fault)
    file.write_text(text)
    assert not isinstance(binding.bind('{"who": "Ann"}'), Fault)


def test_the_catalog_describes_the_tool_and_the_class_does_the_work(package: Package) -> None:
    module = package(TOOL)
    binding = bound(described(f"{module}:Greet"), [module])
    assert (binding.tool.name, binding.tool.version, binding.tool.description) == ("greet", 3, "Greets.")
    assert binding.tool.finishes
    fault = binding.bind("{}")
    assert isinstance(fault, Fault)
    assert (fault.code, fault.message) == ("bad_arguments", "the arguments of greet do not fit: who: Field required")
    assert not isinstance(binding.bind('{"who": "Ann"}'), Fault)


PAY = """
from typing import ClassVar
from longhouse.tools import BaseTool


class Pay(BaseTool):
    "Pays."

    effect: ClassVar[str] = "once"
    needs_approval: ClassVar[bool] = True
    timeout: ClassVar[float] = 7.0
    max_output: ClassVar[int] = 70
    amount: int

    async def __call__(self, context, config=None, **kwargs):
        return "paid"
"""


def test_a_class_says_what_its_descriptor_does_not(package: Package) -> None:
    module = package(PAY)
    tool = bound(described(f"{module}:Pay"), [module]).tool
    assert (tool.effect, tool.needs_approval, tool.timeout, tool.max_output) == ("once", True, 7.0, 70)
    assert tool.schema == {"properties": {"amount": {"type": "integer"}}, "required": ["amount"], "type": "object"}
    said = replace(described(f"{module}:Pay"), timeout=60.0, max_output=40_000)
    tool = bound(said, [module]).tool
    assert (tool.effect, tool.needs_approval, tool.timeout, tool.max_output) == ("once", True, 60.0, 40_000)


@pytest.mark.parametrize("said", [{"effect": "read"}, {"effect": "idempotent"}, {"needs_approval": False}])
def test_a_descriptor_that_asks_for_less_care_than_its_class_is_refused(package: Package, said: Any) -> None:
    module = package(PAY)
    binding = bound(replace(described(f"{module}:Pay"), **said), [module])
    assert binding.is_refused
    fault = binding.bind('{"amount": 1}')
    assert isinstance(fault, Fault)
    assert fault.message.startswith(f"greet cannot be used: {next(iter(said))}: the class ")


def test_a_class_is_known_once_somebody_has_imported_it(package: Package, tmp_path: Path) -> None:
    module = package(TOOL)
    assert known(f"{module}:Greet") is None
    assert module not in sys.modules
    loaded = load(f"{module}:Greet", [module])
    assert known(f"{module}:Greet") is loaded
    assert [known(f"{module}:{name}") for name in ("function", "number", "Path", "BaseTool", "Missing")] == [None] * 5
