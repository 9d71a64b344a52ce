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
        reply = self._reply(body)
        return Say(calls=reply.calls, text=reply.text, chunk=16, delay=reply.delay, fault=self.fault)

    def _reply(self, body: Body) -> Say:
        prompt = next(text_of(one.content) for one in reversed(body.messages) if isinstance(one, User))
        found, step = TASK.search(prompt), step_of(body.messages)
        if found is None:
            return say("I do not know this task.")
        token, verb, plan = found["token"], found["verb"], found["plan"].strip()
        delay = 0.005 + (zlib.crc32(f"{token}{step}".encode()) % 50) / 1000
        match verb:
            case "do" if step < len(steps := plan.split("/")):
                effects = steps[step].split("+")
                made = (
                    call(f"ledger_{effect.strip()}", note=f"{token} {step} {number}")
                    for number, effect in enumerate(effects)
                )
                return _slow(calls(*made), delay)
            case "ask" if step == 0:
                return _slow(call("clarificationtool", questions=[f"What about {token}?"]), delay)
            case "delegate" if step == 0:
                return _slow(call(f"agent_{HELPER}", task=f"{token}h do {plan}"), delay)
            case "dwell":
                return say(f"{token} " + "and so on " * 60, delay=0.08)
            case "say":
                return say(f"This is my answer to {token}, in plain words.", delay=delay)
        return _slow(call("finalanswertool", answer=f"{token} is done."), delay)


def _slow(reply: Say, delay: float) -> Say:
    return Say(calls=reply.calls, delay=delay)
