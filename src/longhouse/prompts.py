"""Prompts as people keep them: a text in place, or a file; the text wins."""

from pathlib import Path

from longhouse.agents.template import PromptPack
from longhouse.errors import SetupError

KINDS = ("system_prompt", "initial_user_request", "clarification_response")


def read_prompts(folder: Path = Path(), **given: str | None) -> PromptPack:
    """A pack from `system_prompt_str`, `system_prompt_file` and the like; what is not given keeps its default."""
    known = {f"{kind}_{form}" for kind in KINDS for form in ("str", "file")}
    if unknown := sorted(set(given) - known):
        raise SetupError(f"There is no prompt {', '.join(unknown)}; known: {', '.join(sorted(known))}.")
    texts = {kind: _text(folder, given.get(f"{kind}_str"), given.get(f"{kind}_file")) for kind in KINDS}
    return PromptPack(**{kind: text for kind, text in texts.items() if text is not None})


def _text(folder: Path, text: str | None, file: str | None) -> str | None:
    if text is not None or file is None:
        return text
    try:
        return (folder / file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The prompt file {file} cannot be read: {error}.") from error
