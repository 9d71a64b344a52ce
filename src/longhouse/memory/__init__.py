"""What is remembered elsewhere: histories that a caller keeps, the mirror in Redis, the session logs."""

from longhouse.integrations.session_log import get_session_logger
from longhouse.memory.service import MemoryMessage, MemoryService

__all__ = ["MemoryMessage", "MemoryService", "get_session_logger"]
