"""Codes of faults that say nothing about the tool: the call was not made, or people and ends of turns ended it."""

from typing import Final

UNTIMELY: Final = frozenset({
    "answer_format", "answered", "cut_off", "delegate_first", "no_more_calls", "no_more_questions", "no_more_searches",
    "not_offered", "one_at_a_time", "reason_first", "too_many_agents", "too_many_calls",
})  # fmt: skip
"""Refusal codes that are not the tool's fault: it did not run, and the same call may be allowed later."""
UNMADE: Final = UNTIMELY | {"bad_arguments"}
"""Codes of calls that were refused as the model wrote them."""
REFUSED: Final = UNMADE | {
    "cycle", "not_allowed", "rate_limited", "too_deep", "unknown_agent", "unknown_handle", "unknown_tool",
}  # fmt: skip
"""Codes of calls that a model requested and that were not made."""
ENDED: Final = frozenset({"abandoned", "cancelled", "denied", "forgotten", "given_up", "not_run"})
"""Codes of calls that a person ended, or the end of a turn."""
BLAMELESS: Final = UNMADE | ENDED
"""Codes of calls that do not count as failures of their tool."""
