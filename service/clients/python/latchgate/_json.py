"""What a caller may send: JSON, and nothing that a serialiser would change or leave out without a word; and options of the right type."""

from __future__ import annotations

import math
from typing import Any, get_args


def json_of(value: Any, path: str, is_exact: bool = True) -> Any:
    """A copy of the value. Raises TypeError or ValueError if JSON cannot say it, or a reader of JSON would round it: the message names the
    member."""
    try:
        return _copy(value, path, is_exact)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def _copy(value: Any, path: str, is_exact: bool) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{path} is {value}, which JSON cannot say")
        if is_exact and abs(value) >= 2**53:
            raise ValueError(f"{path} is a number of 2^53 or more, which readers of JSON round: send it as a text")
        return value
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError(f"{path} has half of a surrogate pair, which JSON cannot say")
        return value
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{path} has the key {key!r}, which is no string: JSON would make one of it")
            _copy(key, f"a key of {path}", is_exact)
        return {key: _copy(member, f"{path}.{key}", is_exact) for key, member in value.items()}
    # The names of a named tuple would be lost.
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [_copy(member, f"{path}[{index}]", is_exact) for index, member in enumerate(value)]
    raise TypeError(f"{path} is a {type(value).__name__}, which JSON cannot say")


def says_nothing(value: Any) -> bool:
    """Whether there is nothing in it but nulls and empty texts, objects and lists. All callers that have lost their contents would share
    one operation."""
    if isinstance(value, (dict, list)):
        return all(says_nothing(member) for member in (value.values() if isinstance(value, dict) else value))
    return value is None or value == ""


def typed(kind: type, **options: Any) -> None:
    """Raises TypeError that names the option, unless each is of this type or absent."""
    for name, value in options.items():
        if value is not None and not (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
            raise TypeError(f"{name} is {value!r}, and must be of the type {kind.__name__}")


def one_of(choices: Any, **options: Any) -> None:
    """Raises ValueError that names the option, unless each is one of these texts."""
    for name, value in options.items():
        if value not in get_args(choices):
            raise ValueError(f"{name} is {value!r}, and must be one of {', '.join(get_args(choices))}")


def seconds(**durations: Any) -> None:
    """Raises TypeError or ValueError that names the duration, unless each is a number of at least 0."""
    for name, value in durations.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is {value!r}, and must be a number of seconds")
        if not value >= 0:
            raise ValueError(f"{name} is {value}, and must be at least 0 seconds")


def ms(name: str, duration: Any) -> int | None:
    """The duration in milliseconds; None if it is absent. Raises as `seconds` does, and if it is infinite."""
    if duration is None:
        return None
    seconds(**{name: duration})
    return round(1000 * float(json_of(duration, name)))
