"""Documents over HTTP: uploaded as a form or as the body, listed, shown, deleted; each owner's are the owner's."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import structlog
from attack_helpers import refusal
from key_helpers import Client, admin_of, client_of, keyed

from document_texts import ENGLISH
from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import Say, call
from server_helpers import Serving, content

PATH = "/v1/documents"


async def uploaded(client: Client, text: str | bytes, name: str = "rules.md", query: str = "", **fields: str) -> Any:
    """A file sent as a form: the status, and the answer."""
    form = aiohttp.FormData({**fields})
    form.add_field("file", text.encode() if isinstance(text, str) else text, filename=name)
    async with client.house.http.post(f"{PATH}{query}", data=form, headers=client.headers) as response:
        return response.status, await response.json()


async def sent(client: Client, body: Any, query: str, **headers: str) -> Any:
    """A refused upload of a body that is the file itself: the status, and the error."""
    async with client.house.http.post(f"{PATH}{query}", data=body, headers={**client.headers, **headers}) as response:
        found = await refusal(response)
        return found.status, found.error


async def test_a_document_is_uploaded_shown_replaced_and_deleted(serving: Serving) -> None:
    async with keyed(serving) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        status, made = await uploaded(ann, ENGLISH, "C:\\files\\Safety Rules.md")
        assert status == 201
        assert {key: made[key] for key in ("object", "reg_id", "title", "version", "change", "shared", "pages")} == {
            "object": "document",
            "reg_id": "safety_rules",
            "title": "Safety rules",
            "version": 1,
            "change": "added",
            "shared": False,
            "pages": 1,
        }
        assert (made["filename"], made["format"], made["size"]) == ("Safety Rules.md", "markdown", len(ENGLISH))
        assert made["added_by"] == ann.id
        assert (await uploaded(ann, ENGLISH, "Safety Rules.md"))[0] == 200, "the same bytes again"
        raw = ENGLISH.replace("padlock", "seal").encode()
        async with house.http.post(
            f"{PATH}?filename=x.md&reg_id=safety_rules", data=raw, headers=ann.headers
        ) as response:
            assert response.status == 201
            assert (await response.json())["change"] == "changed"

        shown = await ann.got(f"{PATH}/safety_rules")
        assert [(one["version"], one["filename"]) for one in shown["versions"]] == [(2, "x.md"), (1, "Safety Rules.md")]
        [top] = shown["toc"]
        assert [one["section_number"] for one in top["children"]] == ["1", "2", "3"]
        listed = await ann.got(f"{PATH}?limit=1")
        assert [one["reg_id"] for one in listed["data"]] == ["longhouse"], "what changed last comes first"
        rest = await ann.got(f"{PATH}?limit=1&before={listed['next']}")
        assert ([one["reg_id"] for one in rest["data"]], rest["has_more"]) == (["safety_rules"], False)

        assert [one["reg_id"] for one in (await bob.got(PATH))["data"]] == ["longhouse"]
        for method in ("GET", "DELETE"):
            status, error = await bob.refused(method, f"{PATH}/safety_rules")
            assert (status, error["code"]) == (404, "document_not_found")
        async with ann.ask("DELETE", f"{PATH}/safety_rules") as response:
            assert await response.json() == {"reg_id": "safety_rules", "object": "document.deleted", "deleted": True}
        assert (await ann.refused("GET", f"{PATH}/safety_rules"))[0] == 404
        assert await house.db.value("SELECT count(*) FROM passages WHERE text LIKE '%seal%'") == 0


async def test_the_log_tells_what_became_of_documents_and_no_word_of_them(serving: Serving) -> None:
    text = "# Правила\n\nЗамок висит на воротах.\n\x1b[31m红色\n"
    async with keyed(serving) as house:
        ann = await client_of(house, "ann")
        with structlog.testing.capture_logs() as logs:
            for body in (text, text, text.replace("Замок", "Ключ")):
                assert (await uploaded(ann, body))[0] in (200, 201)
            assert (await uploaded(ann, b"%PDF-1.7 no", "bad.pdf"))[0] == 400
            for status in (200, 404):
                assert await ann.status("DELETE", f"{PATH}/rules") == status
            assert (await uploaded(admin_of(house), ENGLISH, query="?shared=true"))[0] == 201
    told = [one for one in logs if one["event"] in ("document_added", "document_changed", "document_removed")]
    same = {"log_level": "info", "reg_id": "rules", "pages": 1}
    hers, shared = {**same, "owner": "ann", "by": ann.id, "passages": 1}, {**same, "owner": None, "by": "admin"}
    assert told == [
        {"event": "document_added", "version": 1, **hers},
        {"event": "document_changed", "version": 2, **hers},
        {"event": "document_removed", "version": 2, **hers},
        {"event": "document_added", "version": 1, **shared, "passages": told[-1]["passages"]},
    ]
    assert not any(word in repr(logs) for word in ("Замок", "Ключ", "Правила", "红色", "padlock"))


async def test_pages_are_read_as_agents_read_them(serving: Serving) -> None:
    async with keyed(serving) as house:
        ann, bob = await client_of(house, "ann"), await client_of(house, "bob")
        text = "".join(f"## {nth} Rule\n\n{'Wear a hat. ' * 200}\n\n" for nth in range(1, 6))
        _, made = await uploaded(ann, text)
        pages = f"{PATH}/rules/pages"
        first = await ann.got(pages)
        assert (first["start_page"], first["end_page"], first["total_pages"]) == (1, 1, made["pages"])
        assert "Wear a hat." in first["pages"][0]["content"]
        some = await ann.got(f"{pages}?start=2&end=999")
        assert [one["page"] for one in some["pages"]] == list(range(2, some["end_page"] + 1))
        for query, param in (
            ("?start=999", "start"),
            ("?start=3&end=2", "start"),
            ("?start=0", "start"),
            ("?end=x", "end"),
        ):
            status, error = await ann.refused("GET", f"{pages}{query}")
            assert (status, error["param"]) == (400, param), query
        assert (await bob.refused("GET", pages))[0] == 404


async def test_shared_documents_are_the_admins(serving: Serving) -> None:
    """And what one owner added is found by no agent of another."""
    found: list[str] = []

    def look(body: Body) -> Say:
        results = [message.content for message in body.messages if isinstance(message, ToolResult)]
        if not results:
            return call("smart_search", query="What is the switch locked with?", reg_id="rules")
        found.append(results[-1])
        return call("finalanswertool", answer="Done.", status="completed")

    async with keyed(serving, look) as house:
        ann, bob, admin = await client_of(house, "ann"), await client_of(house, "bob"), admin_of(house)
        assert (await uploaded(ann, ENGLISH, query="?shared=true"))[0] == 403
        assert (await ann.refused("DELETE", f"{PATH}/longhouse"))[1]["code"] == "shared_document"
        assert (await ann.refused("DELETE", f"{PATH}/longhouse?shared=true"))[0] == 403
        status, made = await uploaded(admin, ENGLISH, query="?shared=true")
        assert (status, made["shared"]) == (201, True)
        status, made = await uploaded(ann, ENGLISH.replace("padlock", "seal of ann"))
        assert (status, made["shared"]) == (201, False)
        for client, lock in ((ann, "seal of ann"), (bob, "padlock")):
            assert content(await client.say("How is it locked?", model="reader")) == "Done."
            texts = [one["content"] for one in msgspec.json.decode(found[-1])]
            assert lock in texts[0]
            assert sum("seal of ann" in text for text in texts) == (client is ann)
        async with admin.ask("DELETE", f"{PATH}/rules?shared=true") as response:
            assert response.status == 200
        assert (await bob.refused("GET", f"{PATH}/rules"))[0] == 404
        assert (await ann.got(f"{PATH}/rules"))["shared"] is False


async def test_names_in_other_scripts_arrive_in_every_form_that_clients_send(serving: Serving) -> None:
    async with keyed(serving) as house:
        ann = await client_of(house, "ann")
        kind = {"content-type": "multipart/form-data; boundary=x"}
        for name, reg_id in (
            ("filename*=UTF-8''%D0%9F%D1%80%D0%B0%D0%B2%D0%B8%D0%BB%D0%B0.md", "правила"),
            ("filename=\"plain.md\"; filename*=utf-8'zh'%E5%AE%89%E8%A7%84.md", "安规"),
            ('filename="%D1%8F%D0%B7%D1%8B%D0%BA.md"', "язык"),
            ("filename*=UTF-8''..%2Fsecret.md", "secret"),
            ("filename=\"a; filename*=UTF-8''b.md\"", "a_filename_utf_8_b"),
        ):
            part = f'--x\r\nContent-Disposition: form-data; name="file"; {name}\r\n\r\n'
            body = f"{part}{ENGLISH}\r\n--x--\r\n".encode()
            async with house.http.post(PATH, data=body, headers={**ann.headers, **kind}) as response:
                assert response.status == 201, await response.text()
                assert (await response.json())["reg_id"] == reg_id
        bad = b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename*=UTF-8''a%00.md\r\n\r\ntext\r\n--x--\r\n"
        assert (await sent(ann, bad, "", **kind))[0] == 400


async def test_one_owner_keeps_nobody_from_adding_a_file(serving: Serving) -> None:
    async with keyed(serving, documents_max_count=1) as house:
        evil, ann = await client_of(house, "evil"), await client_of(house, "ann")
        released = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield ENGLISH.encode()
            await released.wait()

        async def send() -> tuple[int, Any]:
            sending = house.http.post(f"{PATH}?filename=rules.md", data=slow(), headers=evil.headers)
            async with sending as response:
                return response.status, await response.json()

        sending = [asyncio.create_task(send()) for _ in range(9)]
        [refused], _ = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        status, answer = refused.result()
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert answer["error"]["message"].startswith("8 files are being added for you already")
        assert (await uploaded(ann, ENGLISH))[0] == 201
        released.set()
        done = [status for status, _ in await asyncio.gather(*sending)]
        assert sorted(done) == [200] * 7 + [201, 429]
        assert (await uploaded(evil, f"{ENGLISH}\nMore."))[1]["change"] == "changed", "there is room again"
        status, answer = await uploaded(ann, ENGLISH, "other.md")
        assert (status, answer["error"]["code"]) == (409, "too_many_documents")


async def test_what_cannot_be_added_is_refused_in_one_sentence(serving: Serving) -> None:
    async with keyed(serving, documents_max_bytes=100_000) as house:
        ann = await client_of(house, "ann")
        status, answer = await uploaded(ann, b"%PDF-1.7\nbroken", "broken.pdf")
        assert (status, answer["error"]["code"]) == (400, "invalid_document")
        assert answer["error"]["message"].startswith("broken.pdf ")
        for status, query, body in (
            (413, "?filename=a.md", b"x" * 100_001),
            (400, "?filename=", b"text"),
            (400, "", b"text"),
            (400, "?filename=a.md&reg_id=a/b", b"text"),
            (400, "?filename=a.md&nonsense=1", b"text"),
            (400, "?filename=a.md&shared=yes", b"text"),
            (400, "?filename=a%00.md", b"text"),
            (400, "?filename=a%0a.md", b"text"),
            (400, "?filename=a.md", b""),
        ):
            assert (await sent(ann, body, query))[0] == status, query

        async def endless() -> Any:
            while True:
                yield b"word " * 1_000

        assert (await sent(ann, endless(), "?filename=a.md"))[0] == 413, "an unannounced length is bounded too"
        assert (await uploaded(ann, b"x" * 200_000))[0] == 413
        assert (await uploaded(ann, ENGLISH, other="field"))[1]["error"]["param"] == "other"
        status, error = await sent(ann, b"--x\r\nbroken", "", **{"content-type": "multipart/form-data; boundary=x"})
        assert status == 400, error
        status, error = await sent(ann, b"", "", **{"content-type": "multipart/form-data"})
        assert status == 400, error
        for odd in ("%00", "%2e%2e", "a%2fb", "x" * 300):
            assert (await ann.refused("GET", f"{PATH}/{odd}"))[0] == 404
            assert (await ann.refused("DELETE", f"{PATH}/{odd}"))[0] == 404
        assert await house.db.value("SELECT count(*) FROM documents WHERE owner IS NOT NULL") == 0
