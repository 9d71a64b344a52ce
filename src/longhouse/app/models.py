"""Opens the models: those that agents ask, and the one that embeds texts."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from longhouse.config.effective import Configured
from longhouse.models import embedding_table
from longhouse.models.demo import scene
from longhouse.models.embeddings import WITHIN, EndpointEmbedder
from longhouse.models.endpoints import open_endpoints
from longhouse.models.http.client import open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.protocol import Embedder, Model
from longhouse.models.scripted import ScriptedModel
from longhouse.runtime.workers.instances import ModelFor
from longhouse.settings import Settings


@asynccontextmanager
async def open_model(setup: Configured) -> AsyncIterator[ModelFor]:
    """Opens the model clients of templates; the demo model answers where none is configured."""
    settings = setup.settings
    async with AsyncExitStack() as stack:
        model: Model = ScriptedModel(scene, remember=False)
        if settings.llm_base_url:
            key, hang = settings.llm_api_key.get_secret_value(), settings.llm_timeout
            endpoint = open_endpoint(settings.llm_base_url, key, proxy=settings.llm_proxy, hang=hang)
            model = OpenAIModel(await stack.enter_async_context(endpoint))
        endpoints = open_endpoints(model, setup.secrets.find, egress=setup.model_egress, hang=settings.llm_timeout)
        yield await stack.enter_async_context(endpoints)


@asynccontextmanager
async def open_embedder(settings: Settings) -> AsyncIterator[Embedder | None]:
    """Opens the embedder: the endpoint of the settings, or a static table, the built-in one by default."""
    if not settings.embeddings_base_url:
        yield embedding_table.EmbeddedEmbedder(settings.embeddings_table)
        return
    key = settings.embeddings_api_key.get_secret_value()
    async with open_endpoint(settings.embeddings_base_url, key, within=WITHIN) as endpoint:
        yield EndpointEmbedder(endpoint, settings.embeddings_model)
