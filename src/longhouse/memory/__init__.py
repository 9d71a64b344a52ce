"""Conversation memory for callers that keep their own histories, and session loggers."""

from longhouse.integrations.session_log import get_session_logger
from longhouse.memory.service import MemoryMessage, MemoryService

__all__ = ["MemoryMessage", "MemoryService", "get_session_logger"]
