"""The letter tool: keeps a letter as a file of the session once a person agreed. Also an example of an approval."""

import hashlib
from typing import Any, ClassVar

from pydantic import Field

from longhouse.journal.events import Effect
from longhouse.journal.messages import clean
from longhouse.tools.base import BaseTool
from longhouse.tools.context import MadeFile, ToolContext


class LetterTool(BaseTool):
    """Write a letter, which is kept as a file. A person reads and approves it first."""

    effect: ClassVar[Effect] = "idempotent"
    needs_approval: ClassVar[bool] = True

    to: str = Field(min_length=1, max_length=300, description="Who the letter is for")
    subject: str = Field(min_length=1, max_length=300, description="What it is about, in a few words")
    text: str = Field(min_length=1, description="The letter itself, in the language of its reader")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        heads = [f"{name}: {' '.join(clean(value).split())}" for name, value in (("To", self.to), ("Re", self.subject))]
        content = "\n".join([*heads, "", clean(self.text).strip(), ""])
        # The same name for every attempt: a retry writes the same letter.
        path = f"letters/{hashlib.sha256(context.key.encode()).hexdigest()[:8]}.txt"
        context.made.append(MadeFile(path=path, content=content.encode(), media_type="text/plain"))
        return f"The letter is kept as {path}."
