"""The binder: maps a catalog descriptor to a class from an allowed package, a remote endpoint or an agent."""

from collections.abc import Callable, Sequence
from functools import partial

import aiohttp

from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.tools.bindings import python
from longhouse.tools.bindings.agent import AgentBinding
from longhouse.tools.bindings.base import Binding
from longhouse.tools.bindings.http import RemoteBinding
from longhouse.tools.toolbox import Binder


def binder_of(
    http: aiohttp.ClientSession, secret_for: Callable[[str, str], str | None], packages: Sequence[str]
) -> Binder:
    """The binder of catalog descriptors. Classes are imported at first use.

    `secret_for` gives the secret of a name for calls to an address.
    """

    def bind(descriptor: ToolDescriptor) -> Binding | None:
        way = descriptor.runtime_binding
        if way.agent:
            return AgentBinding(descriptor)
        if way.remote_endpoint:
            secret_of = partial(_secret_for, secret_for, way.remote_endpoint)
            return RemoteBinding(
                descriptor.tool, way.remote_endpoint, http, api_key_ref=way.api_key_ref, secret_of=secret_of
            )
        return python.bound(descriptor, packages) if way.python_entrypoint else None

    return bind


def _secret_for(secret_for: Callable[[str, str], str | None], url: str, ref: str) -> str | None:
    return secret_for(ref, url)
