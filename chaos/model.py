"""The model of the chaos test: what it replies follows from the request alone, unless the nemesis lets it fail."""

import re
import zlib
from typing import Final

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Cut, Fault, Hang, Say, ScriptedStatus, call, calls, say, step_of

HELPER: Final = "chaos_helper"
TASK: Final = re.compile(r"(?P<token>m-\w+) (?P<verb>say|do|ask|delegate|dwell|answer)(?P<plan>[\w +/]*)")
FAULTS: Final[dict[str, Fault]] = {
    "status": ScriptedStatus(),
    "hang": Hang(seconds=3.0),
    "truncated": Cut(after=2),
}


class Model:
    """Plays the task that a prompt names: `m-7 do read+once / read` calls two tools, then one, then answers."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        """What happens to every reply now."""

    def reply(self, body: Body) -> Say:
        prompt = next(text_of(one.content) for one in reversed(body.messages) if isinstance(one, User))
        found, step = TASK.search(prompt), step_of(body.messages)
        if found is None:
            return say("I do not know this task.")
        reply = _played(found["token"], found["verb"], found["plan"].strip(), step)
        pause = 0.08 if found["verb"] == "dwell" else 0.005 + zlib.crc32(f"{found['token']}{step}".encode()) % 50 / 1000
        return Say(calls=reply.calls, text=reply.text, chunk=16, delay=pause, fault=self.fault)


def _played(token: str, verb: str, plan: str, step: int) -> Say:
    match verb:
        case "do" if step < len(steps := plan.split("/")):
            effects = enumerate(steps[step].split("+"))
            return calls(*(call(f"ledger_{one.strip()}", note=f"{token} {step} {nth}") for nth, one in effects))
        case "ask" if step == 0:
            return call("clarificationtool", questions=[f"What about {token}?"])
        case "delegate" if step == 0:
            return call(f"agent_{HELPER}", task=f"{token}h do {plan}")
        case "dwell":
            return say(f"{token} " + "and so on " * 60)
        case "say":
            return say(f"This is my answer to {token}, in plain words.")
    return call("finalanswertool", answer=f"{token} is done.")
