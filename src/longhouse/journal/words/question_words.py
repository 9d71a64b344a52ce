"""The words and the names of open questions, wherever they are shown."""

from longhouse.journal.session import QuestionKind, own_label
from longhouse.journal.words.pending_decisions import happened, took_workers
from longhouse.journal.words.visible_text import readable


def text_of(kind: QuestionKind | None, tool: str, question: str, *, doubt: str) -> str:
    """What a person is asked about a call."""
    if question:
        return question
    if kind == "client":
        return f"The client runs {tool}, and has not sent its result yet."
    if kind == "worker_lost":
        return took_workers(tool)
    return f"May {tool} run?" if kind == "approval" else happened(tool, readable(doubt))


def subagent_label(agent: str, label: str, call: str) -> str:
    """The name of a sub-agent's call in the top session."""
    return f"{asker(agent, label)}/{call}"


def asker(agent: str, label: str) -> str:
    """The agent's name with the label of its session: one agent may have several. Labels: letters, digits, . _ : @ -"""
    label = own_label(label)
    return f"{agent}:{label}" if label else agent
