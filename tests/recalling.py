"""What stories about recall are told with: agents that remember, and a model that tells what their prompts quote."""

from collections.abc import Sequence

from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import MemoryPolicy, MemoryScope, Template, ToolPolicy
from longhouse.journal.messages import System, ToolResult, User, text_of
from longhouse.models.scripted import Say, call


def friend(
    name: str = "friend", *, recall: int = 5, show: Sequence[str] = (), scope: MemoryScope = "agent"
) -> Template:
    """An agent that remembers other conversations."""
    tools = ("finalanswertool", "createfiletool")
    policy = MemoryPolicy(recall=recall, show=tuple(show), scope=scope)
    return Template(name=name, tool_policy=ToolPolicy(allowlist=tools), memory_policy=policy)


def quotes(body: Body) -> str:
    """What the system prompt quotes from memory, with the sources."""
    system = body.messages[0]
    assert isinstance(system, System)
    lines = text_of(system.content).splitlines()
    return "\n".join(line for line in lines if line.startswith(("> ", "## [")))


class Listener:
    """A model that repeats nothing: what its prompt quoted is for the test to see, and not said again.

    `Keep <path> <words>` is written down.
    """

    def __init__(self) -> None:
        self.quoted = ""
        """What the prompt of the last turn quoted."""

    def __call__(self, body: Body) -> Say:
        last = body.messages[-1]
        if isinstance(last, ToolResult):
            return call("finalanswertool", answer=f"Kept: {last.content}")
        assert isinstance(last, User)
        self.quoted, said = quotes(body), text_of(last.content)
        if said.startswith("Keep "):
            _, path, words = said.split(" ", 2)
            return call("createfiletool", path=path, content=words)
        return call("finalanswertool", answer="I heard that.")
