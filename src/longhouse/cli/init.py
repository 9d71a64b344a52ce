"""`longhouse init`: one folder to start from."""

import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated, Final

import typer

from longhouse.errors import SetupError

FILES: Final = {
    "agents.yaml": "agents.yaml",
    "tools.py": "tools.py",
    ".env.example": "env.example",
    "README.md": "README.md",
}
"""A file of the project -> the one in `cli/project` that it is made from."""
IGNORED: Final = ".env\n.longhouse/\n__pycache__/\n"

cli = typer.Typer()


@cli.command()
def init(name: Annotated[str, typer.Argument(help="The folder to make.")]) -> None:
    """Make a small project that runs: agents.yaml, tools.py, .env.example and a README."""
    folder, source = Path(name), resources.files("longhouse.cli") / "project"
    texts = {file: (source / origin).read_text("utf-8") for file, origin in FILES.items()}
    texts["README.md"] = texts["README.md"].replace("{name}", folder.absolute().name)
    texts[".gitignore"] = IGNORED
    if there := [file for file in texts if (folder / file).exists() or (folder / file).is_symlink()]:
        raise SetupError(f"{folder / there[0]} is there already, and nothing is overwritten: choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            with (folder / file).open("x", encoding="utf-8") as opened:
                opened.write(text)
    except OSError as error:
        raise SetupError(f"{folder} cannot be made: {error.strerror}; choose another folder.") from None
    typer.echo(f"{folder} has {', '.join(texts)}")
    typer.echo(f"next: cd {shlex.quote(str(folder))} && longhouse dev")
