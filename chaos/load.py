"""The load: sessions of five kinds, by clients that retry as theirs do, and by followers that resume."""

import asyncio
import random
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import httpx2
import msgspec
from openai import APIError, APIStatusError, AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from chaos.history import Answered, Driver, History, Message, Streamed
from chaos.house import BOSS, SECRETS, WORKER, House

MIX: Final[Mapping[str, float]] = {
    "plain": 0.40,
    "tools": 0.30,
    "clarification": 0.15,
    "subagent": 0.10,
    "cancel": 0.05,
}
DRIVERS: Final[tuple[Driver, ...]] = ("retrying", "retrying", "keyed", "keyed", "bare")
EFFECTS: Final = ("read", "idempotent", "once")
TOKEN: Final = "x-chaos-message"
"""The header that tells the harness which message a response belongs to."""
RESTING: Final = ("COMPLETED", "FAILED", "CANCELLED", "WAITING_FOR_CLARIFICATION", "WAITING_FOR_APPROVAL")
MOST_READING: Final = 64
"""So many followers read at once: more would be most of the load in a long run."""
PATIENCE: Final = 60.0
"""Seconds that a client waits for its session to rest before it goes away."""
TROUBLE: Final = (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError)
CANARIES: Final = tuple(secret.encode() for secret in SECRETS.values())


class _AnyGateway(httpx2.AsyncBaseTransport):
    """Sends each request, and each of its retries, to a gateway that is there."""

    def __init__(self, house: House, chooser: random.Random) -> None:
        self._house, self._chooser = house, chooser
        self._inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = httpx2.URL(self._house.url(self._chooser))
        request.url = request.url.copy_with(host=url.host, port=url.port)
        request.headers["host"] = f"{url.host}:{url.port}"
        try:
            return await self._inner.handle_async_request(request)
        except AttributeError as error:
            # anyio asks a connection for its peer; on uvloop there is no socket left if that was killed just now.
            raise httpx2.ConnectError("the connection broke as it was made") from error

    async def aclose(self) -> None:
        await self._inner.aclose()


