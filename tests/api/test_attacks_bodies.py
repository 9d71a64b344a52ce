"""Bodies that no honest client sends. Each is a 400 that names the field, and nothing of it is recorded."""

import io
import json
from typing import Any

import msgspec
import pydantic
import pytest
from attack_helpers import CHAT, ask, canary, chat, leaves_no_trace, refusal, refused

from longhouse.api import wire
from longhouse.api.sessions.routes import Answer
from longhouse.api.sgr.routes import Clarifications
from server_helpers import AGENT, Serving


async def test_what_is_no_json_object_is_refused(serving: Serving) -> None:
    bodies = [
        b"", b" ", b"{", b"}", b"[]", b"null", b'"x"', b"7", b"NaN", b"-Infinity", b"\xff\xfe{}", b"\x00",
        '{"model": "é"}'.encode("latin-1"), '{"model": "x"}'.encode("utf-16"), b"\xef\xbb\xbf{}", b"{'model': 'x'}",
        b'{"model": "x",}', b'{"model": "x"} {"model": "y"}', b'{"model": "a\nb"}', b'{"a": 1} // comment',
    ]  # fmt: skip
    async with serving() as house, leaves_no_trace(house):
        for body in bodies:
            assert (await refused(house, body)).status == 400, body
        for path in ("/v1/sessions/x/clarification", "/v1/sessions/x/approval", "/agents/x/provide_clarification"):
            for body in bodies:
                assert (await refused(house, body, path)).status == 400, (path, body)


async def test_numbers_that_json_does_not_have_are_refused_wherever_they_hide(serving: Serving) -> None:
    fields = [
        b'"temperature": NaN', b'"temperature": Infinity', b'"unknown": NaN', b'"unknown": [{"deep": -Infinity}]',
        b'"metadata": NaN', b'"response_format": {"type": "json_object", "x": NaN}', b'"seed": NaN',
        b'"response_format": {"type": "json_object", "x": 1e999}', b'"temperature": 1e999', b'"tools": [NaN]',
    ]  # fmt: skip
    async with serving() as house, leaves_no_trace(house):
        for field in fields:
            body = b'{"model": "%b", "messages": [{"role": "user", "content": "hi"}], %b}' % (AGENT.encode(), field)
            assert (await refused(house, body)).status == 400, field
        ours = b'{"answer": "NaN is a word", "call_id": NaN}'
        assert (await refused(house, ours, "/v1/sessions/x/clarification")).status == 400


async def test_words_that_only_look_like_such_numbers_are_fine(serving: Serving) -> None:
    async with serving(ask) as house:
        answer = await house.say("What do NaN and Infinity mean? And \\u0000?", unknown="NaN")
        assert answer["choices"][0]["message"]["content"] == "Which city?"


async def test_nul_and_lone_surrogates_are_refused_in_every_field(serving: Serving) -> None:
    places = [
        b'"messages": [{"role": "user", "content": "a%b"}]',
        b'"messages": [{"role": "user", "content": [{"type": "text", "text": "a%b"}]}]',
        b'"messages": [{"role": "system", "content": "a%b"}, {"role": "user", "content": "hi"}]',
        b'"messages": [{"role": "assistant",'
        b' "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "%b"}}]},'
        b' {"role": "tool", "tool_call_id": "1", "content": "x"}, {"role": "user", "content": "hi"}]',
        b'"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "%b"}}]},'
        b' {"role": "tool", "tool_call_id": "1", "content": "x"}, {"role": "user", "content": "hi"}]',
        b'"metadata": {"k": "a%b"}', b'"metadata": {"a%b": "v"}', b'"user": "a%b"', b'"model": "a%b"',
        b'"chat_id": "a%b"',
        b'"response_format": {"type": "json_object", "a%b": 1}', b'"response_format": {"a": ["%b"]}', b'"stop": ["%b"]',
        b'"custom_system_prompt": "%b"', b'"tools": [{"type": "function", "function": {"name": "%b"}}]',
        b'"unknown": "%b"',
    ]  # fmt: skip
    whole = b'"model": "tool_calling_agent", "messages": [{"role": "user", "content": "hi"}], '
    async with serving() as house, leaves_no_trace(house):
        for poison in (b"\\u0000", b"\\ud800", b"\\udc00", b"\\udc00\\ud800"):
            for place in places:
                assert (await refused(house, b"{" + whole + place % poison + b"}")).status == 400, (poison, place)
            ours = b'{"answer": "%b"}' % poison
            assert (await refused(house, ours, "/v1/sessions/x/clarification")).status == 400
            ours = b'{"clarifications": ["%b"]}' % poison
            assert (await refused(house, ours, "/agents/x/provide_clarification")).status == 400


