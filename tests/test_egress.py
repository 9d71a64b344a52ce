"""What may be reached: public addresses, and what the operator allows; decided once for check and call."""

import ipaddress
import socket

import pytest
from yarl import URL

from longhouse.egress import ANYWHERE, Egress, EgressRefused, EgressResolver, is_public, look_up, parse
from longhouse.errors import SetupError


def gate(*addresses: str, allow: tuple[str, ...] = ()) -> EgressResolver:
    async def lookup(host: str, port: int) -> list[str]:
        return list(addresses)

    return EgressResolver(Egress(allow), lookup)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:5432",
        "http://127.1/",
        "http://0x7f.1/",
        "http://0x7f000001/",
        "http://2130706433",
        "http://0177.0.0.1/",
        "http://127.0.0.1./",
        "http://0/",
        "http://0.0.0.0/",
        "http://localhost/",
        "http://LOCALHOST.:80/",
        "http://x.localhost/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:8.8.8.8]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b::808:808]/",
        "http://[2002:7f00:1::]/",
        "http://[2001:0:7f00:1::]/",
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://[ff02::1]/",
        "http://[v1.x]/",
        "http://10.0.0.1/",
        "http://172.16.0.1/",
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://224.0.0.1/",
        "http://240.0.0.1/",
        "http://255.255.255.255/",
        "http://192.0.2.1/",
        "http://192.88.99.1/",
        "http://x.0x10/",
    ],
)
def test_an_address_that_is_not_public_is_refused(url: str) -> None:
    assert Egress().problem(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://user@example.com/",
        "http://user:secret@example.com/",
        "http://@example.com/",
        "http://a\\@b/",
        "http://a/\\b",
        "http://①②⑦.0.0.1/",
        "http://127。0。0。1/",
        "http://exаmple.com/",
        "http://%31%32%37.0.0.1/",
        "http://exa mple.com/",
        "http://exam\tple.com/",
        "http://example.com/\r\nx: y",
        "http://example.com:99999/",
        "http://example.com:0/",
        "http://example.com:x/",
        "http://a..b/",
        "http://-a.com/",
        "http://example.com/#part",
        "http://[::1]evil/",
        "http:///path",
        "http:example.com",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://" + "a." * 200 + "com/",
        "http://example.com/" + "x" * 2000,
        "",
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(url: str) -> None:
    problem = Egress().problem(url)
    assert problem
    assert "secret@" not in problem
    with pytest.raises(ValueError, match=r"."):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "https://Tools.Example.com:8443/v1/pay?kind=%C3%A9&to=a@b",
        "https://example.com./",
        "http://8.8.8.8/",
        "http://[2606:4700::1111]:8080/x",
        "https://xn--bcher-kva.example/",
        "http://tool_server/",
    ],
)
def test_a_public_looking_address_may_be_published(url: str) -> None:
    assert Egress().problem(url) is None


@pytest.mark.parametrize(
    ("allow", "url", "is_allowed"),
    [
        ("127.0.0.1:9000", "http://127.0.0.1:9000/", True),
        ("127.0.0.1:9000", "http://127.0.0.1:9001/", False),
        ("127.0.0.1:9000", "http://localhost:9000/", True),
        ("127.0.0.1", "http://127.0.0.1:1/", True),
        ("localhost:9000", "http://localhost.:9000/", True),
        ("LocalHost.:9000", "http://localhost:9000/", True),
        ("localhost:9000", "http://localhost/", False),
        ("localhost:9000", "http://127.0.0.1:9000/", False),
        ("10.0.0.0/8", "http://10.1.2.3/", True),
        ("10.0.0.0/8", "http://11.1.2.3/", True),
        ("10.0.0.0/8", "http://192.168.0.1/", False),
        ("10.0.0.0/8:443", "https://10.1.2.3/", True),
        ("10.0.0.0/8:443", "http://10.1.2.3/", False),
        ("[::1]:80", "http://[::1]/", True),
        ("[fd00::/8]:80", "http://[fd12::1]/", True),
        ("fd00::/8", "http://[fd12::1]:8080/", True),
        ("10.0.0.0/8", "http://[::ffff:10.1.2.3]/", False),
        ("::ffff:0:0/96", "http://[::ffff:10.1.2.3]/", True),
        ("127.0.0.1", "http://127.1/", False),
    ],
)
def test_the_operator_may_allow_more(allow: str, url: str, is_allowed: bool) -> None:
    assert (Egress([" ", allow]).problem(url) is None) is is_allowed


@pytest.mark.parametrize(
    "entry",
    ["example.com", "example.com:", "example.com:0", "example.com:70000", "*:80", "http://a:80", "10.0.0.1/8",
     "10.0.0.0/33", "127.1:80", "[::1", "::1:x", "a b:80", "[example.com]:80"],
)  # fmt: skip
def test_a_rule_that_means_nothing_stops_the_start(entry: str) -> None:
    with pytest.raises(SetupError, match="is not an address that can be allowed"):
        Egress([entry])


def test_nothing_is_public_that_hides_another_address() -> None:
    for text in ("::127.0.0.1", "::ffff:1.1.1.1", "2002:101:101::", "2001::1", "64:ff9b:1::1", "fec0::1", "4000::1"):
        assert not is_public(ipaddress.ip_address(text)), text
    for text in ("1.1.1.1", "2606:4700:4700::1111", "2a00:1450::1"):
        assert is_public(ipaddress.ip_address(text)), text


