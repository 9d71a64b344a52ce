"""Keys in files become secrets of the process; templates carry their names, and each key goes to its own address."""

from pathlib import Path

from file_helpers import given, sound, wrong

COMMON = "llm: {base_url: 'http://common/v1', api_key: sk-common, proxy: 'http://proxy:1', model: big}"


def test_the_llm_of_all_is_the_process_s_own_and_is_published_nowhere(tmp_path: Path) -> None:
    found = given(tmp_path, COMMON)
    templates = sound(found)
    endpoint = found.common.section("llm")
    assert endpoint["base_url"] == "http://common/v1"
    assert (endpoint["api_key"], endpoint["model"]) == ("sk-common", "big")
    assert found.touched == set(), "no template has changed"
    assert "sk-common" not in repr(found)
    assert templates["sgr_agent"].llm_policy.base_url is None


def test_an_agent_s_own_key_is_published_as_a_name(tmp_path: Path) -> None:
    agents = """
        agents:
          elsewhere: {llm: {base_url: "http://own/v1", api_key: sk-own, model: small}}
          same_place: {llm: {api_key: sk-mine}}
          other_way: {llm: {proxy: null}}
          keyless: {llm: {base_url: "http://own/v1"}}
          named: {llm: {base_url: "http://own/v1", api_key_ref: vault}}
          plain: {llm: {model: small}}
    """
    found = given(tmp_path, COMMON, agents)
    policies = {name: template.llm_policy for name, template in sound(found).items()}
    reach = {name: (one.base_url, one.api_key_ref, one.proxy) for name, one in policies.items() if one.model != "x"}
    assert reach["elsewhere"] == ("http://own/v1", "agents:elsewhere", "http://proxy:1")
    assert reach["same_place"] == ("http://common/v1", "agents:same_place", "http://proxy:1")
    assert reach["other_way"] == ("http://common/v1", "config:llm", None)
    assert reach["keyless"] == ("http://own/v1", None, "http://proxy:1"), "a key goes nowhere but to its own address"
    assert reach["named"] == ("http://own/v1", "vault", "http://proxy:1")
    assert reach["plain"] == (None, None, None)
    assert policies["plain"].model == "small"
    assert {name: (one.value, one.base_url) for name, one in found.secrets.items()} == {
        "config:llm": ("sk-common", "http://common/v1"),
        "agents:elsewhere": ("sk-own", "http://own/v1"),
        "agents:same_place": ("sk-mine", "http://common/v1"),
    }
    assert "sk-" not in repr(found.secrets)


def test_what_is_wrong_with_a_key_is_said_without_it(tmp_path: Path) -> None:
    config = "llm: {api_key: sk-canary-0}\nsearch: {tavily_api_key: [sk-canary-1]}\n"
    agents = """agents:
  a: {llm: {api_key: sk-canary-2}}
  b: {llm: {base_url: "http://user:sk-canary-3@host/v1"}}
  c: {llm: {base_url: "http://host/v1", api_key: 12345678}}
  d: {llm: {base_url: "http://host/v1", api_key: sk-canary-4, api_key_ref: x}}
  e: {search: {tavily_api_key: 7}}
  f: {llm: {base_url: "http://host/v1", api_key_ref: sk-canary-6-abcdefghijklmnopqrstuvwxyz0123456789}}
"""
    lines = wrong(given(tmp_path, config, agents), tmp_path)
    assert lines == [
        "agents.yaml:2: agents.a.llm.api_key: needs a base_url beside it, or in the `llm` of config.yaml",
        "agents.yaml:3: agents.b.llm.base_url: should be an address that begins with http:// or https://, without a "
        "user or a password in it",
        "agents.yaml:4: agents.c.llm.api_key: should be a text; put it in quotes",
        "agents.yaml:5: agents.d.llm.api_key_ref: is set together with api_key; set only one of them",
        "agents.yaml:6: agents.e.search.tavily_api_key: should be a text; put it in quotes",
        "agents.yaml:7: agents.f.llm.api_key_ref: it looks like a key; name a secret here, and give its value to the "
        "process",
        "config.yaml:1: llm.api_key: needs a base_url beside it: a key is sent only there",
        "config.yaml:2: search.tavily_api_key: should be a valid string",
    ]
    assert "canary" not in "".join(lines)


def test_an_endpoint_that_is_wrong_in_part_is_none_and_its_key_goes_nowhere(tmp_path: Path) -> None:
    agents = """agents:
  a: {name: a, llm: {base_url: "ftp://own", api_key: sk-own}}
  b: {llm: {api_key: sk-mine}}
"""
    found = given(tmp_path, COMMON.replace("'http://proxy:1'", "7"), agents)
    assert wrong(found, tmp_path) == [
        "agents.yaml:2: agents.a.llm.base_url: should be an address that begins with http:// or https://, without a "
        "user or a password in it",
        "config.yaml:1: llm.proxy: should be a text; put it in quotes",
    ], "nothing that follows from it"
    assert found.secrets == {}
    assert found.common.section("llm") == {}
    own = given(tmp_path, COMMON, agents.replace("  b:", "  c:"))
    assert "agents:a" not in own.secrets, "its key does not go to the address of all"
