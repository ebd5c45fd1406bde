"""Server-sent events over a plain HTTP connection: one request, its chunks as they arrive."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from dflash_core.errors import DFlashError

DONE = "[DONE]"


class EndpointError(DFlashError):
    """An endpoint that cannot be reached, or refused a request."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Endpoint:
    """Where an OpenAI-compatible server listens."""

    def __init__(self, url: str, key: str | None = None, timeout: float = 600.0) -> None:
        """
        Args:
            url: e.g. "http://localhost:8000", with or without "/v1".
            key: sent as a bearer token.
            timeout: seconds without a byte after which a request has failed.

        Raises:
            EndpointError: the URL is not one of HTTP.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointError(f"The endpoint is {url!r}; it must look like http://localhost:8000.")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.host = parts.hostname
        self._secure, self._port = parts.scheme == "https", parts.port
        self._base = urlsplit(self.url).path
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str) -> str:
        """The body of a GET.

        Raises:
            EndpointError: it cannot be reached, or answers with an error.
        """
        connection, response = self._ask("GET", path, None)
        try:
            return response.read().decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            raise self._lost(error) from None
        finally:
            connection.close()

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Chunks of a streamed answer; a server that does not stream gives one.

        Raises:
            EndpointError: it cannot be reached, answers with an error, or breaks off.
        """
        connection, response = self._ask("POST", path, json.dumps(body))
        try:
            if "text/event-stream" in response.headers.get("Content-Type", ""):
                yield from self._chunks(events(response))
            else:
                yield from self._chunks([response.read().decode("utf-8", "replace")])
        except (OSError, HTTPException) as error:
            raise self._lost(error) from None
        finally:
            connection.close()

    def _chunks(self, payloads: Iterable[str]) -> Iterator[dict[str, Any]]:
        for payload in payloads:
            try:
                chunk = json.loads(payload)
            except ValueError:
                raise EndpointError(f"{self.url} sent what is not JSON: {payload[:80]!r}.") from None
            if isinstance(chunk, dict):
                if chunk.get("error"):
                    raise EndpointError(f"{self.url} reports an error: {_message(payload)}.")
                yield chunk

    def _ask(self, method: str, path: str, body: str | None) -> tuple[HTTPConnection, HTTPResponse]:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self.host, self._port, timeout=self._timeout)
        try:
            connection.request(method, self._base + path, body, self._headers)
            response = connection.getresponse()
            if response.status < 400:
                return connection, response
            reason = _message(response.read().decode("utf-8", "replace"))
        except (OSError, HTTPException) as error:
            connection.close()
            raise self._lost(error) from None
        connection.close()
        raise EndpointError(
            f"{self.url}{path} answers {response.status}: {reason or response.reason}.", response.status
        )

    def _lost(self, error: Exception) -> EndpointError:
        return EndpointError(
            f"{self.url} cannot be reached or broke off: {str(error) or type(error).__name__}."
        )


def events(lines: Iterable[bytes]) -> Iterator[str]:
    """Payloads of a stream of server-sent events, up to the one that says it is over.

    Source: the HTML standard, section 9.2.6: lines of one event are joined, a blank line ends it, and lines
    that begin with a colon are comments.
    """
    data: list[str] = []
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            payload, data = "\n".join(data), []
            if payload.strip() == DONE:
                return
            yield payload
    if data and "\n".join(data).strip() != DONE:
        yield "\n".join(data)


def _message(body: str) -> str:
    """What an error body says, without its wrapping."""
    try:
        error = json.loads(body)
    except ValueError:
        return " ".join(body.split())[:200].rstrip(".")
    inner = error.get("error", error) if isinstance(error, dict) else error
    text = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
    return " ".join(str(text or inner).split())[:200].rstrip(".")
