"""Prompts come from texts or files."""

from pathlib import Path

import pytest

from longhouse.agents.template import PromptPack
from longhouse.errors import SetupError
from longhouse.prompts import read_prompts


def test_a_text_wins_over_a_file_and_the_rest_keeps_its_default(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("From the file, {current_date}.", "utf-8")
    (tmp_path / "answer.txt").write_text("They said: {clarifications}", "utf-8")
    pack = read_prompts(
        tmp_path,
        system_prompt_str="In place.",
        system_prompt_file="system.txt",
        clarification_response_file="answer.txt",
    )
    assert pack == PromptPack(system_prompt="In place.", clarification_response="They said: {clarifications}")
    assert read_prompts(tmp_path, system_prompt_file="system.txt").system_prompt == "From the file, {current_date}."
    assert read_prompts() == PromptPack()


def test_a_file_that_is_not_there_and_a_name_that_is_not_known_are_said(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"The prompt file gone\.txt cannot be read"):
        read_prompts(tmp_path, system_prompt_file="gone.txt")
    with pytest.raises(SetupError, match="There is no prompt greeting_str"):
        read_prompts(tmp_path, greeting_str="Hi")
