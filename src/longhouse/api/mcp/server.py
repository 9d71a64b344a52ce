"""The MCP server: lists agents and tools, calls them, and reads documents. Each request has a caller of its own."""

from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
import structlog
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

import longhouse
from longhouse.agents.strategies.one_call import ONE_CALL
from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.api import errors, wire
from longhouse.api.auth import CALLER
from longhouse.api.caller import Caller
from longhouse.api.mcp import resources
from longhouse.api.mcp.calls import AGENT_INPUT, AGENT_OUTPUT, McpToolCall
from longhouse.api.turns import Turns
from longhouse.errors import CallerError
from longhouse.memory.documents.library import DocumentLibrary
from longhouse.validation_messages import explain, invalid_value

log = structlog.get_logger()

INSTRUCTIONS = """\
Each agent here is a tool: send it a message, and it works until it has an answer, which may take minutes. It remembers
what was said in a conversation: name the conversation_id of an earlier result to go on with it. If an agent asks
something, call it again with that conversation_id and the answer as the message. If a call was cut off, call it again
with its conversation_id and an empty message: the agent has worked on, and you get its answer."""

IDLE: Final = 1800.0
"""Seconds after which a session of the protocol that nobody uses is closed; a client then opens another one."""
MOST: Final = 2_000
MOST_OF_KEY: Final = 200
"""Open sessions of the protocol of one key, so that no key keeps the others out."""

Context = ServerRequestContext[Any, Request]


@dataclass(frozen=True, slots=True)
class McpService:
    turns: Turns
    library: DocumentLibrary | None

    @property
    def manager(self) -> "SessionManager":
        server: Server[Any] = Server(
            "longhouse",
            version=longhouse.__version__,
            title="Longhouse",
            instructions=INSTRUCTIONS,
            # No argument is to be repeated in a header.
            get_tool_input_schema=lambda name: None,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources if self.library else None,
            on_list_resource_templates=self.list_resource_templates if self.library else None,
            on_read_resource=self.read_resource if self.library else None,
        )
        server.middleware.append(_with_our_errors)
        return SessionManager(server, session_idle_timeout=IDLE, max_request_body_size=wire.MAX_BODY, max_sessions=MOST)

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """The agents that the caller may use, and the tools that are served; an agent wins over a tool of its name."""
        caller, catalog = caller_of(ctx), self.turns.catalog
        agents = await catalog.templates.active_ones(owner=caller.owner)
        tools = {one.name: _agent(one) for one in agents if caller.may_use(one.name)}
        if caller.may_use(ONE_CALL.name):
            names = {one.name for one in agents}
            served = await catalog.served_tools(caller.owner)
            tools |= {one.name: _tool(one) for one in served if one.name not in names}
        return types.ListToolsResult(tools=[tools[name] for name in sorted(tools)])

    async def call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        caller = caller_of(ctx)
        agent = await self.turns.catalog.templates.find(params.name, owner=caller.owner)
        is_agent = agent is not None and agent.name != ONE_CALL.name and caller.may_use(agent.name)
        if not is_agent:
            # Postgres refuses NUL characters even in a look-up.
            names = [] if "\x00" in params.name else [params.name]
            served = await self.turns.catalog.served_tools(caller.owner, names=names)
            if agent is not None or not served or not caller.may_use(ONE_CALL.name):
                raise CallerError(f"There is no tool {params.name[:100]!r}; see tools/list.", status=404, param="name")
        return await McpToolCall(self.turns, ctx, caller, params, is_agent=is_agent).result()

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        assert self.library is not None
        return await resources.listed(self.library, caller_of(ctx), params.cursor if params else None)

    async def list_resource_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[resources.PAGES])

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        assert self.library is not None
        return await resources.read(self.library, caller_of(ctx), str(params.uri))


def caller_of(ctx: Context) -> Caller:
    assert ctx.request is not None, "requests come over HTTP"
    caller: Caller = ctx.request.scope[CALLER]
    return caller


def _agent(template: Template) -> types.Tool:
    meta = template.multi_agent_meta
    about = meta.capabilities or f"The agent {template.name}."
    return types.Tool(
        name=template.name,
        description=about,
        input_schema=AGENT_INPUT,
        output_schema=AGENT_OUTPUT,
        annotations=types.ToolAnnotations(open_world_hint=True),
        meta={"longhouse/kind": "agent", "longhouse/tags": list(meta.tags)},
    )


def _tool(descriptor: ToolDescriptor) -> types.Tool:
    tool = descriptor.tool
    schema = {"type": "object", **tool.schema}
    hints = types.ToolAnnotations(
        read_only_hint=descriptor.effect == "read",
        idempotent_hint=descriptor.effect in ("read", "idempotent"),
    )
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=schema,
        annotations=hints,
        meta={"longhouse/kind": "tool", "longhouse/tags": list(descriptor.tags)},
    )


async def _with_our_errors(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Our errors as those of JSON-RPC; what is wrong with a request is named, and what is wrong with us is logged."""
    try:
        return await call_next(ctx)
    except MCPError:
        raise
    except ValidationError as error:
        param, sentence = invalid_value(*explain(error)[0], whole="params")
        raise MCPError(types.INVALID_PARAMS, sentence, {"param": param or ""}) from None
    except CallerError as error:
        raise rpc_error(error) from None
    except Exception as error:
        if isinstance(error, errors.TROUBLE):
            errors.log_trouble(error, "An MCP request was refused.")
        else:
            log.exception("request_failed", path="/mcp", method=ctx.method)
        raise rpc_error(errors.error_for(error)) from None


def rpc_error(error: CallerError) -> MCPError:
    """An error of ours, in the form of JSON-RPC; `data` has what the error envelope has elsewhere."""
    code = types.INVALID_REQUEST if error.status in (403, 409, 429) else types.INVALID_PARAMS
    code = types.INTERNAL_ERROR if error.status >= 500 else code
    told = {name: getattr(error, name) for name in ("status", "code", "param", "retry_after")}
    return MCPError(code, str(error), {name: value for name, value in told.items() if value is not None})


# The streamable HTTP transport, as the SDK has it, with our bounds


class SessionManager(StreamableHTTPSessionManager):
    """The SDK's, which opens no more sessions for a key than it may have."""

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["user"] = _user(scope[CALLER])
        await super().handle_request(scope, receive, send)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        if sum(owner == requestor for owner in self._session_owners.values()) >= MOST_OF_KEY:
            return None
        return super()._admit_session(requestor)


def _user(caller: Caller) -> AuthenticatedUser:
    """Whom a session of the protocol belongs to: with another key, or another owner, it is not found."""
    return AuthenticatedUser(AccessToken(token="", client_id=caller.key or "none", scopes=[], subject=caller.owner))