class Load:
    def __init__(self, house: House, history: History, *, seed: int, mix: Mapping[str, float] = MIX) -> None:
        self.house = house
        self.history = history
        self.is_over = asyncio.Event()
        self._seed = seed
        self._mix = mix
        self._chooser = random.Random(f"{seed} gateways")
        self._numbers = iter(range(10**9))
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._reading: deque[str] = deque(maxlen=MOST_READING)
        self.may_end = asyncio.Event()
        """Followers stop once their session rests."""
        self.http: aiohttp.ClientSession
        self.sdk: AsyncOpenAI

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=PATIENCE)

        async def acknowledge(response: httpx2.Response) -> None:
            if response.is_success and (token := response.request.headers.get(TOKEN)):
                self.history.messages[token].acknowledged = True

        async def count(request: httpx2.Request) -> None:
            if token := request.headers.get(TOKEN):
                self.history.messages[token].posts += 1

        hooks: dict[str, list[Any]] = {"response": [acknowledge], "request": [count]}
        client = DefaultAsyncHttpxClient(transport=_AnyGateway(self.house, self._chooser), event_hooks=hooks)
        self.sdk = AsyncOpenAI(
            base_url="http://127.0.0.1/v1", api_key="none", max_retries=8, timeout=PATIENCE, http_client=client
        )
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as self.http, self.sdk:
            try:
                yield
            finally:
                for task in self._followers.values():
                    task.cancel()
                await asyncio.gather(*self._followers.values(), return_exceptions=True)

    async def run(self, at_once: int) -> None:
        """So many clients, one session after another, until the load is over."""
        await asyncio.gather(*(self._client() for _ in range(at_once)))

    async def _client(self) -> None:
        while not self.is_over.is_set():
            number = next(self._numbers)
            talk = Talk(self, number, random.Random(f"{self._seed} session {number}"))
            [kind] = talk.random.choices(list(self._mix), list(self._mix.values()))
            self.history.sessions[kind] += 1
            try:
                async with asyncio.timeout(3 * PATIENCE):
                    await talk.play(kind)
            except TimeoutError:
                self.history.log("client_gave_up", kind=kind, number=number)
            await asyncio.sleep(talk.random.uniform(0, 0.3))

    async def get(self, path: str, **query: str) -> Any:
        """What a gateway says, once one does."""
        while True:
            try:
                async with self.http.get(f"{self.house.url(self._chooser)}{path}", params=query) as response:
                    if response.status < 500:
                        return msgspec.json.decode(await response.read())
            except TROUBLE:
                pass
            await asyncio.sleep(0.2)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """One POST: the status, 0 if none came, and what was said."""
        try:
            url = f"{self.house.url(self._chooser)}{path}"
            async with self.http.post(url, json=body, headers=headers) as response:
                if response.ok and (token := headers.get(TOKEN)):
                    self.history.messages[token].acknowledged = True
                raw = await response.read()
                self.look(raw)
                return response.status, _decoded(raw)
        except TROUBLE:
            return 0, None

    def look(self, raw: bytes) -> None:
        """Clients must see no secret."""
        if any(canary in raw for canary in CANARIES):
            self.history.seen.append(raw[:500])

    async def until_rest(self, session_id: str, within: float = PATIENCE) -> str:
        """The state in which the session rests; empty if it did not come to rest in time."""
        try:
            async with asyncio.timeout(within):
                while True:
                    shown = await self.get(f"/v1/sessions/{session_id}")
                    if shown.get("state") in RESTING and not shown.get("queued"):
                        return str(shown["state"])
                    await asyncio.sleep(0.15)
        except TimeoutError:
            return ""

    async def withdraw(self) -> None:
        """Cancels prompts before any worker began with them."""
        for _ in range(3):
            token = f"m-withdrawn{next(self._numbers)}"
            await self.post("/v1/responses", {"model": WORKER, "input": f"{token} say", "background": True})
            for row in (await self.get("/v1/sessions", q=token))["data"]:
                await self.post(f"/v1/sessions/{row['session_id']}/cancel", None)
                self.history.sessions["withdrawn"] += 1

    # Followers

    def follow(self, session_id: str) -> None:
        if session_id not in self._followers:
            chooser = random.Random(f"{self._seed} follower {session_id}")
            self._followers[session_id] = asyncio.create_task(self._follow(session_id, chooser))
            self._reading.append(session_id)

    async def followed(self) -> None:
        """All followers have read to the end."""
        self.may_end.set()
        await asyncio.gather(*self._followers.values())

    async def _follow(self, session_id: str, chooser: random.Random) -> None:
        """Reads the events, resuming by the last id whenever the line is cut, by itself now and then.

        After a while it makes room for followers of newer sessions, and reads the rest at the end.
        """
        got = self.history.streams.setdefault(session_id, [])
        while True:
            if session_id not in self._reading:
                await self.may_end.wait()
            is_last = self.may_end.is_set()
            query = {"until": "rest" if is_last else "never", "deltas": "false"}
            headers = {"Last-Event-ID": str(got[-1].id)} if got else {}
            url = f"{self.house.url(chooser)}/v1/sessions/{session_id}/events"
            self.history.reconnects += 1
            try:
                hangs_up_after = 60.0 if is_last else chooser.uniform(0.5, 8.0)
                async with (
                    asyncio.timeout(hangs_up_after),
                    self.http.get(url, params=query, headers=headers) as response,
                ):
                    if response.ok:
                        await self._read(response, got)
                        if is_last:
                            return
            except TROUBLE:
                pass
            await asyncio.sleep(0.1)

    async def _read(self, response: aiohttp.ClientResponse, got: list[Streamed]) -> None:
        fields: dict[str, str] = {}
        async for line in response.content:
            self.look(line)
            text = line.decode().rstrip("\r\n")
            if text:
                name, _, value = text.partition(":")
                fields[name] = value.removeprefix(" ")
                continue
            if "id" in fields and "data" in fields:
                fact = msgspec.json.decode(fields["data"])
                got.append(Streamed(int(fields["id"]), fact["seq"], fact["event"]))
            fields = {}

    # The operator

    async def operate(self) -> None:
        """Settles calls in doubt while the faults go on, by what the ledger says; and looks at lists."""
        while not self.is_over.is_set():
            await self.settle(is_calm=False)
            await self.get("/v1/sessions", limit="50")
            await asyncio.sleep(1.0)

    async def settle(self, *, is_calm: bool) -> int:
        """How many questions about unknown outcomes, and about steps that lost their workers, there were.

        Such steps are tried again. As long as workers may be frozen, a call that is not in the ledger may still reach
        it: it is given up, and never said not to have happened. Half of the questions wait for the end of the faults.
        """
        kinds = ("unknown_outcome", "worker_lost")
        asked = [one for kind in kinds for one in (await self.get("/v1/questions", kind=kind, limit="200"))["data"]]
        known = self._known_keys()
        for one in asked:
            if not is_calm and sum(one["session_id"].encode()) % 2:
                continue
            # A call that took workers down may be repeated: it is tried again, whatever became of it.
            is_lost = one["kind"] == "worker_lost"
            has_happened = not is_lost and f"{one['session_id']}:{one['call_id']}" in known
            is_again = is_calm or is_lost
            decision = "happened" if has_happened else "did_not_happen" if is_again else "give_up"
            body = {"call_id": one["name"], "decision": decision, "result": "The ledger has it."}
            status, _ = await self.post(
                f"/v1/sessions/{one['root']}/approval", body if has_happened else {**body, "result": None}
            )
            self.history.log(
                "settled", session=one["session_id"], call=one["call_id"], decision=decision, status=status
            )
        return len(asked)

    def _known_keys(self) -> set[str]:
        with sqlite3.connect(self.house.ledger_file) as book:
            return {key for (key,) in book.execute("SELECT key FROM calls")}


