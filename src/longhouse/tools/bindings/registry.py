"""The binder: maps a catalog descriptor to a class from an allowed package, a remote endpoint or an agent."""

from collections.abc import Sequence

from yarl import URL

from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.egress import GRPC
from longhouse.models.http.pool import HttpPool
from longhouse.tools.bindings import isolated, python
from longhouse.tools.bindings.agent import agent_binding
from longhouse.tools.bindings.base import Binding
from longhouse.tools.bindings.grpc import GrpcBinding
from longhouse.tools.bindings.http import RemoteBinding
from longhouse.tools.bindings.remote import EndpointOptions, SecretFor
from longhouse.tools.grpc.channels import Channels
from longhouse.tools.isolation.pool import ProcessPool
from longhouse.tools.toolbox import Binder


def binder_of(
    pool: HttpPool,
    channels: Channels,
    secret_for: SecretFor,
    packages: Sequence[str],
    processes: ProcessPool,
) -> Binder:
    """The binder of catalog descriptors. Classes are imported at first use."""

    async def bind(descriptor: ToolDescriptor) -> Binding | None:
        way = descriptor.runtime_binding
        if way.agent:
            return agent_binding(descriptor.tool)
        if way.remote_endpoint:
            url, options = way.remote_endpoint, EndpointOptions(api_key_ref=way.api_key_ref, secret_for=secret_for)
            if URL(url).scheme in GRPC:
                return GrpcBinding(descriptor.tool, url, channels, **options)
            return RemoteBinding(descriptor.tool, url, pool, **options)
        if not way.python_entrypoint:
            return None
        if python.isolation_of(descriptor) == "process":
            return await isolated.bound(descriptor, packages, processes)
        return python.bound(descriptor, packages)

    return bind
