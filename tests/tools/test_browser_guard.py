"""What a policy writes never reaches this machine or its network, however it is spelt."""

import asyncio
import itertools
import socket

import pytest
from small_web import HERE, Web, answer, redirect

from arpo.tools.browser.errors import NoNetworkError, PageError
from arpo.tools.browser.fetch import Fetcher
from arpo.tools.browser.guard import Address, Rules, is_public, parse
from arpo.tools.browser.manners import Manners
from arpo.tools.browser.transport import Transport, resolve

PRIVATE = """
    127.0.0.1 127.255.255.254 0.0.0.0 10.1.2.3 172.16.0.1 172.31.255.255 192.168.0.1 169.254.169.254 100.64.0.1
    100.100.100.200 192.0.0.192 192.0.0.8 192.0.2.1 198.18.0.1 198.51.100.7 203.0.113.9 192.88.99.1 168.63.129.16
    224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::a00:1
    64:ff9b:1::808:808 2002:7f00:1:: 2002:a00:1::1 2001:0:7f00:1::f5ff:fffe 2001:0:808:808::80ff:fffe 100::1
    2001:db8::1 3fff::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 5f00::1 4000::1
    2606:4700::5efe:7f00:1 2606:4700::200:5efe:a00:1 localhost 127.1
"""
PUBLIC = """
    8.8.8.8 93.184.215.14 1.1.1.1 2606:4700:4700::1111 2001:4860:4860::8888 ::ffff:8.8.8.8 64:ff9b::808:808
    2002:808:808::1 2001:0:808:808::f7f7:f7f7 2606:4700::5efe:808:808
"""
SPELT = (
    "127.0.0.1 2130706433 0x7f000001 0177.0.0.1 127.1 0 0x7f.1 ①②⑦.0.0.1 localhost [::1] [::ffff:127.0.0.1] "
    "[64:ff9b::7f00:1] [2002:7f00:1::] 169.254.169.254 [fd00:ec2::254] 100.64.0.1 [::] 10.0.0.1"
)


@pytest.mark.parametrize("ip", PRIVATE.split())
def test_addresses_that_are_not_the_public_internets(ip):
    assert not is_public(ip)


@pytest.mark.parametrize("ip", PUBLIC.split())
def test_addresses_that_are(ip):
    assert is_public(ip)


# --- what a URL says -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("file:///etc/passwd", "scheme"),
        ("gopher://good.test/", "scheme"),
        ("ftp://good.test/", "scheme"),
        ("data:text/html,hello", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("good.test/page", "scheme"),
        ("//good.test/page", "scheme"),
        ("", "scheme"),
        ("http:///page", "address"),
        ("http://", "address"),
        ("http:good.test", "address"),
        ("http://good.test@127.0.0.1/", "address"),
        ("http://user:password@good.test/", "address"),
        ("http://@good.test/", "address"),
        ("http://good.test\\@127.0.0.1/", "address"),
        ("http:\\\\127.0.0.1/", "address"),
        ("http://good.test/a b", "address"),
        ("http://good.test\t.evil/", "address"),
        ("http://good.test/\r\nHost: evil", "address"),
        ("http://good.test/\x00", "address"),
        ("http://good.test\u2028/", "address"),
        ("http://good.test\xa0/", "address"),
        ("http://good.test:http/", "address"),
        ("http://good.test:99999/", "address"),
        ("http://127%2e0.0.1/", "address"),
        ("http://[fe80::1%25eth0]/", "address"),
        ("http://[::1/", "address"),
        ("http://[good.test]/", "address"),
        ("http://a..b/", "address"),
        ("http://" + "a" * 64 + ".test/", "address"),
        ("http://\u2100good.test/", "address"),
        ("http://good.test/" + "a" * 4000, "address"),
    ],
)
def test_urls_that_are_refused_as_they_stand(url, kind):
    with pytest.raises(PageError) as refused:
        parse(url)
    assert refused.value.kind == kind
    assert refused.value.sentence.endswith(".")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://good.test", Address("http", "good.test", 80, "/")),
        (" https://GOOD.Test./a/../b?q=1&r=%20#part \n", Address("https", "good.test", 443, "/a/../b?q=1&r=%20")),
        ("http://good.test:8080/", Address("http", "good.test", 8080, "/")),
        ("http://good.test:0/", Address("http", "good.test", 0, "/")),
        ("http://[0:0::1]/", Address("http", "::1", 80, "/")),
        ("http://bücher.test/größe?ü", Address("http", "xn--bcher-kva.test", 80, "/gr%C3%B6%C3%9Fe?%C3%BC")),
        ("http://①②⑦.0.0.1/", Address("http", "127.0.0.1", 80, "/")),
        ("http://１２７。０。０。１/", Address("http", "127.0.0.1", 80, "/")),
    ],
)
def test_urls_taken_apart(url, address):
    assert parse(url) == address


