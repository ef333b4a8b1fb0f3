"""Which addresses may be opened: what a policy writes must not reach this machine, its network or its cloud.

Two checks, and neither trusts the other. A URL is taken apart by one parser, ours, and what it says is all that is ever
used: anything on which two parsers might disagree (blanks, backslashes, user names) is refused. And the host's numeric
addresses are judged when the connection is made, each of them, after taking out the IPv4 addresses that some IPv6
addresses wrap; the connection then goes to the very address that was judged (`transport`). So no spelling of
127.0.0.1 and no name that changes its mind between two look-ups gets through.

`ipaddress` alone does not do: its `is_global` holds for NAT64, 6to4 and IPv4-compatible addresses of 127.0.0.1, for
multicast, and for some addresses at which clouds answer.
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import idna

from arpo.tools.browser.errors import PageError

LONGEST = 4000
"""Characters of a URL."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_DOUBTFUL = re.compile(r"[\s\\\x00-\x20\x7f-\xa0\u2028\u2029\ufeff]")
_PRINTABLE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"<>`{}')

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(block)
    for block in (
        "192.0.0.0/24",  # protocol assignments; one cloud has its metadata there
        "192.88.99.0/24",  # relays of 6to4, gone
        "168.63.129.16/32",  # a cloud's own services, on a public address
        "3fff::/20",  # documentation
    )
)


@dataclass(frozen=True, slots=True)
class Address:
    """A URL taken apart. `host`: ASCII, lower case, IPv6 without brackets; `target`: path and query, ASCII."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """As the Host header states it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        return self.origin + self.target

    def join(self, reference: str) -> "Address":
        """Where a redirect from here leads. Raises PageError."""
        try:
            return parse(urljoin(self.url, _plain(reference.strip(" \t").replace(" ", "%20"))))
        except ValueError as error:
            raise PageError("address", "The page leads to something that is no address of a web page.") from error


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be opened besides public hosts on `ports`; see BrowserSettings."""

    ports: tuple[int, ...] = (80, 443)
    allow_hosts: tuple[str, ...] = ()
    allow_private: bool = False
    block_hosts: tuple[str, ...] = ()

    def check(self, address: Address) -> None:
        """PageError for a port or a domain that is not to be opened."""
        if any(address.host == name or address.host.endswith(f".{name}") for name in self.block_hosts):
            raise PageError("blocked", f"Pages of {address.host} are not to be opened; use another source.")
        if address.port not in self.ports and not self._listed(address.host, address.port, with_port=True):
            ports = " and ".join(map(str, self.ports))
            raise PageError("address", f"Port {address.port} is not to be opened; there are only {ports}.")

    def judge(self, host: str, port: int, ips: list[str]) -> list[str]:
        """`ips`, to which `host` resolved, if every one of them may be connected to; PageError otherwise."""
        if not ips:
            raise PageError("host", f"There is no host {host}.")
        if not (self.allow_private or self._listed(host, port) or all(is_public(ip) for ip in ips)):
            raise PageError("address", f"{host} is not on the public internet, so it is not opened.")
        return ips

    def _listed(self, host: str, port: int, *, with_port: bool = False) -> bool:
        spelt = f"[{host}]" if ":" in host else host
        return f"{spelt}:{port}" in self.allow_hosts or (not with_port and bool({host, spelt} & {*self.allow_hosts}))


def parse(url: str) -> Address:
    """A URL as a policy or a redirect gives it. Raises PageError saying what is wrong with it."""
    text = _plain(url.strip(" \t\r\n"))
    parts = _split(text)
    if parts.scheme not in _DEFAULT_PORTS:
        raise PageError("scheme", "Only whole addresses that begin with http:// or https:// can be opened.")
    if "@" in parts.netloc:
        raise PageError("address", "An address must not hold a user name or a password.")
    try:
        port = parts.port
    except ValueError as error:
        raise PageError("address", "The port in this address is no number of a port.") from error
    host = _host(parts.hostname or "")
    target = quote(parts.path or "/", safe=_PRINTABLE) + (
        f"?{quote(parts.query, safe=_PRINTABLE)}" if parts.query else ""
    )
    return Address(parts.scheme, host, _DEFAULT_PORTS[parts.scheme] if port is None else port, target)


def _plain(text: str) -> str:
    """`text` if no two programs can read it differently."""
    if len(text) > LONGEST:
        raise PageError("address", f"The address is longer than {LONGEST} characters.")
    if _DOUBTFUL.search(text):
        raise PageError("address", "An address must not hold blanks, line breaks, backslashes or control characters.")
    return text


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise PageError("address", "This is no address of a web page.") from error


def _host(name: str) -> str:
    """A host's name in ASCII, or an address, IPv6 in its shortest form. Raises PageError."""
    wrong = PageError("address", "This address has no valid host name.")
    if ":" in name:
        try:
            return str(IPv6Address(name if "%" not in name else ""))
        except ValueError as error:
            raise wrong from error
    if not name.isascii():
        try:
            name = idna.encode(name, uts46=True).decode().lower()
        except (idna.IDNAError, UnicodeError) as error:
            raise wrong from error
    name = name.removesuffix(".")
    if not _HOST.fullmatch(name):
        raise wrong
    return name


def is_public(ip: str) -> bool:
    """True if the address, and every IPv4 address wrapped in it, is one of the public internet's."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return _is_global(address)
    wrapped = [*_wrapped(address)]
    if not all(_is_global(inner) for inner in wrapped):
        return False
    carries = address.ipv4_mapped or address.sixtofour or address.teredo or address in _NAT64
    return bool(carries) or (address in _GLOBAL_UNICAST and _is_global(address))


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    private = address.is_private or address.is_link_local or any(address in block for block in _NOT_PUBLIC)
    return address.is_global and not special and not private


def _wrapped(address: IPv6Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses to which packets for `address` may be handed on."""
    low = IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped:
        yield address.ipv4_mapped
    if address.sixtofour:
        yield address.sixtofour
    if address.teredo:
        yield from address.teredo
    if address in _NAT64:
        yield low
    if (int(address) >> 32) & 0xFDFFFFFF == 0x5EFE:  # ISATAP
        yield low
