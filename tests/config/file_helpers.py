"""Files as tests write them, and what is read from them."""

from pathlib import Path

import pytest

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.template import Template
from longhouse.app import TOOLS
from longhouse.config.loader import LoadedFiles, read_files
from longhouse.errors import SetupError

NAMES = {cls.tool_name for cls in TOOLS}


def given(folder: Path, config: str = "", agents: str = "", templates: tuple[Template, ...] = BUILT_IN) -> LoadedFiles:
    (folder / "config.yaml").write_text(config)
    (folder / "agents.yaml").write_text(agents)
    return read_files(folder / "config.yaml", folder / "agents.yaml", templates=templates, tools=NAMES)


def sound(found: LoadedFiles) -> dict[str, Template]:
    found.mistakes.refuse()
    return {template.name: template for template in found.templates}


def wrong(found: LoadedFiles, folder: Path) -> list[str]:
    with pytest.raises(SetupError) as refused:
        found.mistakes.refuse()
    return [line.replace(f"{folder}/", "") for line in str(refused.value).splitlines()[1:]]
