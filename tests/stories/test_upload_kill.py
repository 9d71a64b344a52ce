"""A server that is killed while it takes an upload leaves nothing of the file behind."""

import asyncio
import os
from pathlib import Path

import asyncpg
import pytest

from document_texts import CHINESE
from longhouse.store.database import Database
from server_helpers import launched

FORM = {"content-type": "multipart/form-data; boundary=x"}
BODY = f'--x\r\nContent-Disposition: form-data; name="file"; filename="b.md"\r\n\r\n{CHINESE}\r\n--x--\r\n'.encode()


async def test_a_killed_upload_leaves_no_file_and_can_be_sent_again(
    dsn: str, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    holder = await asyncpg.connect(dsn)
    async with launched("longhouse", "serve", "--port", "0", database_url=dsn) as killed:
        async with killed.http.get("/v1/documents") as response:
            assert response.status == 200, "the document that comes along is added already"
        async with holder.transaction():
            # A file that was read has to wait here, and its upload with it.
            await holder.execute("LOCK TABLE longhouse.passages IN ACCESS EXCLUSIVE MODE")
            sending = [
                asyncio.create_task(_sent(killed.http.post("/v1/documents?filename=a.md&shared=true", data=CHINESE))),
                asyncio.create_task(_sent(killed.http.post("/v1/documents", data=BODY, headers=FORM))),
            ]
            async with asyncio.timeout(30):
                while await db.value("SELECT count(*) FROM pg_locks WHERE NOT granted") < len(sending):
                    await asyncio.sleep(0.02)
            assert os.listdir(tmp_path) == [], "what is uploaded has no name"
            killed.kill()
            await killed.ended()
            await asyncio.gather(*sending, return_exceptions=True)
    await holder.close()
    assert os.listdir(tmp_path) == []
    async with launched("longhouse", "serve", "--port", "0", database_url=dsn) as house:
        assert await _sent(house.http.post("/v1/documents", data=BODY, headers=FORM)) == 201
    assert await db.value("SELECT array_agg(reg_id::text ORDER BY reg_id) FROM documents") == ["b", "longhouse"]


async def _sent(request: object) -> int:
    async with request as response:  # type: ignore[attr-defined]
        return int(response.status)