async def test_an_escaped_backslash_before_u0000_is_only_text(serving: Serving) -> None:
    async with serving(ask) as house:
        answer = await house.say("the escape \\u0000 and \\ud800, written out")
        assert (await house.session(answer["model"]))["task"] == "the escape \\u0000 and \\ud800, written out"


async def test_deep_and_long_bodies_are_refused_without_an_echo(serving: Serving) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    objects = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    async with serving() as house, leaves_no_trace(house):
        for nested in (deep, objects):
            for body in (nested, b'{"model": "x", "messages": [], "unknown": %b}' % nested):
                assert (await refused(house, body)).status == 400
            assert (await refused(house, b'{"answer": %b}' % nested, "/v1/sessions/x/clarification")).status == 400
        for model in ("m" * 1_000_000, f"{AGENT}@{'1' * 400}", "m" * 512):
            assert "mmm" * 50 not in str(await refused(house, chat(model=model)))
        assert (await refused(house, chat(messages=[{"role": "r" * 1_000_000, "content": "hi"}]))).status == 400
        assert (await refused(house, chat(seed=int("9" * 4_000)))).param == "seed"
        assert (await refused(house, b'{"model": "x", "seed": %b}' % (b"9" * 100_000))).status == 400


async def test_a_hundred_thousand_bad_items_are_one_complaint(serving: Serving) -> None:
    """A complaint about each would cost the server its memory, and half a minute in which it answers nobody."""
    zeros, fields = [0] * 100_000, {f"k{n}": 7 for n in range(100_000)}
    empty = {"role": "user", "content": ""}
    clarification, old = "/v1/sessions/x/clarification", "/agents/x/provide_clarification"
    attacks: list[tuple[type[wire.StrictModel | wire.ChatRequest], str, Any, str | None]] = [
        (wire.ChatRequest, CHAT, chat(messages=zeros), "messages[0]"),
        (wire.ChatRequest, CHAT, chat(messages=[{"role": "user", "content": zeros}]), "messages[0].content[0]"),
        (wire.ChatRequest, CHAT, chat(messages=[{"role": "user", "tool_calls": zeros}]), "messages[0].tool_calls[0]"),
        (wire.ChatRequest, CHAT, chat(messages=[empty] * 30_000), "messages"),
        (wire.ChatRequest, CHAT, chat(stop=zeros), "stop[0]"),
        (wire.ChatRequest, CHAT, chat(metadata=fields), "metadata"),
        (Answer, clarification, {"answer": "x", **fields}, None),
        (Clarifications, old, {"clarifications": zeros}, "clarifications[0]"),
        (Clarifications, old, {"messages": zeros}, "messages[0]"),
    ]
    async with serving() as house, leaves_no_trace(house):
        for model, path, body, param in attacks:
            with pytest.raises(pydantic.ValidationError) as complaints:
                model.model_validate_json(msgspec.json.encode(body))
            assert complaints.value.error_count() <= 2, "one for each branch of a union"
            found = await refused(house, body, path)
            assert (found.status, found.param) == (400, param)


async def test_so_many_parts_and_calls_are_refused_before_they_are_read(serving: Serving) -> None:
    part, called = {"type": "text", "text": ""}, {"id": "c", "function": {"name": "f", "arguments": ""}}
    one = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ""}]}
    async with serving() as house, leaves_no_trace(house):
        for path, body in (
            (CHAT, chat(messages=[{"role": "user", "content": [part] * 60_000}])),
            (CHAT, chat(messages=[{"role": "assistant", "tool_calls": [called] * 30_000}])),
            ("/v1/responses", {"model": AGENT, "input": [one] * 30_000}),
            (CHAT, chat(context=[{"role": "user", "content": [part] * 60_000}])),
            (CHAT, chat(tool_choice={"type": "allowed_tools", "allowed_tools": {"tools": [part] * 60_000}})),
            ("/admin/tools", {"name": "t", "tags": [part] * 60_000}),
        ):
            for written in (msgspec.json.encode(body), json.dumps(body, indent=1).encode()):
                assert "more than 50,000 objects" in str(await refused(house, written, path))
        named = b'{"x":"\\\\"' + b',"":1' * 300_000
        for written in (b"[" + b"[]," * 60_000 + b"1]", b"[" + b"1," * 300_000 + b"1]", named):
            assert "more than 50,000 objects" in str(await refused(house, written, CHAT))
    async with serving() as house:
        text = '{"a": {"b": [{}, [\\]}, ,,, {["' * 100_000
        sent = io.BytesIO(msgspec.json.encode(chat(messages=[{"role": "user", "content": text}])))
        async with house.http.post(CHAT, data=sent, headers={"content-type": "application/json"}) as response:
            assert response.status == 200, "braces in a text are text"


