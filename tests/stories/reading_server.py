"""A Longhouse with an agent that reads: `python tests/stories/reading_server.py`."""

import uvloop

from library_tools import Library
from longhouse.agents.template import Template, ToolPolicy
from longhouse.app import TOOLS

LIBRARY = Library()
READER = Template(name="reads", tool_policy=ToolPolicy(allowlist=(*LIBRARY.names, "finalanswertool")))


if __name__ == "__main__":
    from bare_server import serve  # it lies beside this file, which is the program now

    uvloop.run(serve(templates=[READER], tools=(*TOOLS, *LIBRARY.tools)))
