"""From a tool's description to what runs it: a class from an allowed package, a remote endpoint, an agent."""

from collections.abc import Callable, Sequence

import aiohttp

from longhouse.agents.descriptor import ToolDescriptor
from longhouse.tools.delegate import AgentBinding
from longhouse.tools.entrypoint import EntrypointBinding
from longhouse.tools.remote import RemoteBinding
from longhouse.tools.toolbox import Binder, Binding


def binder_of(http: aiohttp.ClientSession, secret_of: Callable[[str], str | None], packages: Sequence[str]) -> Binder:
    """Binds what the catalog describes. Classes are imported here, at first use, and never before."""

    def bind(descriptor: ToolDescriptor) -> Binding | None:
        way = descriptor.runtime_binding
        if way.agent:
            return AgentBinding(descriptor)
        if way.remote_endpoint:
            return RemoteBinding(
                descriptor.tool, way.remote_endpoint, http, api_key_ref=way.api_key_ref, secret_of=secret_of
            )
        return EntrypointBinding(descriptor, packages) if way.python_entrypoint else None

    return bind