async def test_only_json_from_no_foreign_page_is_read(serving: Serving) -> None:
    posts = [CHAT, "/v1/sessions/x/clarification", "/v1/sessions/x/approval", "/agents/x/provide_clarification"]
    kinds = ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", "text/json", ""]
    async with serving(ask) as house, leaves_no_trace(house):
        evil = {"origin": "https://evil.example"}
        for path in posts:
            for kind in kinds:
                assert (await refused(house, chat(), path, {"content-type": kind})).status == 415, (path, kind)
                assert (await refused(house, chat(), path, {"content-type": kind, **evil})).status == 403, (path, kind)
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type", **evil}
        for path in (*posts, "/v1/models", "/v1/sessions"):
            async with house.http.options(path, headers=asked) as response:
                assert (await refusal(response)).status == 405
                assert not [name for name in response.headers if name.lower().startswith("access-control")]
                assert response.headers["allow"]
        async with house.http.get("/v1/models", headers=evil) as response:
            assert "access-control-allow-origin" not in response.headers


MESSAGES: list[tuple[Any, str]] = [
    ("hi", "messages"),
    ([], "messages"),
    (None, "messages"),
    ([7], "messages[0]"),
    (["hi"], "messages[0]"),
    ([None], "messages[0]"),
    ([{"content": "hi"}], "messages[0].role"),
    ([{"role": "wizard", "content": "hi"}], "messages[0].role"),
    ([{"role": ["user"], "content": "hi"}], "messages[0].role"),
    ([{"role": "user", "content": 7}], "messages[0].content"),
    ([{"role": "user", "content": {"text": "hi"}}], "messages[0].content"),
    ([{"role": "user", "content": [7]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text", "text": 7}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "video", "video": "x"}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": "a"}, {"role": "user", "content": True}], "messages[1].content"),
    ([{"role": "tool", "tool_call_id": "1", "content": "x"}, {"role": "user", "content": "a"}], "messages[0]"),
    ([{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "9", "content": "x"}], "messages[1]"),
    ([{"role": "tool", "content": "x"}, {"role": "user", "content": "hi"}], "messages[0]"),
    ([{"role": "assistant", "tool_calls": 7}, {"role": "user", "content": "hi"}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [7]}], "messages[0].tool_calls[0]"),
    ([{"role": "assistant", "content": "hi"}], "messages"),
    ([{"role": "system", "content": "hi"}], "messages"),
]
VALUES: list[tuple[str, Any]] = [
    ("model", None), ("model", 7), ("model", ""), ("model", ["x"]), ("temperature", 99), ("temperature", -1),
    ("temperature", "hot"), ("temperature", True), ("top_p", 2), ("n", 10_000), ("n", 0), ("n", True), ("n", "1"),
    ("max_tokens", -1), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", 2**40), ("max_completion_tokens", -1),
    ("stream", "yes"), ("stream", 1), ("seed", 2**70), ("seed", "x"), ("stop", 7), ("response_format", "json"),
    ("user", 7), ("user", "u" * 513), ("metadata", "x"), ("metadata", [1]), ("stream_options", 7), ("tools", "x"),
    ("custom_system_prompt", 7), ("metadata", {str(n): "v" for n in range(17)}),
]  # fmt: skip


async def test_messages_and_values_out_of_their_shape_are_refused_by_name(serving: Serving) -> None:
    async with serving() as house, leaves_no_trace(house):
        for messages, param in MESSAGES:
            found = await refused(house, chat(messages=messages))
            assert (found.status, found.param) == (400, param), messages
        for name, value in VALUES:
            found = await refused(house, chat(**{name: value}))
            assert (found.status, found.param) == (400, name), (name, value)
        assert (await refused(house, chat(metadata={"k": "v" * 513}))).param == "metadata.k"
        assert (await refused(house, chat(metadata={"k": 7}))).param == "metadata.k"
        for usage in ("false", "no", 1, 0, [True]):
            found = await refused(house, chat(stream=True, stream_options={"include_usage": usage}))
            assert (found.status, found.param) == (400, "stream_options.include_usage"), usage
        assert (await refused(house, {"messages": []})).param == "model"
        assert (await refused(house, {})).param == "model"


