"""What is remembered elsewhere: histories that a caller keeps, the mirror in Redis, the session logs."""

from longhouse.memory.service import MemoryMessage, MemoryService
from longhouse.memory.session_log import get_session_logger

__all__ = ["MemoryMessage", "MemoryService", "get_session_logger"]
