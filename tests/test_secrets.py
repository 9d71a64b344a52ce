"""Secrets by name: each goes where it belongs, and what is wrong with one is said without it."""

import pytest

from longhouse.errors import SetupError
from longhouse.secrets import BoundSecret, Secrets, keys_in

CANARY = "sk-canary-1234"
FILE = Secrets({"config:llm": BoundSecret(CANARY, "https://api.example.com/v1")}, {})


@pytest.mark.parametrize(
    ("url", "is_meant"),
    [
        ("https://api.example.com/v1", True),
        ("https://api.example.com/v1/", True),
        ("https://API.Example.com.:443/v1/deep?api-version=7", True),
        ("http://api.example.com/v1", False),
        ("https://api.example.com:8443/v1", False),
        ("https://api.example.com/v2", False),
        ("https://api.example.com/v11", False),
        ("https://api.example.com/", False),
        ("https://api.example.com/v1/../v2", False),
        ("https://api.example.com/v1/%2e%2e/v2", False),
        ("https://example.com/v1", False),
        ("https://api.example.com.evil.test/v1", False),
        ("https://evil.test/v1?https://api.example.com/v1", False),
    ],
)
def test_a_key_of_a_file_goes_to_the_address_that_it_stands_beside(url: str, is_meant: bool) -> None:
    if is_meant:
        assert (FILE.find("config:llm", url), FILE.problem("config:llm", url)) == (CANARY, None)
        return
    with pytest.raises(SetupError, match="belongs to another address") as refused:
        FILE.find("config:llm", url)
    told = f"{refused.value} {FILE.problem('config:llm', url)} {FILE!r}"
    assert CANARY not in told
    assert "example" not in told, "nor is it told where it belongs"


@pytest.mark.parametrize("alias", ["config_llm", "CONFIG.LLM", "Config:llm"])
def test_no_other_spelling_of_its_name_sets_a_key_of_a_file_free(alias: str) -> None:
    bound = {"config:llm": BoundSecret(CANARY, "https://api.example.com/v1")}
    both = Secrets(bound, {"LONGHOUSE_SECRET_CONFIG_LLM": CANARY})
    without_the_file = Secrets({}, {"LONGHOUSE_SECRET_CONFIG_LLM": CANARY})
    for secrets in (both, without_the_file):
        with pytest.raises(SetupError, match="belongs to another address"):
            secrets.find(alias, "https://evil.test/v1")
    hosts = {"LONGHOUSE_SECRET_CONFIG_LLM": CANARY, "LONGHOUSE_SECRET_CONFIG_LLM_HOSTS": "api.example.com"}
    assert Secrets({}, hosts).find(alias, "https://api.example.com/v1") == CANARY


@pytest.mark.parametrize(
    ("hosts", "url", "is_meant"),
    [
        ("", "http://anywhere.test/", True),
        (" ", "http://anywhere.test/", True),
        ("api.example.com", "https://api.example.com/x", True),
        ("api.example.com", "https://API.example.com.:8080/x", True),
        ("api.example.com", "http://api.example.com/x", False),
        ("api.example.com", "grpc://api.example.com:50051", False),
        ("api.example.com", "grpcs://api.example.com:50051", True),
        ("api.example.com:8080", "http://api.example.com:8080/x", False),
        ("http://mcp:8080,a.test", "http://mcp:8080/x", True),
        ("http://mcp:8080,a.test", "http://a.test/x", False),
        ("http://mcp:8080", "http://mcp:8081/x", False),
        ("http://mcp", "https://mcp/x", True),
        ("grpc://tools:50051", "grpc://tools:50051", True),
        ("localhost", "http://localhost:9000/", True),
        ("localhost.evil.test", "http://localhost.evil.test/", False),
        ("api.example.com", "https://evil.test/", False),
        ("api.example.com", "https://api.example.com.evil.test/", False),
        ("a.test, Other.test:8443,", "https://other.test:8443/", True),
        ("a.test,other.test:8443", "https://other.test/", False),
        ("[::1]:9000", "http://[::1]:9000/", True),
        ("127.0.0.1:9000", "http://127.0.0.1:9001/", False),
    ],
)
def test_a_secret_of_the_environment_may_name_its_hosts(hosts: str, url: str, is_meant: bool) -> None:
    secrets = Secrets(environ={"LONGHOUSE_SECRET_MY_KEY": CANARY, "LONGHOUSE_SECRET_MY_KEY_HOSTS": hosts})
    assert (secrets.problem("my-key", url) is None) is is_meant
    if is_meant:
        assert secrets.find("my-key", url) == CANARY


def test_a_list_that_cannot_be_read_lets_a_secret_go_nowhere() -> None:
    for hosts in ("https://api.example.com", "a b", "host:x", "user@host"):
        secrets = Secrets(environ={"LONGHOUSE_SECRET_K": CANARY, "LONGHOUSE_SECRET_K_HOSTS": hosts})
        assert secrets.problem("k", "https://api.example.com/") == (
            "LONGHOUSE_SECRET_K_HOSTS is a list of hosts, host or host:port, with commas between them"
        )
        with pytest.raises(SetupError):
            secrets.find("k", "https://api.example.com/")
    secrets = Secrets(environ={"LONGHOUSE_SECRET_K": CANARY, "LONGHOUSE_SECRET_K_HOSTS": "a.test"})
    assert secrets.problem("k", "http://a.test/") == (
        "the secret 'k' belongs to another address and is not sent to this one, unless its list of hosts says http://"
        " or grpc:// before the host"
    )


def test_a_secret_that_is_missing_is_told_with_the_variable_to_set() -> None:
    secrets = Secrets(environ={"LONGHOUSE_SECRET_K": "", "PATH": "/bin", "LONGHOUSE_ADMIN_KEY": CANARY})
    for name in ("k", "path", "no.such-key"):
        assert secrets.find(name, "https://a.test/") is None
    assert secrets.problem("no.such-key", "https://a.test/") == (
        "the secret 'no.such-key' is not set here; give it to this process as LONGHOUSE_SECRET_NO_SUCH_KEY"
    )


def test_a_list_of_hosts_is_no_secret_itself_unless_there_is_nobody_whose_it_is() -> None:
    url = "https://a.test/"
    assert (
        Secrets(environ={"LONGHOUSE_SECRET_K": "v", "LONGHOUSE_SECRET_K_HOSTS": "a.test"}).find("k_hosts", url) is None
    )
    assert Secrets(environ={"LONGHOUSE_SECRET_K_HOSTS": CANARY}).find("k-hosts", url) == CANARY


@pytest.mark.parametrize(
    "query",
    ["api_key=x", "apikey=x", "API-Key=x", "key=x", "token=x", "access_token=x", "sig=x", "X-Amz-Signature=x",
     "tavilyApiKey=x", "a=1&client_secret=x", "a=1;password=x", "%61pi_key=x", "subscription-key=x", "jwt=x",
     "q=sk-abcdefgh", "code=" + "a1" * 20],
)  # fmt: skip
def test_a_key_in_a_query_is_seen(query: str) -> None:
    assert keys_in(f"https://tools.test/x?{query}")


@pytest.mark.parametrize(
    "query",
    ["", "api-version=7", "kind=pay&to=a", "keyboard=qwerty", "monkeys=3", "key=", "code=de", "tokens=5", "page=1"],
)
def test_other_queries_are_let_be(query: str) -> None:
    assert keys_in(f"https://tools.test/x?{query}") == []
