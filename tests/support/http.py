"""Ask over HTTP, as those do who take an error for an answer."""

import http.client
import json
import urllib.error
import urllib.request
from typing import NamedTuple


class Response(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: str


def fetch(url, body=None, method=None, headers=(), context=None):
    """The response, whatever its status; a dict or list is sent as JSON. `context`: of TLS."""
    body = json.dumps(body) if isinstance(body, dict | list) else body
    body = body.encode() if isinstance(body, str) else body
    request = urllib.request.Request(url, body, dict(headers), method=method)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            return Response(response.status, response.headers, response.read().decode())
    except urllib.error.HTTPError as response:
        with response:
            return Response(response.status, response.headers, response.read().decode())
