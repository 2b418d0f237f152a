"""Functions that run under a lock, or once. Each works for functions and for coroutine functions (`async def`)."""

from __future__ import annotations

import functools
import inspect
import re
import string
from collections.abc import Callable
from typing import Any, TypeVar, Union, cast

from . import aio
from ._client import Client
from ._errors import Error
from ._gate import Done
from ._json import typed

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
AnyClient = Union[Client, aio.Client]

_defaults: dict[Any, AnyClient] = {}


def locked(key: str, *, client: AnyClient | None = None, **options: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Holds the lock while the function runs: `@locked("reports/{month}", wait=5)`. A name in braces is that of a parameter.

    The options are those of `Client.lock`. Without a `client`, that of the variable LATCHGATE_URL is used; a coroutine function needs
    one of `latchgate.aio`.
    """
    typed(str, key=key)

    def decorate(function: AnyFunction) -> AnyFunction:
        signature = inspect.signature(function)
        _check_template(key, signature, function)
        taking = _client_for(function, client)

        def lock(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return taking().lock(key.format_map(_bound(signature, arguments, named)), **options)

        @functools.wraps(function)
        def blocking(*arguments: Any, **named: Any) -> Any:
            with lock(arguments, named):
                return function(*arguments, **named)

        @functools.wraps(function)
        async def awaiting(*arguments: Any, **named: Any) -> Any:
            async with lock(arguments, named):
                return await function(*arguments, **named)

        return cast(AnyFunction, awaiting if inspect.iscoroutinefunction(function) else blocking)

    return decorate


def once(
    operation: str, *, contents: Callable[..., Any] | None = None, client: AnyClient | None = None, **options: Any
) -> Callable[[AnyFunction], AnyFunction]:
    """Runs the function once for the same arguments, and returns what it has returned: `@once("charge")`. Both must be JSON: the contents
    are an object of the arguments by their names, so a new parameter, or another name, makes another operation; or what `contents` makes
    of the arguments. Later callers of one whose result is no JSON, or longer than 64 KiB, get an `Error` with the code `result-omitted`.

    The options are those of `Client.once`. Clients are those of `locked`.
    """

    def decorate(function: AnyFunction) -> AnyFunction:
        signature = inspect.signature(function)
        calling = _client_for(function, client)

        def done(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            bound = _bound(signature, arguments, named)
            what = contents(*arguments, **named) if contents else bound
            return calling().once(what, lambda _: function(*arguments, **named), operation=operation, **options)

        @functools.wraps(function)
        def blocking(*arguments: Any, **named: Any) -> Any:
            return _result(done(arguments, named))

        @functools.wraps(function)
        async def awaiting(*arguments: Any, **named: Any) -> Any:
            return _result(await done(arguments, named))

        return cast(AnyFunction, awaiting if inspect.iscoroutinefunction(function) else blocking)

    return decorate


def _result(done: Done[Any]) -> Any:
    if done.duplicate and done.result_omitted:
        raise Error("result-omitted", "an earlier call has done this, and its result could not be stored")
    return done.result


def _check_template(key: str, signature: inspect.Signature, function: Callable[..., Any]) -> None:
    for _, field, _, _ in string.Formatter().parse(key):
        name = re.split(r"[.\[]", field or "")[0]
        if field is not None and name not in signature.parameters:
            raise ValueError(f"the key {key!r} names {name!r}, which is no parameter of {getattr(function, '__name__', function)}")


def _client_for(function: Callable[..., Any], client: AnyClient | None) -> Callable[[], Any]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("a generator returns before it has done its work")
    kind: Any = aio.Client if inspect.iscoroutinefunction(function) else Client
    if client is not None and not isinstance(client, kind):
        raise TypeError("a coroutine function needs a client of latchgate.aio, and another function one of latchgate")

    def default() -> AnyClient:
        made: AnyClient = _defaults.setdefault(kind, kind()) if kind not in _defaults else _defaults[kind]
        return made

    return default if client is None else lambda: client


def _bound(signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the parameters, with their defaults."""
    bound = signature.bind(*arguments, **named)
    bound.apply_defaults()
    return dict(bound.arguments)
