"""State whose values are parsed on first access: the cost of a visit depends on what it reads, not on what is stored.

Both classes are made from JSON text by key, as the store has it. A function node gets a FunctionState: a dict in every
respect, which it may change, and whose unread values are never parsed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any

from sleipnir.graph.model import Json


class StoredState(Mapping[str, Json]):
    """Read only. Each access to a key returns the same object."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._parsed: dict[str, Json] = {}

    def __getitem__(self, key: str) -> Json:
        if key not in self._parsed:
            self._parsed[key] = json.loads(self.texts[key])
        return self._parsed[key]

    def __contains__(self, key: object) -> bool:
        return key in self.texts

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values that are new or other, by key, and the keys that are gone."""
    changed = {key: value for key, value in after.items() if key not in before or _is_other(before[key], value)}
    return changed, [key for key in before if key not in after]


def _is_other(before: Any, after: Any) -> bool:
    try:
        return json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # no JSON: who uses it says so
        return True


class FunctionState(dict[str, Any]):
    """A dict whose values are shared with nothing else.

    Some methods of `dict` (`|`, `copy`) bypass a subclass' own methods. All of them are overridden to parse all values.
    `__iter__` is overridden so that `{**state}` and `dict(state)` do not bypass them either.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__(dict.fromkeys(texts))
        self._texts = dict(texts)

    def _parse(self, key: Any) -> None:
        if key in self._texts:
            super().__setitem__(key, json.loads(self._texts.pop(key)))

    def _parse_all(self) -> None:
        for key in list(self._texts):
            self._parse(key)

    def changes(
        self, stored: StoredState, as_json: Callable[[str, Any], Any] = lambda key, value: value
    ) -> tuple[dict[str, Any], list[str]]:
        """What has become different from the state that it was made from: values by key, and the removed keys."""
        touched = {key: as_json(key, self[key]) for key in list(self) if key not in self._texts}
        before = {key: stored[key] for key in stored if key in touched or key not in self}
        return differences(before, touched)

    def __getitem__(self, key: str) -> Any:
        self._parse(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401, it would call itself

    def __setitem__(self, key: str, value: Any) -> None:
        self._texts.pop(key, None)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._texts.pop(key, None)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._parse(key)
        return super().setdefault(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._parse(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        self._parse_all()
        return super().popitem()

    def clear(self) -> None:
        self._texts.clear()
        super().clear()

    def update(self, *others: Any, **more: Any) -> None:
        for key, value in dict(*others, **more).items():
            self[key] = value

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self._parse_all()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self._parse_all()
        return super().values()

    def copy(self) -> dict[str, Any]:
        return {**self}

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def __eq__(self, other: object) -> bool:
        self._parse_all()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        self._parse_all()
        return super().__repr__()

    def __or__(self, other: Any) -> Any:
        return {**self} | other

    def __ror__(self, other: Any) -> Any:
        return other | {**self}

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:  # copies and pickles are plain dicts
        return dict, ({**self},)

    __hash__ = None
