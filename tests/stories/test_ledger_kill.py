"""The ledger after kill -9, on the command line too: what the process had not told yet is told by the next."""

from pathlib import Path

from delegating_server import answer, ask, cast, cast_house, in_steps
from ledger_helpers import listed
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import launched_words

ROLES = {
    "master": in_steps(ask("ann", "Say hello"), answer("Hello")),
    "ann": in_steps(answer("Hello, I am \x1b[31mAnn")),
}
TALK = [("user", "Begin"), ("master", "Say hello"), ("ann", "Hello, I am \x1b[31mAnn"), ("master", "Hello")]


async def test_what_a_killed_process_had_not_told_is_told_by_the_next(folder: Path) -> None:
    """Elsewhere, records that waited in a queue of the process were lost when it ended."""
    async with serve_model(cast(**ROLES)) as model:
        settings = {"data_dir": str(folder), "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with cast_house(**settings) as first:
            await first.say("Begin", model="master", chat_id=12345)
            first.kill()
            await first.ended()
        async with cast_house(**settings) as second:
            records = await listed(second)
            talk = [one for one in records if {one["source_type"], one["target_type"]} <= {"user", "agent"}]
            assert [(one["source"], one["content"]) for one in reversed(talk)] == TALK
            trace = records[0]["trace_id"]
            code, said = await launched_words("sessions", "story", trace, data_dir=str(folder))
            assert (code, len(said.splitlines())) == (0, len(records)), said
            lines = [line for line in said.splitlines() if "gpt-4o-mini" not in line and "tool" not in line]
            assert [line.split("  ")[1] for line in lines] == [
                "user → master", "master → ann", "ann → master", "master → user",
            ]  # fmt: skip
            assert "\x1b" not in said
            code, said = await launched_words("ledger", "rebuild", data_dir=str(folder))
            assert (code, said.splitlines()[-1]) == (0, "2 sessions told")
            assert await listed(second) == records
            code, said = await launched_words("sessions", "story", "nothing", data_dir=str(folder))
            assert (code, said.count("\n")) == (1, 1)
