"""`longhouse documents …`: many files at once, a bad one named; nothing half added by one that is killed."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer
from pydantic import SecretStr

from document_texts import CHINESE, ENGLISH, RUSSIAN
from forked_server import Forked
from longhouse.cli import documents as commands
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.access import keys
from longhouse.store.database import Database
from server_helpers import NO_FILES, Serving, launched_words


@pytest.fixture
def settings(dsn: str) -> Settings:
    return Settings(database_url=SecretStr(dsn))


async def added(settings: Settings, paths: Sequence[object], **options: Any) -> int:
    """Adds files; the exit code."""
    try:
        await commands.add_documents(settings, [str(path) for path in paths], **options)
    except typer.Exit as left:
        return left.exit_code
    return 0


async def test_a_folder_is_added_a_bad_file_is_named_and_the_rest_goes_on(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    below = tmp_path / "rules" / "old"
    below.mkdir(parents=True)
    (tmp_path / "rules" / "safety.md").write_text(ENGLISH)
    (below / "safety.md").write_text(CHINESE)
    (below / ".hidden.md").write_text("no")
    (below / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "rules" / "broken.pdf").write_bytes(b"%PDF-1.7 no")
    assert await added(settings, [tmp_path / "rules"]) == 1
    said = capsys.readouterr()
    assert [line.split("  ")[0] for line in said.out.splitlines()] == ["added old_safety", "added safety"]
    assert "rules/broken.pdf is a damaged PDF" in said.err
    assert said.err.count("longhouse: ") == 1
    (tmp_path / "rules" / "broken.pdf").unlink()
    (tmp_path / "rules" / "safety.md").write_text(ENGLISH.replace("padlock", "seal"))
    assert await added(settings, [tmp_path / "rules"]) == 0
    assert [line.split("  ")[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["unchanged old_safety", "version 1"],
        ["changed safety", "version 2"],
    ]

    assert await added(settings, [tmp_path / "**" / "saf*.md"]) == 1, "two files of one name"
    said = capsys.readouterr()
    assert said.out == "", "neither is added"
    assert said.err.endswith("safety.md would all be safety; add each alone, with --id.\n")
    assert await added(settings, [below / "safety.md"], reg_id="angui", owner="ann") == 0
    with pytest.raises(SetupError, match="no file matches"):
        await added(settings, [tmp_path / "*.docx"])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(SetupError, match="holds no file that can be read"):
        await added(settings, [tmp_path / "nothing"])
    assert await added(settings, [tmp_path / "missing.md"]) == 1

    capsys.readouterr()
    await commands.list_documents(settings, owner="ann")
    listed = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == ["angui", "longhouse"]
    await commands.show_document(settings, "safety")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "safety: Safety rules"
    assert [line.split("  ")[0] for line in shown[2:4]] == ["version 2", "version 1"]
    assert shown[4:7] == ["Safety rules  P1", "  1 General  P1", "  2 Isolation  P1"]
    with pytest.raises(SetupError, match="there is no document 'agnui'; known ones: longhouse, old_safety, safety"):
        await commands.show_document(settings, "agnui")
    await commands.remove_document(settings, "angui", owner="ann")
    await commands.remove_document(settings, "safety")
    with pytest.raises(SetupError, match="there is no document 'safety'"):
        await commands.remove_document(settings, "safety")


async def test_without_keys_the_command_line_and_http_mean_the_same_documents(
    serving: Serving, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.md").write_text(ENGLISH)
    async with serving() as house:
        async with house.http.post("/v1/documents?filename=notes.md", data=RUSSIAN.encode()) as response:
            assert response.status == 201
        capsys.readouterr()
        await commands.list_documents(settings)
        assert [columns(line)[::4] for line in capsys.readouterr().out.splitlines()] == [
            ["longhouse", "shared"],
            ["notes", "local"],
        ]
        await commands.show_document(settings, "notes")
        assert capsys.readouterr().out.splitlines()[1].endswith(", local")
        await commands.remove_document(settings, "notes")
        assert await added(settings, [tmp_path / "rules.md"]) == 0
        assert await added(settings, [tmp_path / "rules.md"], owner="ann", reg_id="hers") == 0
        async with house.http.get("/v1/documents") as response:
            seen = {one["reg_id"]: one["shared"] for one in (await response.json())["data"]}
        assert seen == {"rules": False, "longhouse": True}
        async with house.http.delete("/v1/documents/rules") as response:
            assert response.status == 200
    for command in (commands.show_document, commands.remove_document):
        with pytest.raises(
            SetupError, match="local has no document 'hers', but ann has one: name the owner with --owner"
        ):
            await command(settings, "hers")
    with pytest.raises(SetupError, match="is a shared document: remove it with --shared"):
        await commands.remove_document(settings, "longhouse")
    with pytest.raises(SetupError, match="give --owner or --shared, not both"):
        await commands.remove_document(settings, "longhouse", owner="ann", shared=True)
    await commands.remove_document(settings, "longhouse", shared=True)
    capsys.readouterr()
    await commands.list_documents(settings)
    assert columns(capsys.readouterr().out.strip())[::4] == ["hers", "ann"], "and those of other owners are listed"


@pytest.mark.parametrize("is_admin", [True, False])
async def test_with_keys_an_owner_is_named(
    settings: Settings, db: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_admin: bool
) -> None:
    if is_admin:
        settings = settings.model_copy(update={"admin_key": SecretStr("k3y-of-the-house-9f27")})
    else:
        await keys.create(db, name="hers", owner="ann", role="user")
    (tmp_path / "rules.md").write_text(ENGLISH)
    assert await added(settings, [tmp_path / "rules.md"]) == 0
    for owner in ("ann", "bob\x1b[31m", "c", "d", "e", "f"):
        assert await added(settings, [tmp_path / "rules.md"], owner=owner, reg_id="own") == 0
    capsys.readouterr()
    await commands.list_documents(settings)
    listed = [columns(line) for line in capsys.readouterr().out.splitlines()]
    assert [row[4] for row in listed if row[0] == "own"] == ["ann", "bob\\u001b[31m", "c", "d", "e", "f"]
    assert [row[4] for row in listed if row[0] == "rules"] == ["shared"]
    for command in (commands.show_document, commands.remove_document):
        with pytest.raises(SetupError) as refused:
            await command(settings, "own")
        assert str(refused.value) == (
            "there is no shared document 'own', but ann, bob\\u001b[31m, c, d, e and others have one: "
            "name the owner with --owner."
        )
    await commands.remove_document(settings, "own", owner="ann")
    await commands.remove_document(settings, "rules")


async def test_links_that_lead_out_of_a_folder_are_named_and_left_out(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, secret = tmp_path / "rules", tmp_path / "secret.md"
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    secret.write_text(RUSSIAN)
    (tmp_path / "elsewhere" / "far.md").write_text(CHINESE)
    (folder / "safety.md").write_text(ENGLISH)
    (folder / "again.md").symlink_to("safety.md")
    (folder / "notes.md").symlink_to(secret)
    (folder / "deep").symlink_to(tmp_path / "elsewhere")
    (folder / "round.md").symlink_to("round.md")
    (tmp_path / "way").symlink_to(folder)
    for named, outside in (
        (tmp_path / "way", [tmp_path / "way" / "notes.md"]),
        (folder / "**" / "*.md", [folder / "deep" / "far.md", folder / "notes.md"]),
    ):
        assert await added(settings, [named]) == 1
        said = capsys.readouterr()
        assert [line.split()[1] for line in said.out.splitlines()] == ["again", "safety"]
        why = "is a link that leads outside of what was named, and is left out; add it by its own path."
        assert said.err.splitlines() == [f"longhouse: {path} {why}" for path in outside]
    assert await added(settings, [folder / "notes.md"]) == 0, "named alone, it is meant"


async def test_a_list_that_is_cut_says_so(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longhouse.memory.documents.library.LISTED", 1)
    (tmp_path / "rules.md").write_text(ENGLISH)
    assert await added(settings, [tmp_path / "rules.md"], owner="ann") == 0
    capsys.readouterr()
    await commands.list_documents(settings, owner="ann")
    [shown, more] = capsys.readouterr().out.splitlines()
    assert shown.startswith("longhouse  version 1")
    assert more == "and 1 more document; GET /v1/documents lists all, page by page"


async def test_the_command_itself_adds_and_ends_with_what_went_wrong(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "good.md").write_text(RUSSIAN)
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.7 no")
    files = (str(tmp_path / "good.md"), str(tmp_path / "bad.pdf"))
    code, told = await launched_words("documents", "add", *files, database_url=dsn, log_level="error")
    assert (code, "added good  version 1  1 page  " in told, "Traceback" in told) == (1, True, False), told
    assert told.splitlines()[-1].startswith(f"longhouse: {tmp_path}/bad.pdf is ")


async def test_one_that_is_killed_while_it_adds_leaves_nothing_half_added(
    settings: Settings, db: Database, tmp_path: Path, dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.md"
    rules.write_text(ENGLISH)
    assert await added(settings, [rules]) == 0
    before = await state(db)
    rules.write_text(ENGLISH.replace("padlock", "seal"))
    holder = await asyncpg.connect(dsn)
    async with holder.transaction():
        # The passages of the new version are written last, after its pages: there it has to wait.
        await holder.execute("LOCK TABLE longhouse.passages IN ACCESS EXCLUSIVE MODE")
        env = {**os.environ, "LONGHOUSE_DATABASE_URL": dsn, **{f"LONGHOUSE_{key.upper()}": "" for key in NO_FILES}}
        adding = Forked(("longhouse", "documents", "add", str(rules)), env, None)
        output = await adding.output()
        async with asyncio.timeout(30):
            while not await db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.02)
        adding.kill()
        await adding.wait()
        await output.read()
    await holder.close()
    async with asyncio.timeout(30):
        while (
            await db.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%passages%' AND state = 'active'")
            > 1
        ):
            await asyncio.sleep(0.02)
    assert await state(db) == before, "the old version is whole, and nothing of the new one is there"
    capsys.readouterr()
    assert await added(settings, [rules]) == 0
    assert capsys.readouterr().out.startswith("changed rules  version 2")
    assert await db.value("SELECT count(*) FROM passages WHERE text LIKE '%padlock%'") == 0


def columns(line: str) -> list[str]:
    return line.split("  ")


async def state(db: Database) -> list[object]:
    """Everything that is stored of documents."""
    tables = ("documents", "document_versions", "document_pages", "passages", "passage_postings")
    return [await db.value(f"SELECT json_agg(t ORDER BY t::text)::text FROM {table} t") for table in tables]