async def test_an_endpoint_or_a_key_in_the_body_is_ignored(serving: Serving) -> None:
    async with canary() as listener, serving(ask) as house:
        names = ("api_base", "base_url", "llm_base_url", "api_url", "endpoint", "proxy", "webhook", "callback_url")
        extra: dict[str, Any] = dict.fromkeys(names, f"{listener.url}/v1")
        extra |= {"api_key": "sk-evil", "extra_headers": {"authorization": "Bearer sk-evil"}, "llm": dict(extra)}
        answer = await house.say("hi", **extra, headers={"x-api-base": listener.url})
        assert answer["choices"][0]["message"]["content"] == "Which city?"
        assert listener.calls == 0
        assert house.model is not None
        assert house.model.headers[-1]["authorization"] == "Bearer sk-test-canary"
        assert "sk-evil" not in str(house.model.requests) + str(house.model.headers)
        assert "sk-evil" not in str(await house.journal(answer["model"]))


async def test_addresses_of_images_are_refused_and_never_fetched(serving: Serving) -> None:
    async with canary() as listener, serving(ask) as house, leaves_no_trace(house):
        good = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        urls = [
            "file:///etc/passwd", "http://169.254.169.254/latest/meta-data/", f"{listener.url}/x.png", "//evil/x",
            "HTTP://127.0.0.1/x", "ftp://x/y", "gopher://127.0.0.1:6379/_x", "/etc/passwd", "", "data:image/png,x",
            "data:text/html;base64,PGI+", "data:image/png;base64,***", "data:image/png;base64,é", "javascript:alert(1)",
            f" {listener.url}", "longhouse-file:" + "0" * 64, f"data:image/png;base64,x\n{listener.url}",
        ]  # fmt: skip
        for url in urls:
            bad = {"type": "image_url", "image_url": {"url": url}}
            found = await refused(house, chat(messages=[{"role": "user", "content": [good, bad]}]))
            assert (found.status, found.param) == (400, "messages[0].content[1].image_url.url"), url
        for role in ("system", "assistant", "user"):
            history = [{"role": role, "content": [bad]}, {"role": "user", "content": "hi"}]
            assert (await refused(house, chat(messages=history))).param == "messages[0].content[0].image_url.url"
        shape = [{"role": "user", "content": [{"type": "image_url", "image_url": listener.url}]}]
        assert (await refused(house, chat(messages=shape))).param == "messages[0].content[0].image_url"
        assert listener.calls == 0


async def test_ids_that_clients_choose_are_plain(serving: Serving) -> None:
    ids = [
        "a/b",
        ".",
        "..",
        "../../etc/passwd",
        "a\\b",
        "a b",
        "é",
        "x" * 129,
        "x" * 4_096,
        "a\tb",
        "%2e%2e%2f",
        "{id}",
        "*",
    ]
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
    async with serving() as house, leaves_no_trace(house):
        for name in ids:
            found = await refused(house, chat(chat_id=name, messages=[{"role": "user", "content": image}]))
            assert (found.status, found.param) == (400, "chat_id"), name
            if len(name) <= 512:
                found = await refused(house, chat(metadata={"conversation_id": name}))
                assert (found.status, found.param) == (400, "metadata.conversation_id"), name
            header = {"x-conversation-id": name.encode().decode("latin-1")}
            assert (await refused(house, chat(), headers=header)).param == "X-Conversation-Id", name
            header = {"x-openwebui-chat-id": name.encode().decode("latin-1")}
            assert (await refused(house, chat(), headers=header)).param == "X-OpenWebUI-Chat-Id", name
            assert (await refused(house, chat(model=name))).status in (400, 404), name
            async with house.http.get("/v1/sessions", params={"conversation_id": name}) as response:
                assert (await refusal(response)).param == "conversation_id", name
        for chat_id in ("", 10**200, 1.5, True, ["x"]):
            assert (await refused(house, chat(chat_id=chat_id))).param == "chat_id", chat_id
        assert (await refused(house, chat(metadata={"conversation_id": ""}))).param == "metadata.conversation_id"
        for key in ("", "k" * 10_000, "é"):
            found = await refused(house, chat(), headers={"idempotency-key": key})
            assert found.param == "Idempotency-Key", key
