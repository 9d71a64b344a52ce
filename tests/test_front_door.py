"""`from longhouse import …`: what programs of others rely on."""

import os
import subprocess
import sys
import typing
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import longhouse
from longhouse import App, BaseTool, Settings, Template, app, errors, open_app, settings, tool, tools
from longhouse.agents import template

PROMISED = {"open_app", "Settings", "Template", "BaseTool", "tool", "errors"}


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    env = {**{name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}, **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_name_of_the_front_door_is_there_and_is_the_one_of_its_module() -> None:
    assert set(longhouse.__all__) >= PROMISED
    assert set(dir(longhouse)) >= {*longhouse.__all__, "__version__"}
    for name in longhouse.__all__:
        assert getattr(longhouse, name) is not None
    assert (open_app, Settings, Template) == (app.open_app, settings.Settings, template.Template)
    assert (BaseTool, tool) == (tools.BaseTool, tools.tool)
    assert issubclass(errors.SetupError, errors.LonghouseError)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'open_door'"):
        longhouse.open_door  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Manager'"):
        exec("from longhouse import Manager")


def test_importing_the_package_alone_is_cheap_and_settles_the_threads_of_numpy_first() -> None:
    heavy = "{'fastapi', 'numpy', 'pydantic', 'asyncpg', 'aiohttp'}"
    assert python(f"import sys, longhouse; print(sorted({heavy} & sys.modules.keys()))") == "[]"
    assert python("import os, longhouse; print(os.environ['OPENBLAS_NUM_THREADS'])") == "1"
    kept = python("import os, longhouse; print(os.environ['OPENBLAS_NUM_THREADS'])", OPENBLAS_NUM_THREADS="4")
    assert kept == "4", "who has set the variable keeps it"


def test_each_name_can_be_the_first_import_of_a_program() -> None:
    """An import cycle would show only in the one that comes first; names of one module load the same."""
    homes = [("errors",), *longhouse._MODULES.values()]
    assert sorted(name for home in homes for name in home) == sorted(longhouse.__all__)
    names = [home[0] for home in homes]
    code = f"""
import os
for name in {names}:
    if os.fork() == 0:
        exec(f'from longhouse import {{name}}')
        os._exit(0)
print([os.wait()[1] for _ in {names}])
"""
    assert python(code) == str([0] * len(names))


def test_the_package_is_typed() -> None:
    """`make check` reads this file with mypy: names that were `Any` would not pass it."""
    assert (Path(longhouse.__file__).parent / "py.typed").is_file()
    opened: AbstractAsyncContextManager[App] = open_app(Settings(config_file=None), templates=[Template(name="typed")])
    assert callable(opened.__aenter__)
    typing.assert_type(errors.CallerError("no").status, int)
    assert issubclass(tool(_answer), BaseTool)


async def _answer(question: str) -> str:
    """Answer."""
    return question