def test_an_address_as_it_is_sent():
    assert parse("http://[::1]:8080/x").authority == "[::1]:8080"
    assert parse("https://good.test:443/x?y").url == "https://good.test/x?y"
    assert parse("https://good.test/a/b").join("../c?d#e").url == "https://good.test/c?d"
    assert parse("https://good.test/a").join("//other.test/ x").url == "https://other.test/%20x"


# --- what is connected to --------------------------------------------------------------------------------------------


def transport(web, rules=Rules(), **options):
    return Transport(rules, context=web.trusting, connector=web, **{"resolver": web.resolver} | options)


async def fetched(web, url, rules=Rules(), **options):
    manners = Manners(interval=0)
    fetcher = Fetcher(transport(web, rules, **options), manners, agent="test", deadline=5)
    return await fetcher.get(parse(url))


async def refusal(web, url, *rest, **options):
    with pytest.raises(PageError) as refused:
        await fetched(web, url, *rest, **options)
    return refused.value


@pytest.mark.parametrize("host", SPELT.split())
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_spelling_of_a_private_address_is_connected_to(host, scheme):
    """Numbers and `localhost` are looked up by the operating system, as they would be outside."""
    web = Web()
    refused = await refusal(web, f"{scheme}://{host}/", resolver=resolve)
    assert refused.kind == "address"
    assert refused.sentence.endswith("is not on the public internet, so it is not opened.")
    assert web.connected == []


async def test_a_name_of_a_private_address_is_refused_without_telling_it():
    web = Web(names={"metadata.google.internal": ["169.254.169.254"], "intern.test": ["10.99.1.2"]})
    for host in web.names:
        refused = await refusal(web, f"http://{host}/")
        assert (refused.kind, refused.sentence) == (
            "address",
            f"{host} is not on the public internet, so it is not opened.",
        )
    assert web.connected == []


@pytest.mark.parametrize("ips", [[HERE, "127.0.0.1"], ["127.0.0.1", HERE], [HERE, "::1"], [HERE, "nonsense"], []])
async def test_one_private_address_among_public_ones_is_enough(ips):
    web = Web(names={"mixed.test": ips})
    assert (await refusal(web, "http://mixed.test/")).kind in ("address", "host")
    assert web.connected == []


async def test_a_name_that_changes_its_mind_is_looked_up_once_per_connection():
    """Public at the first look, private at the second: there is no second look between check and connection."""
    answers = itertools.chain([[HERE]], itertools.repeat(["127.0.0.1"]))
    async with Web(pages={"/": answer(b"public")}) as web:
        web.names["rebind.test"] = lambda: next(answers)
        assert (await fetched(web, "http://rebind.test/")).body == b"public"
        assert (await refusal(web, "http://rebind.test/")).kind == "address"
    assert web.looked_up == ["rebind.test"] * 2
    assert web.connected == [(HERE, 80)]


async def test_the_connection_goes_to_the_address_and_the_name_stays():
    async with Web(pages={"/x?y=1": answer(b"hello")}) as web:
        document = await fetched(web, "https://good.test/x?y=1")
    assert document.body == b"hello"
    assert web.connected == [(HERE, 443)]
    assert [(asked.host, asked.target) for asked in web.asked] == [("good.test", "/x?y=1")]


async def test_a_certificate_for_another_name_is_refused():
    async with Web(names={"evil.test": [HERE]}) as web:
        assert (await refusal(web, "https://evil.test/")).kind == "tls"
    assert web.asked == []


async def test_the_next_address_is_tried_where_one_does_not_answer():
    async with Web(names={"good.test": ["8.8.4.4", HERE]}, pages={"/": answer(b"x")}) as web:
        assert (await fetched(web, "http://good.test/")).body == b"x"
    assert web.connected == [("8.8.4.4", 80), (HERE, 80)]


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1/",
        "http://localhost:80/",
        "http://[::1]/",
        "//127.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://intern.test/",
        "http://good.test@127.0.0.1/",
        "http:\\\\127.0.0.1\\",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "http://good.test:6379/",
    ],
)
@pytest.mark.parametrize("status", [301, 307])
async def test_redirects_are_checked_like_addresses(target, status):
    pages = {"/": redirect("/two", status), "/two": redirect(target, status)}
    async with Web(pages=pages) as web:
        web.names |= {"intern.test": ["192.168.1.1"], "localhost": ["127.0.0.1"], "127.1": ["127.0.0.1"]}
        assert (await refusal(web, "http://good.test/")).kind in ("address", "scheme")
    assert web.connected == [(HERE, 80)] * 2


