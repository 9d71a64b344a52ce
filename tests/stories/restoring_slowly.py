"""`longhouse restore` of LONGHOUSE_TEST_FILE, which stops with filled tables, so that it can be killed."""

import asyncio
import os
from typing import Any

from longhouse.cli.main import cli
from longhouse.store.backups import restore

fill = restore._fill


async def fill_and_wait(*given: Any) -> None:
    await fill(*given)
    print("worker ready: the tables are filled", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    restore._fill = fill_and_wait  # type: ignore[assignment]
    cli(["restore", os.environ["LONGHOUSE_TEST_FILE"]])
