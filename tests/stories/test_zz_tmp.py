import asyncio, sys
sys.path.insert(0,'/work/main/tests')
from longhouse.agents.template import *
from longhouse.models.scripted import call, say
import pytest
from support import *
MASTER = Template(name="master", tool_policy=ToolPolicy(allowlist=("agent.analytic","finalanswertool")))
ANALYTIC = Template(name="analytic", tool_policy=ToolPolicy(allowlist=("finalanswertool",)))
async def test_x(serving):
    script=[call("agent_analytic", task="пользователя зовут Алия"), call("finalanswertool", answer="Запомнил"),
            call("agent_analytic", task="как зовут пользователя?"), call("finalanswertool", answer="Вас зовут Алия"),
            call("finalanswertool", answer="Алия")]
    async with serving(script, templates=[MASTER, ANALYTIC]) as house:
        r = await house.say("Скажи подагенту", model="master")
        print(r)
        rows = await house.db.rows("select session_id, seq, kind, call_id, reply_to from journal order by at, session_id, seq")
        for x in rows: print(tuple(x))
        async with house.http.get("/v1/sessions") as resp: print(await resp.json())
        assert 0
