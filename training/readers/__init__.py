"""What is read of a package: each reader takes an archive and gives rows, none where it knows nothing of it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from training.archives import Archive
from training.readers import apis, catalogs, docstrings, glossaries, pages
from training.rows import Row

Reader = Callable[[Archive], Iterator[Row]]

READERS: Final[Mapping[str, Reader]] = {
    "botocore": apis.botocore,
    "google": apis.google,
    "openapi": apis.openapi,
    "azure_cli": apis.azure_cli,
    "aws_cli": apis.aws_cli,
    "tencent": apis.tencent,
    "docstrings": docstrings.docstrings,
    "gettext": catalogs.gettext,
    "locale_files": catalogs.locale_files,
    "wordnet": glossaries.wordnet,
    "intents": glossaries.intents,
    "chat": glossaries.chat,
    "tldr": pages.tldr,
    "documents": pages.documents,
}
