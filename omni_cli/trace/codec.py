"""One event is one JSON line: `{"kind", "src", "n", "t", ...fields}`; `decode` gives the same dataclasses back.

`kind` is the class's name in snake case, `src` who saw the event, `n` the line's ordinal in the trace, `t` the event's
`t_ns`. Payload bytes are never written: an inline payload comes back without them, its `nbytes` and tensors stay.
Reading is strict: a line has exactly the fields that this schema version gives its kind. Lines are plain ASCII.
"""

import functools
import json
import operator
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from pydantic_core import from_json

from omni_cli.runtime.events import ControlEvent, Event, RunStarted
from stages.events import StageEvent
from stages.payload import PayloadRef

SCHEMA = 6  # in `run_started`; counts up with every change of a class that is written

EVENT_CLASSES: tuple[type[Event], ...] = get_args(ControlEvent) + get_args(StageEvent)
KINDS: dict[type[Event], str] = {c: re.sub(r"(?<!^)(?=[A-Z])", "_", c.__name__).lower() for c in EVENT_CLASSES}

_UNWRITTEN = {(PayloadRef, "inline")}
_RENAMED = {"t_ns": "t"}
_HEADER = ("kind", "src", "n")
_END = 1 << 63  # of every integer: other tools have 64 bits for it


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """An event with its source and its ordinal, as one line of a trace says it."""

    source: str
    ordinal: int
    event: Event


class CodecError(ValueError):
    """A line that is not an event of this schema version. The message says which field and why, not where."""


def encode(source: str, ordinal: int, event: Event) -> str:
    """The event's line, newline included."""
    return _ENCODERS[type(event)](source, ordinal, event)


def decode(line: bytes | str) -> TraceEvent:
    """The event of one line. Raises CodecError."""
    try:
        data = from_json(line)
    except ValueError:
        data = _slowly(line)
    if not isinstance(data, dict):
        raise CodecError(f"not a JSON object but {type(data).__name__}")
    kind = data.get("kind")
    take = _TAKERS.get(kind) if isinstance(kind, str) else None
    if take is None:
        raise CodecError(f"kind: no event is called {kind!r}")
    if kind == _FIRST and data.get("schema") != SCHEMA:
        raise CodecError(f"schema: written in version {data.get('schema')!r}, this omni reads version {SCHEMA}")
    return take(data)


def _slowly(line: bytes | str) -> Any:
    """By the parser that also reads halves of surrogate pairs, and says where it does not understand."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}") from error


def _keys(cls: type) -> list[tuple[str, str, Any]]:
    """(field, key, type) of everything that is written of a dataclass, the time first."""
    hints = get_type_hints(cls)
    written = [f.name for f in fields(cls) if (cls, f.name) not in _UNWRITTEN]
    written.sort(key=lambda name: name != "t_ns")
    return [(name, _RENAMED.get(name, name), hints[name]) for name in written]


def _without_none(hint: Any) -> Any:
    rest = tuple(arg for arg in get_args(hint) if arg is not types.NoneType)
    return functools.reduce(operator.or_, rest)


# Encoding. A run of 10,000 events a second leaves some microseconds for each, in a thread that shares a core with the
# event loop; so every class gets one compiled function with one format string, made once, when the module is loaded.


def _scalar(value: bool | int | float | str) -> str:
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _float(value) if isinstance(value, float) else str(value)


def _float(value: float) -> str:
    text = repr(value)
    if text[-1] in "fn":  # inf, -inf, nan: JSON has no number for them
        return f'{{"float":"{text}"}}'
    return text


_NAMES: dict[str, Any] = {
    "quote": encode_basestring_ascii,
    "scalar": _scalar,
    "number": _float,
    "null": "null",
    "true": "true",
    "false": "false",
}


def _expression(hint: Any, value: str) -> str:
    """Python source of an expression for the JSON text of `value`, itself source, of the type `hint`."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is int:
        return value
    if hint is str or origin is Literal:
        return f"quote({value})"
    if hint is bool:
        return f"(true if {value} else false)"
    if hint is float:
        return f"number({value})"
    if is_dataclass(hint):
        return f"{_compile(hint)}({value})"
    if origin is tuple and args[-1] is Ellipsis:
        return f"('['+','.join([{_text(args[0], 'x')} for x in {value}])+']' if {value} else '[]')"
    if origin is tuple:
        return "('['+" + "+','+".join(_text(arg, f"{value}[{i}]") for i, arg in enumerate(args)) + "+']')"
    if types.NoneType in args:
        return f"(null if {value} is None else {_expression(_without_none(hint), value)})"
    return f"scalar({value})"


def _text(hint: Any, value: str) -> str:
    """As `_expression`, of type str even for an integer."""
    return f"str({value})" if hint is int else _expression(hint, value)


def _compile(cls: Any) -> str:
    """Adds the function for a class to `_NAMES`, once, and returns the name under which it is there. That of an event
    writes its whole line."""
    name = f"encode_{cls.__name__}"
    if name not in _NAMES:
        keys, line = _keys(cls), cls in KINDS
        body = ",".join(f'"{key}":%s' for _, key, _ in keys)
        values = "".join(_expression(hint, f"e.{field}") + "," for field, _, hint in keys)
        if line:
            body, values = f'"kind":"{KINDS[cls]}","src":%s,"n":%s,{body}', f"quote(src), n, {values}"
        text = "{" + body + "}" + "\n" * line
        _NAMES[name] = eval(f"lambda {'src, n, e' if line else 'e'}: {text!r} % ({values})", _NAMES)
    return name


