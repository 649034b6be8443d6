"""Requests to addresses that a client has named: only to public networks, and to the address that was checked."""

from collections.abc import Mapping, Sequence

import httpx

from turnwire.tools.fetch import IPNetwork, resolve


async def post_to_client(
    http: httpx.AsyncClient, address: str, content: bytes, headers: Mapping[str, str], networks: Sequence[IPNetwork]
) -> int:
    """Send a POST request, and return the status of the response, whose body is not read.

    Raises ToolError for an address that is neither public nor in the networks, and httpx.HTTPError.
    """
    url = httpx.URL(address)
    port = url.port or (443 if url.scheme == "https" else 80)
    addresses = await resolve(url.host, port, networks)
    request = http.stream(
        "POST",
        url.copy_with(host=str(addresses[0])),
        content=content,
        headers={**headers, "host": url.netloc.decode("ascii")},
        extensions={"sni_hostname": url.host},
    )
    async with request as response:
        return response.status_code
