"""The prompts of a section: a text in place, or a file beside the YAML file; the text wins."""

from pathlib import Path
from typing import Final

from longhouse.files.mistakes import Mistakes, checked
from longhouse.files.nodes import Node
from longhouse.files.shapes import Prompts

KINDS: Final = ("system_prompt", "initial_user_request", "clarification_response")
LARGEST: Final = 400_000
"""Bytes of a prompt file; a prompt has 100,000 characters at most."""


def prompt_pack(section: Node, mistakes: Mistakes) -> Node:
    """The section as the fields of a prompt pack."""
    if checked(Prompts, section, mistakes) is None:
        return Node({}, section.spot)
    found: dict[str, Node] = {}
    for kind in KINDS:
        text, file = section.get(f"{kind}_str"), section.get(f"{kind}_file")
        if text and text.value is not None:
            found[kind] = text
        elif file and file.value is not None and (read := _read(file, mistakes)):
            found[kind] = read
    return Node(found, section.spot)


def _read(file: Node, mistakes: Mistakes) -> Node | None:
    """The file's text. It lies in the folder of the YAML file, or beneath it: prompts are published."""
    folder = file.spot.file.absolute().parent.resolve()
    try:
        path = (folder / file.value).resolve()
        if Path(file.value).is_absolute() or not path.is_relative_to(folder):
            mistakes.add(file.spot, f"should be a file in the folder of {file.spot.file.name}, or beneath it")
            return None
        if not path.is_file():
            mistakes.add(file.spot, "names a file that is not there")
            return None
        with path.open("rb") as opened:
            content = opened.read(LARGEST + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = "it is not text in UTF-8" if isinstance(error, ValueError) else error.strerror
        mistakes.add(file.spot, f"names a file that cannot be read: {why}")
        return None
    if len(content) > LARGEST or "\x00" in text:
        mistakes.add(file.spot, "names a file that is no prompt: it is too long, or not text")
        return None
    return Node(text, file.spot)
