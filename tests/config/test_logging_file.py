"""`logging_config.yaml` sets up the logs of libraries; one that does not is refused in a sentence."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from longhouse.config.logging_file import configure_logging
from longhouse.errors import SetupError

LIBRARY = "a_library_that_logs"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    logger = logging.getLogger(LIBRARY)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.NOTSET)


def test_a_library_logs_where_the_file_says_and_others_are_left_alone(tmp_path: Path) -> None:
    other = logging.getLogger("another_library")
    path = tmp_path / "logging_config.yaml"
    path.write_text(f"""
        handlers:
          file: {{class: logging.FileHandler, filename: {tmp_path}/out.log}}
        loggers:
          {LIBRARY}: {{level: DEBUG, handlers: [file], propagate: false}}
    """)
    configure_logging(path)
    logging.getLogger(LIBRARY).debug("heard")
    assert (tmp_path / "out.log").read_text() == "heard\n"
    assert not other.disabled


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("handlers: {h: {class: no.such.Handler}}", "cannot configure logging: Unable to configure handler 'h'"),
        ("loggers: {x: {level: LOUD}}", "cannot configure logging: Unable to configure logger 'x'"),
        ("version: 7", "cannot configure logging: Unsupported version: 7"),
        ("handlers: [", r"logging_config\.yaml:1: is not YAML"),
    ],
)
def test_a_file_that_sets_up_nothing_is_refused_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "logging_config.yaml"
    path.write_text(text)
    with pytest.raises(SetupError, match=said):
        configure_logging(path)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    handlers = list(logging.getLogger().handlers)
    path = tmp_path / "logging_config.yaml"
    path.write_text("")
    configure_logging(path)
    assert logging.getLogger().handlers == handlers
