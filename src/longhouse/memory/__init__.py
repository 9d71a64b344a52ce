"""What agents remember; conversation memory for callers that keep their own histories, and session loggers."""

from longhouse.integrations.session_log import get_session_logger
from longhouse.memory.service import MemoryMessage, MemoryService
from longhouse.memory.working import AgentMemory, ContentChunk

__all__ = ["AgentMemory", "ContentChunk", "MemoryMessage", "MemoryService", "get_session_logger"]
