"""What `longhouse serve` serves here: settings and files, with the templates and tools that come with Longhouse."""

from longhouse.agents.builtin import BUILT_IN
from longhouse.app.builtin import TOOLS
from longhouse.config.effective import Configured, configure
from longhouse.settings import Settings


def as_served(settings: Settings) -> Configured:
    return configure(settings, templates=BUILT_IN, tools=[cls.tool_name for cls in TOOLS])
