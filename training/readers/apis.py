"""Operations of services out of SDKs and API descriptions: what they are for, their names and their parameters."""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from training.archives import Archive
from training.rows import HAN, Row, clean, first_sentence, operation, pair, spaced

MOST_OF_ONE: Final = 250
"""Operations of one service; more would make it a large part of the whole."""
METHODS: Final = ("get", "put", "post", "delete", "patch")

_SERVICE: Final = re.compile(r"botocore/data/([^/]+)/([^/]+)/service-2\.json\.gz")
_DISCOVERY: Final = re.compile(r"documents/(.+?)\.v[^/]+\.json$")
_HELP: Final = re.compile(r"helps\[['\"](.+?)['\"]\]\s*=\s*f?\"\"\"(.*?)\"\"\"", re.DOTALL)
_COMMAND: Final = re.compile(r'@register_command\(\s*"([^"]+)"[^"]*?class \w+\([^)]*\):\s*"""(.*?)"""', re.DOTALL)
_EXAMPLE: Final = re.compile(r"\*\*(?:Example \d+: )?(.+?)\*\*\s*\n\s*\n(.+?)(?=::|\n\n)", re.DOTALL)
_METHOD: Final = re.compile(r'def (\w+)\(self, request\):\s*r?"""(.*?):param request', re.DOTALL)


def botocore(archive: Archive) -> Iterator[Row]:
    newest: dict[str, str] = {}
    for name in archive.names:  # sorted, so the newest version of a service comes last
        if found := _SERVICE.match(name):
            newest[found[1]] = name
    for name in newest.values():
        model = json.loads(gzip.decompress(archive.data(name)))
        full = model["metadata"].get("serviceFullName", "")
        yield from pair("botocore", first_sentence(clean(model.get("documentation"))), full)
        for one in model["operations"].values():
            shape = model["shapes"].get(one.get("input", {}).get("shape", ""), {})
            yield from operation("botocore", one["name"], "", one.get("documentation", ""), shape.get("members", ()))


def google(archive: Archive) -> Iterator[Row]:
    newest = {found[1]: name for name in archive.names if (found := _DISCOVERY.search(name))}
    for name in newest.values():
        document = json.loads(archive.data(name))
        yield from pair("google", clean(document.get("description")), clean(document.get("title")))
        for method in _methods(document):
            short = " ".join(method["id"].split(".")[-2:])
            yield from operation("google", short, "", method.get("description", ""), method.get("parameters", ()))
        for title, schema in document.get("schemas", {}).items():
            names = " ".join(spaced(one) for one in list(schema.get("properties", ()))[:20])
            said = first_sentence(clean(schema.get("description")))
            yield from pair("google", said, f"{spaced(title)}: {names}") if said else ()


def _methods(resource: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from resource.get("methods", {}).values()
    for beneath in resource.get("resources", {}).values():
        yield from _methods(beneath)


def openapi(archive: Archive) -> Iterator[Row]:
    """Descriptions in the form of OpenAPI, old and new; large clouds have packages of their own."""
    for name in archive.names:
        if not name.endswith(".json") or "amazonaws" in name or "googleapis" in name:
            continue
        try:
            document = json.loads(archive.data(name))
        except ValueError:
            continue
        if isinstance(document, dict) and isinstance(document.get("paths"), dict):
            yield from _described(document)


def _described(document: Mapping[str, Any]) -> Iterator[Row]:
    about = document.get("info") or {}
    yield from pair("openapi", first_sentence(clean(about.get("description"))), clean(about.get("title")))
    found = 0
    for path, methods in document["paths"].items():
        for method, one in methods.items() if isinstance(methods, dict) else ():
            if method not in METHODS or not isinstance(one, dict) or found >= MOST_OF_ONE:
                continue
            found += 1
            known = [given.get("name", "") for given in one.get("parameters") or () if isinstance(given, dict)]
            name = one.get("operationId") or f"{method} {re.sub(r'{.*?}', '', path)}"
            yield from operation("openapi", name, one.get("summary", ""), one.get("description", ""), known)


def azure_cli(archive: Archive) -> Iterator[Row]:
    for name in archive.names:
        if name.endswith("_help.py"):
            for command, said in _HELP.findall(archive.text(name)):
                yield from _azure_help(command, said)
        elif "/aaz/latest/" in name and name.endswith(".py") and (found := _COMMAND.search(archive.text(name))):
            text = clean(found[2].split(":example:")[0])
            yield from operation("azure_cli", found[1], first_sentence(text), text)
            for example in found[2].split(":example:")[1:4]:
                yield from pair("azure_cli", clean(example.strip().split("\n")[0]), f"{spaced(found[1])}: {text[:200]}")


def _azure_help(command: str, said: str) -> Iterator[Row]:
    short = re.search(r"short-summary:\s*>?-?\s*(.+)", said)
    summary = clean(short[1]) if short else ""
    yield from operation("azure_cli", command, summary, "")
    for example in re.findall(r"- name:\s*(.+)", said)[:4]:
        yield from pair("azure_cli", clean(example), f"{spaced(command)}: {summary}")


def aws_cli(archive: Archive) -> Iterator[Row]:
    for name in archive.names:
        if found := re.match(r"awscli/examples/(.+)/(.+)\.rst", name):
            service, command = found[1].split("/")[0], spaced(found[2])
            for title, text in _EXAMPLE.findall(archive.text(name))[:4]:
                yield from pair("aws_cli", clean(title), f"{service} {command}: {clean(text)[:300]}")


def tencent(archive: Archive) -> Iterator[Row]:
    for name in archive.names:
        if re.match(r"tencentcloud/(\w+)/v\d+/\1_client\.py", name):
            for method, said in _METHOD.findall(archive.text(name)):
                if not HAN.search(said):
                    yield from operation("tencent", method, "", said)
