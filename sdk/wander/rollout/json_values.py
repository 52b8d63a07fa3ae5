"""Converts values of Python and numeric libraries to JSON values, exactly or not at all.

Tools, rewards and published state come from the author's code, which may compute with NumPy, pandas or
PyTorch. The string forms of such values round numbers and omit the middle of an array (`[0 1 ... 998 999]`),
so they are never used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import islice
from math import prod
from numbers import Real
from types import SimpleNamespace
from typing import Any

from pydantic_core import to_jsonable_python

from wander.types import canonical_json

MOST_VALUES = 100_000
"""Maximum number of values in an array or table. A longer one is rejected."""
_MOST_DIGITS = 4000
"""Maximum number of digits of an integer. Python refuses to format much longer ones."""
_PLAIN = frozenset((str, int, float, bool, type(None)))


class NotExact(TypeError):
    """A value that JSON cannot represent without loss."""


def as_json(value: Any) -> Any:
    """Convert a value to a JSON value. NaN and infinities remain floats. Raises `NotExact`."""
    try:
        return _convert(value)
    except RecursionError:
        raise NotExact(f"a `{type(value).__name__}` is nested too deeply") from None


def as_number(value: Any) -> float:
    """Convert a number, or an array with one value, to a float. Raises `TypeError` for other values."""
    if isinstance(value, float | int | Real | Decimal):
        try:
            return float(value)
        except OverflowError:
            raise NotExact("a number is too large for a float") from None
    if not isinstance(value, str | bytes | Mapping):
        if _is_array(value) and prod(value.shape) == 1 and getattr(value.dtype, "kind", "") not in ("M", "m"):
            item: Any = _items(value)
            while isinstance(item, list) and len(item) == 1:
                (item,) = item
            return float(item) if _is_array(item) else as_number(item)
        if hasattr(value, "as_py"):  # an Arrow scalar
            return as_number(value.as_py())
    raise NotExact(f"a `{type(value).__name__}` is not a number")


def _convert(value: Any) -> Any:
    if type(value) in _PLAIN:
        if type(value) is int and value.bit_length() > 3.33 * _MOST_DIGITS:
            raise NotExact(f"a whole number has more than {_MOST_DIGITS} digits")
        return value
    for kinds, convert in _CONVERTERS:
        if isinstance(value, kinds):
            return convert(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _convert_mapping(
            (field.name, getattr(value, field.name)) for field in dataclasses.fields(value)
        )
    return _convert_foreign(value)


def _convert_iterator(value: Iterator[Any]) -> list[Any]:
    items = list(islice(value, MOST_VALUES + 1))
    _require_size(len(items), value)
    return [_convert(item) for item in items]


def _convert_bytes(value: bytes | bytearray | memoryview) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise NotExact("bytes that are not UTF-8 have no text; encode them, as in Base64") from None


def _convert_foreign(value: Any) -> Any:
    """Convert a value of another library, detected by its methods, because importing the libraries takes
    seconds.
    """
    kind = type(value)
    if any(base.__module__.partition(".")[0] == "pandas" for base in kind.__mro__):
        return _convert_pandas(value)
    if hasattr(kind, "__attrs_attrs__"):
        return _convert_mapping((field.name, getattr(value, field.name)) for field in kind.__attrs_attrs__)
    if isinstance(value, date | time):
        return value.isoformat()
    if _is_array(value):
        _require_size(prod(value.shape), value)
        return _convert_array(value)
    for method in ("to_dicts", "to_pylist", "to_list", "as_py"):  # polars, pyarrow
        if callable(getattr(value, method, None)):
            _require_size(prod(value.shape) if hasattr(value, "shape") else _length(value), value)
            return _convert(getattr(value, method)())
    if hasattr(value, "model_dump"):
        return _convert(value.model_dump())
    try:
        return to_jsonable_python(value, serialize_unknown=False)
    except (TypeError, ValueError) as error:
        return _text_of(value, error)


def _convert_mapping(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for key, value in items:
        plain = _convert(key)
        name = str(plain) if isinstance(plain, str | int | float) or plain is None else canonical_json(plain)
        if name in converted:
            raise NotExact(f"two keys are both `{name}` in JSON")
        converted[name] = _convert(value)
    return converted


def _convert_fraction(value: Decimal | Fraction) -> Any:
    """Convert to an integer, to a float if that is exact, or to a string for a fraction."""
    if isinstance(value, Fraction):
        return _convert(int(value)) if value.denominator == 1 else str(value)
    if not value.is_finite():
        return float(value)
    if value.adjusted() > _MOST_DIGITS:
        raise NotExact(f"a whole number has more than {_MOST_DIGITS} digits")
    if value == value.to_integral_value():
        return int(value)
    number = float(value)
    if Decimal(repr(number)) != value:
        raise NotExact(f"the decimal number `{value:.40}` has more digits than a JSON number keeps")
    return number


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and isinstance(getattr(value, "shape", None), tuple)


def _require_size(size: int, value: Any) -> None:
    if size > MOST_VALUES:
        raise NotExact(
            f"a `{type(value).__name__}` of {size:,} values is longer than the limit of {MOST_VALUES:,}; "
            "return the part that matters"
        )


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 1


def _convert_array(value: Any) -> Any:
    """Convert an array or scalar of NumPy, PyTorch, JAX or a similar library."""
    names = getattr(value.dtype, "names", None)
    if names and value.shape:
        return [_convert_array(item) for item in value]
    if names:
        return _convert_mapping((name, value[name]) for name in names)
    if getattr(value.dtype, "kind", "") in (
        "M",
        "m",
    ):  # dates and spans; as numbers they would lose their unit
        return value.astype(str).tolist()
    items = _items(value)
    if not value.shape:
        (item,) = items
        if _is_array(item):  # NumPy's longdouble converts to itself
            number = float(item)
            if number != item:
                raise NotExact(f"a `{type(value).__name__}` has more digits than a JSON number keeps")
            return number
        return _convert(item)
    return items if getattr(value.dtype, "kind", "") in ("b", "i", "u", "f") else _convert(items)


def _items(value: Any) -> list[Any]:
    """Return an array's values as nested lists, or a scalar's value as a list."""
    for method in ("to_dense", "toarray", "numpy"):  # sparse arrays; TensorFlow
        if not hasattr(value, "tolist") or (method == "to_dense" and getattr(value, "is_sparse", False)):
            value = getattr(value, method)() if hasattr(value, method) else value
    if not hasattr(value, "tolist"):
        raise NotExact(f"a `{type(value).__name__}` does not list its values")
    items = value.tolist()
    return items if value.shape else [items]


def _convert_pandas(value: Any) -> Any:
    """Convert a table to a list of rows, including its index unless that only numbers the rows."""
    kind = type(value).__name__
    if kind in ("NAType", "NaTType"):
        return None
    if kind == "DataFrame":
        _require_size(value.size, value)
        plain = type(value.index).__name__ == "RangeIndex" and value.index.equals(
            type(value.index)(len(value))
        )
        table = value if plain else value.reset_index()
        if not table.columns.is_unique:
            return {
                "columns": _convert(list(table.columns)),
                "rows": _convert(table.to_numpy(object).tolist()),
            }
        return _convert(table.to_dict("records"))
    if hasattr(value, "tolist"):
        _require_size(len(value), value)
        index = value.index if kind == "Series" else None
        if index is None or type(index).__name__ == "RangeIndex":
            return _convert(value.tolist())
        pairs = list(zip(index.tolist(), value.tolist(), strict=True))
        return _convert_mapping(pairs) if index.is_unique else _convert(pairs)
    if isinstance(value, timedelta):
        return value.isoformat()  # type: ignore[attr-defined]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _text_of(value: Any, cause: BaseException) -> str:
    """Return the string form of a value, if its class defines a complete form."""
    classes = type(value).__mro__[:-1]
    if not any("__str__" in vars(base) or "__repr__" in vars(base) for base in classes):
        # The default form contains the object's address, which differs between runs.
        raise NotExact(f"a `{type(value).__name__}` is not a JSON value") from cause
    text = str(value)
    if "..." in text or "…" in text or " at 0x" in text:
        raise NotExact(f"the text of a `{type(value).__name__}` leaves something out") from cause
    return text


_CONVERTERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, lambda value: _convert(value.value)),
    (str, str),
    (int, lambda value: _convert(int(value))),
    (float, float),  # includes NumPy's float64
    (Mapping, lambda value: _convert_mapping(value.items())),
    ((list, tuple, range), lambda value: [_convert(item) for item in value]),
    # The order of a set differs between processes.
    ((set, frozenset), lambda value: sorted((_convert(item) for item in value), key=canonical_json)),
    ((Decimal, Fraction), _convert_fraction),
    ((bytes, bytearray, memoryview), _convert_bytes),
    (SimpleNamespace, lambda value: _convert_mapping(vars(value).items())),
    (Iterator, _convert_iterator),
)
"""Conversions of Python's own classes. The first class that matches counts."""
