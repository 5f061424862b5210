"""Media by URL: off by default; from named hosts only, never from this machine or its networks, within bounds.

The address that was checked is the one that is connected to, for every redirect anew, so that a name cannot change its
meaning between check and use.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urljoin, urlsplit

import httpx

from omni_cli.errors import InputError

_MAX_REDIRECTS = 3
Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve_host(host: str, port: int) -> list[str]:
    """All addresses of a name. OSError if it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Fetcher:
    """`hosts` may be fetched from; empty is none. `timeout_s` bounds the whole, `max_bytes` the body."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        *,
        timeout_s: float,
        max_bytes: int,
        resolve: Resolve = resolve_host,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._resolve = resolve
        self._transport = transport

    async def fetch(self, url: str, label: str) -> bytes:
        """The body behind the URL. Raises InputError naming `label`, never the address that a name resolved to."""
        if not self._hosts:
            raise InputError(f"{label}: media by URL is switched off (serve.media_hosts); send a data URL", param=label)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url, label)
        except TimeoutError:
            raise InputError(f"{label}: was not there within {self._timeout_s:g} s", param=label) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise InputError(f"{label}: cannot be fetched ({type(error).__name__})", param=label) from error

    async def _follow(self, url: str, label: str) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            target = await self._get(url, label)
            if isinstance(target, bytes):
                return target
            url = urljoin(url, target)
        raise InputError(f"{label}: more than {_MAX_REDIRECTS} redirects", param=label)

    async def _get(self, url: str, label: str) -> bytes | str:
        """The body, or where it is to be found instead."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if parts.scheme not in ("http", "https") or host not in self._hosts or parts.username is not None:
            raise InputError(f"{label}: {host or 'that'} is no host that this server fetches from", param=label)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = self._public(await self._resolve(host, port), label)
        pinned = parts._replace(netloc=f"[{address}]:{port}" if ":" in address else f"{address}:{port}").geturl()
        async with (
            httpx.AsyncClient(
                follow_redirects=False, trust_env=False, timeout=self._timeout_s, transport=self._transport
            ) as client,
            client.stream("GET", pinned, headers={"Host": parts.netloc}, extensions={"sni_hostname": host}) as response,
        ):
            if response.is_redirect:
                return str(response.headers.get("location", ""))
            if response.status_code != 200:
                raise InputError(f"{label}: the host answered {response.status_code}", param=label)
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._max_bytes:
                    raise InputError(f"{label}: is larger than {self._max_bytes} bytes", param=label)
            return bytes(body)

    def _public(self, addresses: list[str], label: str) -> str:
        """The first address, if every one of them is a public one."""
        for address in addresses:
            parsed = ipaddress.ip_address(address.partition("%")[0])
            mapped = getattr(parsed, "ipv4_mapped", None)
            if not (mapped or parsed).is_global or parsed.is_multicast:
                raise InputError(f"{label}: leads into a private network", param=label)
        return addresses[0]
