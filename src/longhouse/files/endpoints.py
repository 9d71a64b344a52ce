"""Where an agent's model is: what the file says of it, with keys turned into names of secrets."""

from dataclasses import dataclass
from typing import Final

from longhouse.files.mistakes import Mistakes
from longhouse.files.nodes import Node, planted
from longhouse.secrets import Bound

COMMON_REF: Final = "config:llm"
REACH: Final = ("base_url", "api_key", "api_key_ref", "proxy")


@dataclass(frozen=True, slots=True)
class Placed:
    """Fields of an LLM policy, and the keys that their references stand for."""

    policy: dict[str, Node]
    secrets: dict[str, Bound]


def placed(llm: Node, common: Node, name: str, mistakes: Mistakes) -> Placed:
    """The endpoint that an agent names; one that names nothing of it has that of all agents."""
    said = {key: node for key, node in llm.only(REACH).items.items() if node.value is not None or key == "proxy"}
    model = llm.only(["model"]).items
    if not said:
        return Placed(model, {})
    first = next(iter(said.values()))
    base_url = said.get("base_url") or _given(common, "base_url")
    if base_url is None:
        mistakes.add(first.spot, "needs a base_url beside it, or in the `llm` of config.yaml")
        return Placed(model, {})
    ref, key = _key(said, f"agents:{name}", mistakes)
    secrets = {ref.value: Bound(key, str(base_url.value))} if ref and key else {}
    if ref is None and base_url.value == common.plain.get("base_url"):
        ref = common_ref(common)
    proxy = said.get("proxy") or _given(common, "proxy")
    parts = {"base_url": base_url, "api_key_ref": ref, "proxy": proxy}
    return Placed({**model, **{key: node for key, node in parts.items() if node is not None}}, secrets)


def common_ref(common: Node) -> Node | None:
    """The name under which an agent may use the key of all. It goes nowhere but to the address it stands beside."""
    if key := _given(common, "api_key"):
        return planted(COMMON_REF, key.spot)
    return _given(common, "api_key_ref")


def _key(said: dict[str, Node], ref: str, mistakes: Mistakes) -> tuple[Node | None, str]:
    """The name of the key that an agent has, and the key, where the file has it."""
    key, named = said.get("api_key"), said.get("api_key_ref")
    if key is None:
        return named, ""
    if named is not None:
        mistakes.add(named.spot, "stands beside an api_key; choose one of them")
    if not isinstance(key.value, str) or not key.value:
        mistakes.add(key.spot, "should be a text; put it in quotes")
        return None, ""
    return planted(ref, key.spot), key.value


def _given(node: Node, name: str) -> Node | None:
    found = node.get(name)
    return found if found and found.value is not None else None
