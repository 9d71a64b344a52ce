"""The library of documents as the document tools use it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Documents(Protocol):
    """Documents that an owner may read: the owner's own and the shared ones, by `reg_id`."""

    async def list(self, owner: str) -> tuple[list[dict[str, Any]], int]:
        """What `list_documents` returns, and how many documents there are."""
        ...

    async def toc(
        self, owner: str, reg_id: str, *, max_depth: int = 3, expand_section: str | None = None
    ) -> dict[str, Any]:
        """What `get_toc` returns."""
        ...

    async def search(
        self,
        owner: str,
        query: str,
        reg_id: str | None = None,
        *,
        chapter_scope: str | None = None,
        limit: int = 10,
        block_types: Sequence[str] | None = None,
        section_number: str | None = None,
    ) -> Sequence[dict[str, Any]]:
        """What `smart_search` returns, the best first."""
        ...

    async def pages(self, owner: str, reg_id: str, start_page: int, end_page: int) -> Mapping[str, Any]:
        """What `read_page_range` returns."""
        ...

    async def revision(self, owner: str, reg_id: str | None = None) -> str:
        """Changes whenever the document does; without `reg_id`, whenever any document of the owner does.

        Raises `UnknownDocument` for one that is not there.
        """
        ...
