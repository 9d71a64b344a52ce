"""The model of the benchmarks: ten steps at zero latency, then an answer that tells when it was written."""

import asyncio
import time

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import Assistant, ToolResult, User, text_of
from longhouse.models.scripted import Say, call, say, step_of
from longhouse.models.scripted_server import serve

STEPS = 10
CHUNKS = 4_000
TALK, PAUSE = 50, 0.02
"""Chunks of an answer in plain text, and seconds before each: it takes a second to write."""
ASKS, HELPS = "You ask another agent.", "You help another agent."
"""What the system prompts of two agents begin with, one of which calls the other."""
THOUGHT = {
    "reasoning_steps": ["Look at the clock.", "Then answer."],
    "current_situation": "The time is not known yet.",
    "plan_status": "as planned",
    "enough_data": False,
    "remaining_steps": ["look at the clock", "answer"],
    "task_completed": False,
}

AT_ONCE = {
    "plain": say("It will rain on Sunday, and again on Tuesday and Wednesday, says the forecast. " * 5),
    "ask": call("clarificationtool", questions=["Which city?"]),
}
"""Tasks with one reply, which ends the turn or asks a person."""


def reply(body: Body) -> Say:
    """Nine uses of a tool, then the answer; its first word is the moment at which it was written."""
    role = text_of(body.messages[0].content)
    if role.startswith((ASKS, HELPS)):
        return delegated(body)
    task = next(text_of(one.content) for one in reversed(body.messages) if isinstance(one, User))
    if task == "stream":
        return say(f"{time.monotonic_ns()} " + "a word or two, twenty." * CHUNKS, chunk=22, delay=1e-9)
    if task == "talk":
        begins = time.monotonic_ns() + int(PAUSE * 1e9)  # a pause comes before the first chunk, too
        return Say(text=f"{begins} " + "a word or two, twenty." * TALK, chunk=22, delay=PAUSE)
    if task in AT_ONCE:
        return AT_ONCE[task]
    return _stepwise(body, 3 if task == "three tools" else STEPS - 1)


def _stepwise(body: Body, uses: int) -> Say:
    """So many uses of a tool, then the answer."""
    if isinstance(body.tool_choice, dict):
        return call("reasoningtool", **THOUGHT)
    if _step(body) < uses:
        return call("clocktool", timezone="UTC")
    answer = call("finalanswertool", answer=f"{time.monotonic_ns()} " + "and so it was. " * 10)
    return Say(calls=answer.calls, chunk=40)


def delegated(body: Body) -> Say:
    """A call with the moment at which it was made; what it took; and the same on the way back."""
    now, last = time.monotonic_ns(), body.messages[-1]
    if isinstance(last, ToolResult):
        there, answered = last.content.split()
        return call("finalanswertool", answer=f"{there} {now - int(answered)}")
    said = text_of(last.content)
    if said.isdecimal():
        return call("finalanswertool", answer=f"{now - int(said)} {time.monotonic_ns()}")
    return call("agent_bench_helper", task=f"{time.monotonic_ns()}")


def _step(body: Body) -> int:
    """How many steps are done; where the agent thinks first, each has two replies."""
    last = next((one for one in reversed(body.messages) if isinstance(one, Assistant)), None)
    has_thought = bool(last and last.tool_calls and last.tool_calls[0].function.name == "reasoningtool")
    return step_of(body.messages) // (2 if has_thought else 1)


async def main() -> None:
    async with serve(reply, remember=False) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
