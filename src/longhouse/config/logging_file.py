"""Loads `logging_config.yaml`: the logging of libraries, in the format of Python's `logging.config`."""

import logging.config
from pathlib import Path

from longhouse.config.mistakes import Mistakes
from longhouse.config.yaml_document import read_document
from longhouse.errors import SetupError


def configure_logging(path: Path) -> None:
    """Configures the loggers that the file names; records of this program do not pass through them."""
    mistakes = Mistakes()
    document = read_document(path, mistakes)
    mistakes.refuse()
    assert document is not None
    if not document.values:
        return
    try:
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **document.values})
    except (ValueError, TypeError, AttributeError, ImportError, KeyError) as error:
        why = error.__cause__ or error
        raise SetupError(f"{path} cannot configure logging: {error} ({type(why).__name__}: {why}).") from None
