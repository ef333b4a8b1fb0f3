"""robots.txt: asked for once, heeded, and no way around the guard."""

import asyncio

import pytest
from small_web import HERE, Web, answer, redirect

from arpo.tools.base import TransientError
from arpo.tools.browser.errors import PageError
from arpo.tools.browser.fetch import Fetcher
from arpo.tools.browser.guard import Rules, parse
from arpo.tools.browser.manners import Manners
from arpo.tools.browser.robots import Robots
from arpo.tools.browser.transport import Transport

PAGE = "http://good.test/private/page"
CLOSED = b"User-agent: *\nDisallow: /private/\nAllow: /private/open\nCrawl-delay: 7\n"


class Site:
    """Fetcher and robots for a web; `admits` says whether a page may be read."""

    def __init__(self, web):
        self.manners, self.time = Manners(interval=0), 0.0
        transport = Transport(Rules(), context=web.trusting, resolver=web.resolver, connector=web)
        self.fetcher = Fetcher(transport, self.manners, agent="arpo/1 (+test/2)", deadline=5)
        self.robots = Robots(self.fetcher, self.manners, now=lambda: self.time)

    async def admits(self, url=PAGE):
        try:
            await self.robots.admit(parse(url))
        except PageError as refused:
            if refused.kind != "robots":
                raise
            return False
        return True


async def test_what_a_site_asks_for():
    async with Web(pages={"/robots.txt": answer(CLOSED, kind="text/plain")}) as web:
        site = Site(web)
        assert not await site.admits()
        assert await site.admits("http://good.test/private/open/x")
        assert await site.admits("http://good.test/")
        with pytest.raises(PageError) as refused:
            await site.robots.admit(parse(PAGE))
    assert refused.value.sentence == "good.test asks programs not to read this page; use another source."
    assert [asked.target for asked in web.asked] == ["/robots.txt"]
    assert site.manners._state("good.test").interval == 7


async def test_a_site_may_speak_to_us_alone():
    text = b"User-agent: arpo\nDisallow: /\n\nUser-agent: *\nAllow: /\n"
    async with Web(pages={"/robots.txt": answer(text)}) as web:
        assert not await Site(web).admits("http://good.test/")
        web.pages["/robots.txt"] = answer(text.replace(b"arpo", b"test"))
        assert await Site(web).admits("http://good.test/")


@pytest.mark.parametrize("status", [404, 403, 410, 401])
async def test_a_site_without_one_allows_everything(status):
    async with Web(pages={"/robots.txt": answer(CLOSED, status=status)}) as web:
        assert await Site(web).admits()


async def test_a_server_that_fails_allows_nothing_for_a_moment():
    async with Web(pages={"/robots.txt": answer(status=500)}) as web:
        site = Site(web)
        assert not await site.admits()
        assert not await site.admits()
        web.pages["/robots.txt"] = answer(b"")
        site.time = 61
        assert await site.admits()
    assert len(web.asked) == 2


async def test_a_busy_server_is_asked_again_and_then_left_alone():
    async with Web(pages={"/robots.txt": answer(status=429)}) as web:
        site = Site(web)
        for _ in range(2):
            with pytest.raises(TransientError):
                await site.admits()
        assert not await site.admits()


async def test_an_answer_holds_for_an_hour():
    async with Web(pages={"/robots.txt": answer(b"")}) as web:
        site = Site(web)
        for site.time in (0, 3599, 3601):
            assert await site.admits()
    assert len(web.asked) == 2


@pytest.mark.parametrize("body", [b"\0\xff" * 1000, b"<html>not found</html>", b"Disallow: /\n" * 100_000, b""])
async def test_what_is_no_robots_txt_forbids_nothing(body):
    async with Web(pages={"/robots.txt": answer(body)}) as web:
        assert await Site(web).admits()


async def test_many_and_hostile_rules():
    lines = b"User-agent: *\n" + b"".join(b"Disallow: /*a*a*a*a*a*a*a%d$\n" % number for number in range(5000))
    async with Web(pages={"/robots.txt": answer(lines)}) as web:
        site = Site(web)
        assert await asyncio.wait_for(site.admits("http://good.test/" + "a" * 3000), 10)


async def test_one_look_for_many_pages_at_once_and_one_per_origin():
    async with Web(pages={"/robots.txt": answer(CLOSED)}) as web:
        site = Site(web)
        urls = [PAGE, "http://good.test/", "https://good.test/", "http://other.test/"] * 5
        allowed = await asyncio.gather(*(site.admits(url) for url in urls))
    assert allowed == [False, True, True, True] * 5
    assert sorted(asked.host for asked in web.asked) == ["good.test", "good.test", "other.test"]
    assert sorted(port for _, port in web.connected) == [80, 80, 443]


async def test_it_may_redirect_but_not_to_this_machine():
    pages = {"/robots.txt": redirect("http://other.test/rules"), "other.test/rules": answer(CLOSED)}
    async with Web(pages=pages) as web:
        assert not await Site(web).admits()
        web.pages["/robots.txt"] = redirect("http://127.0.0.1/robots.txt")
        with pytest.raises(PageError) as refused:
            await Site(web).admits()
        web.pages["/robots.txt"] = redirect("/robots.txt")
        assert await Site(web).admits()
    assert refused.value.kind == "address"
    assert {ip for ip, _ in web.connected} == {HERE}


async def test_every_hop_of_a_page_is_asked_for():
    pages = {
        "good.test/robots.txt": answer(b""),
        "other.test/robots.txt": answer(CLOSED),
        "good.test/": redirect("http://other.test/private/page"),
    }
    async with Web(pages=pages) as web:
        site = Site(web)
        with pytest.raises(PageError) as refused:
            await site.fetcher.get(parse("http://good.test/"), admit=site.robots.admit)
    assert refused.value.kind == "robots"
    assert [asked.host + asked.target for asked in web.asked] == [
        "good.test/robots.txt",
        "good.test/",
        "other.test/robots.txt",
    ]
