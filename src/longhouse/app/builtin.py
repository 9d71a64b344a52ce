"""The tools that come with Longhouse."""

from typing import Final

from longhouse.tools.bindings.agent import CollectTool
from longhouse.tools.builtin.clock import ClockTool
from longhouse.tools.builtin.dialogue import ClarificationTool, FinalAnswerTool
from longhouse.tools.builtin.documents import DOCUMENT_TOOLS
from longhouse.tools.builtin.find_tools import FindToolsTool
from longhouse.tools.builtin.letter import LetterTool
from longhouse.tools.builtin.memory_files import MEMORY_TOOLS
from longhouse.tools.builtin.planning import AdaptPlanTool, GeneratePlanTool, ReasoningTool
from longhouse.tools.builtin.report import CreateReportTool
from longhouse.tools.builtin.research import ExtractPageContentTool, WebSearchTool

TOOLS: Final = (
    ReasoningTool,
    ClarificationTool,
    FinalAnswerTool,
    GeneratePlanTool,
    AdaptPlanTool,
    WebSearchTool,
    ExtractPageContentTool,
    CreateReportTool,
    ClockTool,
    LetterTool,
    CollectTool,
    FindToolsTool,
    *MEMORY_TOOLS,
    *DOCUMENT_TOOLS,
)