_ENCODERS: dict[type[Event], Callable[[str, int, Event], str]] = {cls: _NAMES[_compile(cls)] for cls in EVENT_CLASSES}

# Decoding. One compiled function for each class at each place where its objects stand in a line: what it refuses has a
# name.

_INT, _TIME = "int", "a time from 0 on"


def _refuse(where: str, expected: str, value: Any) -> NoReturn:
    if expected == _TIME and not (type(value) is int and -_END <= value < _END):
        expected = _INT
    if expected == _INT and type(value) is int:
        expected = "int of 64 bits"
    raise CodecError(f"{where or 'event'}: expected {expected}, got {json.dumps(value)[:60]}")


def _refuse_keys(where: str, cls: type, value: Any) -> NoReturn:
    if type(value) is not dict:
        _refuse(where, cls.__name__, value)
    expected = {key for _, key, _ in _keys(cls)} | ({*_HEADER} if cls in KINDS else set())
    odd = [f"{key} is missing" for key in sorted(expected - value.keys())]
    odd += [f"{key} is not known" for key in sorted(value.keys() - expected)]
    raise CodecError(f"{where or 'event'}: {', '.join(odd)}")


def _take_float(where: str, value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and -_END <= value < _END:
        return float(value)
    if isinstance(value, dict) and value.keys() == {"float"} and value["float"] in ("inf", "-inf", "nan"):
        return float(value["float"])
    _refuse(where, "float", value)


def _take_scalar(where: str, value: Any) -> bool | int | float | str:
    return value if isinstance(value, (bool, int, str)) else _take_float(where, value)


_TAKER_NAMES: dict[str, Any] = {
    "new": object.__new__,
    "refuse": _refuse,
    "refuse_keys": _refuse_keys,
    "take_float": _take_float,
    "take_scalar": _take_scalar,
}


def _taken(hint: Any, value: str, where: str, *, time: bool = False) -> str:
    """Python source of an expression for what the JSON value `value`, itself source, means as `hint`."""
    origin, args = get_origin(hint), get_args(hint)

    def if_(condition: str, taken: str, expected: str) -> str:
        return f"({taken} if {condition} else refuse({where!r}, {expected!r}, {value}))"

    if hint is int:
        least = 0 if time else -_END
        return if_(f"{value}.__class__ is int and {least} <= {value} < {_END}", value, _TIME if time else _INT)
    if hint in (str, bool):
        return if_(f"{value}.__class__ is {hint.__name__}", value, hint.__name__)
    if hint is float:
        return f"take_float({where!r}, {value})"
    if origin is Literal:
        return if_(f"{value} in {args!r}", value, f"one of {', '.join(args)}")
    if is_dataclass(hint):
        return f"{_compile_taker(hint, where)}({value})"
    if origin is tuple and args[-1] is Ellipsis:
        item = _taken(args[0], "x", where)
        return if_(f"{value}.__class__ is list", f"tuple([{item} for x in {value}])", "list")
    if origin is tuple:
        items = "".join(_taken(arg, f"{value}[{at}]", where) + ", " for at, arg in enumerate(args))
        return if_(f"{value}.__class__ is list and len({value}) == {len(args)}", f"({items})", f"list of {len(args)}")
    if types.NoneType in args:
        return f"(None if {value} is None else {_taken(_without_none(hint), value, where)})"
    if set(args) == {bool, int, float, str}:
        return f"take_scalar({where!r}, {value})"
    raise TypeError(f"no JSON form for {hint}")


def _compile_taker(cls: Any, where: str = "") -> str:
    """As `_compile`, the other way. An event is taken together with what its line says beside it.

    Slots are filled one by one before the object becomes a `cls`, which is frozen: its constructor takes twice as long.
    """
    name = f"take_{cls.__name__}_{where.replace('.', '_')}"
    if name not in _TAKER_NAMES:
        keys, line = _keys(cls), cls in KINDS
        _TAKER_NAMES.update({f"{name}_class": cls, f"{name}_open": _open(cls)})
        refuse_keys = f"refuse_keys({where!r}, {name}_class, data)"
        lines = [f"def {name}(data):", " try:"]
        lines += [f"  if len(data) != {len(keys) + line * len(_HEADER)}: {refuse_keys}"]
        lines += [f"  made = new({name}_open)"]
        for field, key, hint in keys:
            taken = _taken(hint, "value", f"{where}.{key}" if where else key, time=field.endswith("_ns"))
            lines += [f"  value = data[{key!r}]; made.{field} = {taken}"]
        lines += [f"  made.{f.name} = None" for f in fields(cls) if (cls, f.name) in _UNWRITTEN]
        lines += [f"  made.__class__ = {name}_class"]
        if line:
            lines += ["  line = new(line_open); line.event = made"]
            lines += [f"  value = data['src']; line.source = {_taken(str, 'value', 'src')}"]
            lines += [f"  value = data['n']; line.ordinal = {_taken(int, 'value', 'n')}"]
            lines += ["  line.__class__ = line_class; made = line"]
        lines += ["  return made", f" except (KeyError, TypeError): {refuse_keys}"]
        exec("\n".join(lines), _TAKER_NAMES)
    return name


def _open(cls: Any) -> type:
    """With the slots of `cls`, to which its objects can change, and not frozen."""
    return type(cls.__name__, (), {"__slots__": cls.__slots__})


_TAKER_NAMES |= {"line_class": TraceEvent, "line_open": _open(TraceEvent)}
_TAKERS: dict[str, Callable[[Any], TraceEvent]] = {
    kind: _TAKER_NAMES[_compile_taker(cls)] for cls, kind in KINDS.items()
}
_FIRST = KINDS[RunStarted]
