"""A client of an OpenAI-compatible endpoint: one question, one answer, patient with a busy server."""

import http.client
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from dflash_core.errors import DFlashError

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Answers that mean "later": the same request may succeed."""

HOPELESS = frozenset({401, 402, 403, 404, 405, 501})
"""Answers that every other prompt would get as well."""

LONGEST_WAIT = 30.0
"""Seconds between two tries."""

SHOWN = 200
"""Characters of a server's words in a message."""


class EndpointError(DFlashError):
    """The endpoint cannot be used; trying other prompts would change nothing."""


class DeclinedError(DFlashError):
    """The endpoint does not take this prompt, or gives no text for it."""


@dataclass(frozen=True)
class Reply:
    """A text and why it ended: "stop" at the model's own end, "length" at the limit."""

    text: str
    finish: str | None


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and how patiently.

    Attributes:
        url: up to and including the version, e.g. `http://localhost:8000/v1`.
        model: the name that the server knows the target by.
        key: sent as a bearer token; none when `None`.
        timeout: seconds that an answer may take.
        tries: of one request, the waits between them doubling from `wait` seconds.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 600.0
    tries: int = 6
    wait: float = 0.5

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        template: Mapping[str, object],
        pause: Callable[[float], bool],
    ) -> Reply:
        """Ask for one answer.

        Args:
            template: variables of the chat template, as vLLM and SGLang take them.
            pause: waits so many seconds, and says whether to give up.

        Raises:
            DeclinedError: not this prompt.
            EndpointError: not any prompt.
        """
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed % (1 << 31),
        }
        if template:
            asked["chat_template_kwargs"] = dict(template)
        answer = self.request("/chat/completions", asked, pause)
        try:
            choice = answer["choices"][0]
            text, finish = choice["message"]["content"], choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise EndpointError(
                f"{self.url} answered something that is no chat completion: {_few(answer)}."
            ) from None
        if not isinstance(text, str) or not text:
            raise DeclinedError(f"{self.url} answered without text (finish_reason {finish}).")
        return Reply(text, finish if isinstance(finish, str) else None)

    def request(self, path: str, content: object | None, pause: Callable[[float], bool]) -> Any:
        """Post JSON (get, when there is no content), and try again while the server is busy or away."""
        for attempt in range(1, self.tries + 1):
            try:
                return self._once(path, content)
            except urllib.error.HTTPError as error:
                problem, delay = self._refusal(error), _asked_wait(error)
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                problem, delay = f"{self.url} cannot be reached: {reason or type(error).__name__}", None
            backoff = self.wait * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
            if attempt < self.tries and pause(min(LONGEST_WAIT, backoff if delay is None else delay)):
                break
        times = f" ({self.tries} tries)" if self.tries > 1 else ""
        raise EndpointError(f"{problem}{times}. Is the server running, and is this its address?")

    def _once(self, path: str, content: object | None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=self.timeout) as response:
            body = response.read()
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise EndpointError(
                f"{self.url}{path} answered something that is not JSON: {_few(body)}."
            ) from None

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        """What a server says that is busy; anything else it may say is raised."""
        said = f"{self.url} answered {error.code}: {_words(error)}"
        if error.code in PASSING:
            return said
        if error.code in HOPELESS:
            hint = " The address usually ends in /v1." if error.code == 404 else ""
            hint = " Name a variable with the key (--api-key-env)." if error.code == 401 else hint
            raise EndpointError(f"{said}.{hint}") from None
        raise DeclinedError(f"{said}.") from None


def endpoint_url(text: str) -> str:
    """An address without the slash at its end.

    Raises:
        EndpointError: it is not an http or https address.
    """
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        valid = False
    if not valid:
        raise EndpointError(
            f"{text!r} is no address of an endpoint; one looks like http://localhost:8000/v1."
        )
    return text.rstrip("/").removesuffix("/chat/completions")


def only_model(url: str, key: str | None, tries: int) -> str:
    """The model that an endpoint serves.

    Raises:
        EndpointError: it cannot be asked, or serves none or several.
    """
    endpoint = Endpoint(url, "", key, timeout=30.0, tries=tries)
    answer = endpoint.request("/models", None, Event().wait)
    try:
        names = [str(one["id"]) for one in answer["data"]]
    except (KeyError, TypeError):
        names = []
    if len(names) != 1:
        served = f"serves {', '.join(names[:8])}" if names else "does not say what it serves"
        raise EndpointError(f"{url} {served}. Name the model (--model).")
    return names[0]


def _asked_wait(error: urllib.error.HTTPError) -> float | None:
    """Seconds that a server asks to wait, where it does so in seconds."""
    asked = error.headers.get("Retry-After", "") if error.headers else ""
    return float(asked) if asked.strip().isdigit() else None


def _words(error: urllib.error.HTTPError) -> str:
    try:
        body: object = json.loads(error.read())
    except (ValueError, RecursionError, OSError, http.client.HTTPException):
        return error.reason or "no reason"
    while isinstance(body, Mapping):
        body = body.get("error", body.get("message", body.get("detail", "no reason")))
    return _few(body)


def _few(value: object) -> str:
    text = " ".join((value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).split())
    return (text if len(text) <= SHOWN else f"{text[:SHOWN]}...").rstrip(".")
