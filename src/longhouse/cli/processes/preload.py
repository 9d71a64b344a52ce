"""Loads all commands and what they import, for a process that others are forked from."""

import importlib

from longhouse.cli.loading import imports
from longhouse.cli.main import COMMANDS

with imports():
    for one in COMMANDS.values():
        importlib.import_module(f"longhouse.cli.{one.module}")
    importlib.import_module("longhouse.cli.chat.conversation")  # which `chat` loads on terminals alone