@pytest.mark.parametrize(
    "addresses",
    [("127.0.0.1",), ("1.1.1.1", "10.0.0.1"), ("2606:4700::1111", "::1"), ("::ffff:1.1.1.1",)],
)
async def test_one_address_that_is_not_allowed_spoils_a_name(addresses: tuple[str, ...]) -> None:
    with pytest.raises(EgressRefused, match=r"tool\.test is not a public address"):
        await gate(*addresses).resolve("tool.test", 80)


async def test_a_name_gives_exactly_the_addresses_that_were_checked() -> None:
    found = await gate("1.1.1.1", "2606:4700::1111").resolve("tool.test", 80)
    assert found == ["1.1.1.1", "2606:4700::1111"]


async def test_a_name_that_the_operator_names_may_be_anywhere() -> None:
    named = gate("10.0.0.7", allow=("tool.test:80",))
    info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.7", 80))
    with pytest.raises(EgressRefused):
        named.socket(info)
    assert await named.resolve("Tool.Test.", 80) == ["10.0.0.7"]
    named.socket(info).close()
    with pytest.raises(EgressRefused):
        await named.resolve("tool.test", 81)
    with pytest.raises(EgressRefused):
        named.socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.7", 81)))


async def test_no_socket_is_made_for_an_address_that_is_not_allowed() -> None:
    for family, address in ((socket.AF_INET, ("127.0.0.1", 80)), (socket.AF_INET6, ("::1", 80, 0, 0))):
        with pytest.raises(EgressRefused):
            gate().socket((family, socket.SOCK_STREAM, 0, "", address))


async def test_a_name_without_an_address_is_an_error() -> None:
    with pytest.raises(OSError, match="has no address"):
        await gate().resolve("tool.test", 80)


async def test_names_are_looked_up_as_this_machine_knows_them() -> None:
    found = await look_up("localhost", 80)
    assert set(found) & {"127.0.0.1", "::1"}
    assert all(ipaddress.ip_address(one).is_loopback for one in found)


METADATA = (
    "169.254.169.254", "169.254.170.2", "fe80::1", "fe80::1%2", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200",
    "168.63.129.16", "192.0.0.192", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "::a9fe:a9fe",
)  # fmt: skip


@pytest.mark.parametrize("address", METADATA)
async def test_metadata_of_clouds_is_reached_by_nobody_whatever_the_operator_allows(address: str) -> None:
    plain = address.partition("%")[0]
    host = f"[{plain}]" if ":" in plain else plain
    for egress in (Egress(), Egress(["0.0.0.0/0", "::/0"]), ANYWHERE, Egress().allowing([f"http://{host}:80/v1"])):
        assert egress.problem(f"http://{host}:80/latest")
    for rules in (Egress(["0.0.0.0/0", "::/0", "model.test:80"]), ANYWHERE):

        async def lookup(host: str, port: int) -> list[str]:
            return ["127.0.0.1", address]

        guard = EgressResolver(rules, lookup)
        with pytest.raises(EgressRefused, match=r"model\.test is a link-local or metadata address"):
            await guard.resolve("model.test", 80)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with pytest.raises(EgressRefused):
            guard.socket((family, socket.SOCK_STREAM, 0, "", (address, 80)))


def test_what_the_operator_has_set_up_may_be_anywhere_else_and_its_neighbours_may_not() -> None:
    for url in (
        "http://127.0.0.1:11434/v1",
        "http://localhost/",
        "http://10.1.2.3/",
        "http://[fd12::1]/",
        "http://box/",
    ):
        assert ANYWHERE.problem(url) is None, url
    assert ANYWHERE.problem("http://metadata.google.internal/x"), "a proxy would look it up"
    named = Egress().allowing(["http://127.0.0.1:11434/v1", "http://[::1]:9/v1", "https://Models.Test./v1"])
    assert named.problem("http://127.0.0.1:11434/other") is None
    assert named.problem("http://[::1]:9/") is None
    assert named.allows_name("models.test", 443)
    assert named.problem("http://127.0.0.1:5432/")
    assert named.problem("http://127.0.0.2:11434/")


@pytest.mark.parametrize(
    "host", ["127.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "169.254.43518", "x.0x10"]
)
def test_an_odd_spelling_is_refused_to_the_operator_too(host: str) -> None:
    for egress in (ANYWHERE, Egress(["0.0.0.0/0"])):
        assert "unusual form" in (egress.refusal_of(URL(f"http://{host}:80/v1")) or "")


def test_through_a_proxy_a_name_is_reached_only_where_the_operator_has_named_it() -> None:
    rules = Egress(["127.0.0.1:80", "named.test:80"]).allowing(["https://models.test/v1"])
    for url in ("http://named.test/", "https://Models.Test./v1", "http://8.8.8.8/", "http://127.0.0.1/"):
        assert rules.refusal_behind_proxy(URL(url)) is None, url
    for url in ("http://a.test/", "http://named.test:81/", "http://models.test/", "http://localhost/", "http://8.8/"):
        assert rules.refusal_behind_proxy(URL(url)), url
    for url in ("http://10.0.0.1/", "http://169.254.169.254/", "http://metadata.google.internal/"):
        assert rules.refusal_behind_proxy(URL(url)) == rules.refusal_of(URL(url)), url
    assert ANYWHERE.refusal_behind_proxy(URL("http://a.test/")) is None
    assert ANYWHERE.refusal_behind_proxy(URL("http://169.254.169.254/"))


def test_an_odd_spelling_of_an_address_is_refused_in_words_at_the_last_look() -> None:
    gate = EgressResolver(ANYWHERE, look_up)
    with pytest.raises(EgressRefused):
        gate.socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.1", 80)))
