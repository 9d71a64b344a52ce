"""What agents remember; conversation memory for callers that keep their own histories, and session loggers.

The names are loaded when they are first used: the process that reads a document needs none of them.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from longhouse.integrations.session_log import get_session_logger
    from longhouse.memory.service import MemoryMessage, MemoryService, memory_service
    from longhouse.memory.working import AgentMemory, ContentChunk

__all__ = ["AgentMemory", "ContentChunk", "MemoryMessage", "MemoryService", "get_session_logger", "memory_service"]

_MODULES: Final = {
    "AgentMemory": "longhouse.memory.working",
    "ContentChunk": "longhouse.memory.working",
    "MemoryMessage": "longhouse.memory.service",
    "MemoryService": "longhouse.memory.service",
    "get_session_logger": "longhouse.integrations.session_log",
    "memory_service": "longhouse.memory.service",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