def _decoded(raw: bytes) -> Any:
    """A JSON answer; of a stream its first chunk."""
    chunk = next((line[6:] for line in raw.splitlines() if line.startswith(b"data: {")), raw)
    return msgspec.json.decode(chunk)


class Talk:
    """One client and its session."""

    def __init__(self, load: Load, number: int, chooser: random.Random) -> None:
        self.load = load
        self.number = number
        self.random = chooser
        self.driver = chooser.choice(DRIVERS)
        self.session_id = ""
        self._tokens = iter(range(1000))

    async def play(self, kind: str) -> None:
        match kind:
            case "plain":
                for _ in range(self.random.randint(1, 3)):
                    await self.say("say")
            case "tools":
                for _ in range(self.random.randint(1, 2)):
                    await self.say(f"do {self._plan()}")
            case "clarification":
                await self._clarify()
            case "subagent":
                await self.say(f"delegate {self._plan()}", model=BOSS)
            case "cancel":
                await self._cancel()

    def _plan(self) -> str:
        calls = [self.random.choice(EFFECTS) for _ in range(self.random.randint(1, 5))]
        return "".join(f"{'' if not n else self.random.choice(['+', ' / '])}{one}" for n, one in enumerate(calls))

    def token(self) -> str:
        return f"m-{self.number}x{next(self._tokens)}"

    async def say(self, words: str, model: str = WORKER) -> str:
        """Sends a message until one was acknowledged, and waits until the session rests."""
        key = f"key-{self.number}-{next(self._tokens)}" if self.driver == "keyed" else ""
        token = ""
        while True:
            # Without a key, what was not acknowledged is said anew, as another message.
            token = token if key and token else self.token()
            message = self.load.history.message(token, self.driver)
            body = self._body(f"{token} {words}", model)
            is_over = await (self._bare(message, body) if self.driver == "bare" else self._by_sdk(message, body, key))
            if is_over or message.acknowledged:
                break
            await asyncio.sleep(self.random.uniform(0.2, 1))
        self.session_id = self.session_id or next(iter(message.session_ids), "") or await self._found(token)
        if not self.session_id:
            return ""
        if self.number % 3 == 0:
            self.load.follow(self.session_id)
        if key and self.random.random() < 0.3:
            await self._repeat(message, body, key)
        return await self.load.until_rest(self.session_id)

    def _body(self, text: str, model: str) -> dict[str, Any]:
        streams = self.driver != "bare" and self.number % 5 < 3
        return {"model": self.session_id or model, "messages": [{"role": "user", "content": text}], "stream": streams}

    async def _by_sdk(self, message: Message, body: dict[str, Any], key: str) -> bool:
        """Whether the server has said all that it will say to this message."""
        headers = {TOKEN: message.token, **({"Idempotency-Key": key} if key else {})}
        try:
            answer: ChatCompletion | AsyncStream[ChatCompletionChunk] = await self.load.sdk.chat.completions.create(
                **body, extra_headers=headers
            )
            if isinstance(answer, ChatCompletion):
                self._read(message, answer)
                return True
            async for chunk in answer:
                self._read(message, chunk)
            return True
        except APIStatusError as error:
            self._log_error(message, error)
            return error.status_code < 500 or error.response.headers.get("x-should-retry") == "false"
        except (APIError, httpx2.HTTPError) as error:
            self._log_error(message, error)
            return False

    def _read(self, message: Message, answer: ChatCompletion | ChatCompletionChunk) -> None:
        message.session_ids.add(answer.model)
        self.load.look(answer.model_dump_json().encode())

    def _log_error(self, message: Message, error: Exception) -> None:
        name, text = type(error).__name__, str(error)[:200]
        self.load.history.log("client_error", token=message.token, error=name, text=text)

    async def _bare(self, message: Message, body: dict[str, Any]) -> bool:
        message.posts += 1
        status, answer = await self.load.post("/v1/chat/completions", body, **{TOKEN: message.token})
        if answer and "model" in answer:
            message.session_ids.add(answer["model"])
        return 0 < status < 500

    async def _found(self, token: str) -> str:
        """The session of a message whose response was cut before it named one."""
        page = await self.load.get("/v1/sessions", q=token)
        return next((str(row["session_id"]) for row in page["data"]), "")

    async def _repeat(self, message: Message, body: dict[str, Any], key: str) -> None:
        """The same key with the same body, and with another one."""
        headers = {"Idempotency-Key": key}
        status, answer = await self.load.post("/v1/chat/completions", body, **headers)
        if answer and "model" in answer:
            message.session_ids.add(answer["model"])
        other = {**body, "messages": [{"role": "user", "content": f"{message.token}other say"}]}
        status, _ = await self.load.post("/v1/chat/completions", other, **headers)
        if 0 < status < 500:
            self.load.history.reused_keys.append((key, status))

    async def _clarify(self) -> None:
        state = await self.say("ask")
        if state != "WAITING_FOR_CLARIFICATION":
            return
        if self.number % 2 and not self.load.is_over.is_set():
            call = await self._question()
            if call:
                self.load.history.held[self.session_id] = call
            return  # it waits through all that comes
        if self.random.random() < 0.5:
            await self.say("answer")
        else:
            await self.answer_twice()
            await self.load.until_rest(self.session_id)

    async def _question(self) -> str:
        shown = await self.load.get(f"/v1/sessions/{self.session_id}")
        return next((str(one["call_id"]) for one in shown["questions"]), "")

    async def answer_twice(self) -> None:
        """Two people answer at once."""
        if call := await self._question():
            await answer_twice(self.load, self.session_id, call)

    async def _cancel(self) -> None:
        saying = asyncio.create_task(self.say("dwell"))
        await asyncio.sleep(self.random.uniform(0.5, 2.5))
        page = await self.load.get("/v1/sessions", q=f"m-{self.number}x")
        for row in page["data"]:
            await self.load.post(f"/v1/sessions/{row['session_id']}/cancel", None)
        await saying


async def answer_twice(load: Load, session_id: str, call: str) -> None:
    texts = [f"m-{session_id[-12:]}y{nth} answer" for nth in range(2)]
    path = f"/v1/sessions/{session_id}/clarification"
    posts = (load.post(path, {"answer": text, "call_id": call}) for text in texts)
    for text, (status, _) in zip(texts, await asyncio.gather(*posts), strict=True):
        load.history.answers.append(Answered(session_id, call, text, status))
