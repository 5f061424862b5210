"""Where media may be fetched from: hosts that are named, and never a private network."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest

from omni_cli.errors import InputError
from omni_cli.server.fetching import Fetcher


def fetch(url: str, answer: Callable[[httpx.Request], httpx.Response], addresses: dict[str, str]) -> bytes:
    async def resolve(host: str, port: int) -> list[str]:
        return [addresses[host]]

    fetcher = Fetcher(
        tuple(addresses), timeout_s=0.2, max_bytes=1000, resolve=resolve, transport=httpx.MockTransport(answer)
    )
    return asyncio.run(fetcher.fetch(url, "image"))


def test_r62_an_allowed_host_is_fetched_at_the_address_that_was_checked():
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.host, request.headers["host"]))
        return httpx.Response(200, content=b"picture")

    assert fetch("http://good.example/a.png", answer, {"good.example": "93.184.216.34"}) == b"picture"
    assert asked == [("93.184.216.34", "good.example")]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fe80::1%eth0", "0.0.0.0", "224.0.0.1"],
)
def test_r62_a_name_that_leads_inside_is_refused(address):
    def never(request: httpx.Request) -> httpx.Response:
        raise AssertionError("nothing may be sent")

    with pytest.raises(InputError, match="private network"):
        fetch("http://good.example/", never, {"good.example": address})


@pytest.mark.parametrize(
    ("target", "match"),
    [
        ("http://inside.example/", "private network"),
        ("http://169.254.169.254/", "no host that this server fetches from"),
        ("http://127.0.0.1/", "no host that this server fetches from"),
        ("file:///etc/passwd", "no host that this server fetches from"),
        ("http://good.example/again", "redirects"),
        ("http://[", "cannot be fetched"),
    ],
)
def test_r62_a_redirect_is_judged_like_the_first_address(target, match):
    addresses = {"good.example": "93.184.216.34", "inside.example": "10.0.0.1"}
    with pytest.raises(InputError, match=match):
        fetch("http://good.example/", lambda _: httpx.Response(302, headers={"location": target}), addresses)


def test_r62_an_endless_body_and_a_silent_host_are_given_up():
    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"x" * 100

    good = {"good.example": "93.184.216.34"}
    with pytest.raises(InputError, match="larger than 1000 bytes"):
        fetch("http://good.example/", lambda _: httpx.Response(200, content=endless()), good)

    async def silent(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(InputError, match="within"):
        fetch("http://good.example/", silent, good)


def test_r62_without_named_hosts_nothing_is_fetched():
    with pytest.raises(InputError, match="switched off"):
        fetch("http://good.example/", lambda _: httpx.Response(200), {})