async def test_a_thousand_redirects_end_after_five():
    async def onward(asked, writer):
        writer.write(redirect(f"/{int(asked.target[1:]) + 1}"))

    async with Web(pages={f"/{number}": onward for number in range(1001)}) as web:
        assert (await refusal(web, "http://good.test/0")).kind == "redirects"
    assert [asked.target for asked in web.asked] == [f"/{number}" for number in range(6)]


async def test_what_is_private_does_not_follow_a_redirect_to_another_origin():
    secret = {"Authorization": "Bearer x", "Cookie": "a=b", "X-Own": "1"}
    pages = {
        "good.test/": redirect("/same"),
        "good.test/same": redirect("http://other.test/"),
        "other.test/": redirect("http://good.test/back"),
        "good.test/back": answer(b"x"),
    }
    async with Web(pages=pages) as web:
        fetcher = Fetcher(transport(web), Manners(interval=0), agent="test")
        await fetcher.get(parse("http://good.test/"), headers=secret)
    seen = [(asked.host, "authorization" in asked.headers, "cookie" in asked.headers) for asked in web.asked]
    assert seen == [
        ("good.test", True, True),
        ("good.test", True, True),
        ("other.test", False, False),
        ("good.test", False, False),
    ]
    assert all(asked.headers["x-own"] == "1" for asked in web.asked)


async def test_a_cookie_that_was_set_is_not_sent_back():
    pages = {"/": answer(status=302, location="/two", set_cookie="track=1"), "/two": answer(b"x")}
    async with Web(pages=pages) as web:
        await fetched(web, "http://good.test/")
    assert all("cookie" not in asked.headers for asked in web.asked)


async def test_proxies_in_the_environment_are_ignored(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Web(pages={"/": answer(b"x")}) as web:
        assert (await fetched(web, "http://good.test/")).body == b"x"
        assert (await fetched(web, "https://good.test/")).body == b"x"


# --- what a user may open ---------------------------------------------------------------------------------------------


async def test_ports_and_blocked_domains():
    web = Web()
    assert (await refusal(web, "http://good.test:8080/")).kind == "address"
    assert (await refusal(web, "http://good.test:8080/", Rules(ports=(8081,)))).kind == "address"
    rules = Rules(block_hosts=("good.test",))
    assert (await refusal(web, "http://good.test/", rules)).kind == "blocked"
    assert (await refusal(web, "http://sub.good.test/", rules)).kind == "blocked"
    assert (await refusal(web, "http://notgood.test/", rules)).kind == "host"
    assert web.connected == []


async def test_a_listed_host_may_be_on_this_machine_and_no_other():
    async with Web(pages={"/": answer(b"local"), "/out": redirect("http://127.0.0.1:1/")}) as web:
        port = web.ports[80]
        web.machines |= {"127.0.0.1"}
        rules = Rules(allow_hosts=(f"127.0.0.1:{port}",))
        assert (await fetched(web, f"http://127.0.0.1:{port}/", rules, resolver=resolve)).body == b"local"
        for other in (f"http://localhost:{port}/", "http://127.0.0.1/", f"http://127.0.0.1:{port}/out"):
            assert (await refusal(web, other, rules, resolver=resolve)).kind == "address"
        named = Rules(allow_hosts=("wiki.corp",))
        web.names["wiki.corp"] = ["127.0.0.1"]
        assert (await fetched(web, "http://wiki.corp/", named)).body == b"local"
        assert (await refusal(web, f"http://wiki.corp:{port}/", named)).kind == "address"
        everything = Rules(allow_private=True, ports=(port,))
        assert (await fetched(web, f"http://127.0.0.1:{port}/", everything, resolver=resolve)).body == b"local"


# --- names that do not resolve ----------------------------------------------------------------------------------------


async def test_an_unknown_host_is_told_and_a_resolver_that_fails_is_not_the_pages_fault():
    web = Web(names={"down.test": socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")})
    refused = await refusal(web, "http://nowhere.test/")
    assert (refused.kind, refused.sentence) == ("host", "There is no host nowhere.test.")
    with pytest.raises(NoNetworkError):
        async with transport(web).get(parse("http://down.test/"), {}):
            pass


async def test_a_transport_serves_one_event_loop_after_another():
    def once():
        async def run():
            async with Web(pages={"/": answer(b"x")}) as web:
                shared.ports = web.ports
                return (await fetcher.get(parse("http://good.test/"))).body

        return asyncio.run(run())

    shared = Web()
    fetcher = Fetcher(transport(shared), Manners(interval=0), agent="test")
    assert [await asyncio.to_thread(once) for _ in range(2)] == [b"x", b"x"]
