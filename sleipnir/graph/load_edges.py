"""Reads the keys by which a graph branches, in all their forms: next, branch, ends, wait_for, and maps.

One method per key converts the written form into the model's form, and reports problems at the key's position with the
author's names. It returns None for a wrong value: then there is no graph.
Whether a target exists is checked on the whole graph (check.py, check_parallel.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sleipnir.graph.findings import Findings, KeyPath
from sleipnir.graph.model import SLEIPNIR, Branch, Choice, Join, Json, Router
from sleipnir.graph.shape import SPELLINGS, Shaper, shown

REFERENCE = re.compile(r"(?:[^:]+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_<][\w.<>]*(?:#\d+)?")
"""The forms of a reference to a function or a class: `file.py:name` or `package.module:name`. Names with `<` and
numbers refer to what only the process that built the graph can find (python_graph/references.py)."""

_ADDED_KEYS: Final = ("engine", "state", "limits")
_ADDED_NODE_KEYS: Final = ("wait_for", "ends")
_ADDED_NODE_TYPES: Final = ("router", "join")

_HOW = "Choose by `by` (a template), `call` (a function), `cases` (conditions) or `tools` (the last message's calls)."
_LIST_FORM = 'Write `- {when: "state.score > 3", to: a}` for each case, and `- {else: b}` as the last line.'
_ROUTER_FORM = 'Write `- {call: "routes.py:choose", to: {yes: a, no: b}}` for each router.'
_CALL_FORMS = "Write `file.py:name` or `package.module:name`."
_WAIT_FORMS = "Write `[a, b]`, or `{from: [a, b], min: 1}`; for several joins, a list of these."


def has_additions(data: Mapping[str, Json]) -> bool:
    """Whether the file has a key or a node type that selected the language in releases before sleipnir/1. Runs
    submitted by those releases still use this."""
    if any(data.get(key) is not None for key in _ADDED_KEYS):
        return True
    nodes = data.get("nodes")
    return isinstance(nodes, dict) and any(_has_addition(node) for node in nodes.values() if isinstance(node, dict))


def _has_addition(node: Mapping[str, Json]) -> bool:
    if node.get("type") in _ADDED_NODE_TYPES or any(node.get(key) is not None for key in _ADDED_NODE_KEYS):
        return True
    return node.get("branch") is not None and node.get("type") != "map"


class EdgeReader:
    """Reads the edges of one document; problems go into `findings`."""

    def __init__(self, shaper: Shaper, findings: Findings, *, is_sleipnir: bool = False) -> None:
        self._shaper = shaper
        self._findings = findings
        self._is_sleipnir = is_sleipnir

    def next(self, target: Json, path: KeyPath) -> Json:
        """One target, or a list of two or more, each once."""
        if isinstance(target, str):
            return target
        names = self._names(target, path, "must name a node")
        return names[0] if names and len(names) == 1 else names

    def ends(self, data: Json, path: KeyPath) -> Json:
        """A mapping of labels to targets. In a list, each target is its own label."""
        if isinstance(data, list):
            return {name: name for name in self._names(data, path, "must map labels to nodes") or ()}
        return self._shaper.texts(data, path)

    def wait_for(self, data: Json, path: KeyPath) -> Json:
        """One join, or a list of several."""
        is_list = isinstance(data, list) and any(isinstance(item, list | dict) for item in data)
        joins = [self._join(data, path)] if not is_list else [self._join(data[n], (*path, n)) for n in range(len(data))]
        by_sources: dict[tuple[str, ...], Join] = {}
        for join in joins:
            if join is not None and join.sources in by_sources:
                names = ", ".join(join.sources)
                self._findings.error(
                    path, f"'wait_for' has two joins of {names}", "Keep one of the two.", code="SLP214"
                )
            elif join is not None:
                by_sources[join.sources] = join
        return list(by_sources.values())

    def branch(self, data: Json, path: KeyPath) -> Branch | None:
        """A conditional edge: a mapping that says how to choose, or a list of cases."""
        if isinstance(data, list):
            data, cases_path = {"cases": data}, path
        elif isinstance(data, dict):
            cases_path = (*path, "cases")
        else:
            message = f"'branch' must be a mapping or a list of cases, got {shown(data)}"
            self._findings.error(path, message, _HOW, code="SLP212")
            return None
        values = self._shaper.fields(Branch, data, path)
        if values.get("tools") is not None and not self._is_sleipnir:
            hint = f"Write `version: {SLEIPNIR}`."
            self._findings.error((*path, "tools"), f"'tools' needs version {SLEIPNIR}", hint, code="SLP218")
        self._check_how(values, path)
        if "cases" in values:
            cases, default = self._cases(values["cases"], cases_path)
            values["cases"] = cases
            if default is not None and "default" in values:
                message = "'default' and 'else' set the same value"
                self._findings.error((*path, "default"), message, "Keep one of the two.", code="SLP214")
            if default is not None:
                values["default"] = default
        return self._shaper.build(Branch, values, path)

    def map_fields(self, values: Mapping[str, Json], path: KeyPath) -> tuple[dict[str, Json], dict[str, str]]:
        """The fields of a map node from either spelling, and the author's key for each."""
        is_added = any(key in values for key in SPELLINGS["sleipnir"].values())
        fields: dict[str, Json] = {}
        names = {**SPELLINGS["loki"], **(SPELLINGS["sleipnir"] if is_added else {})}
        field_of = {key: name for spelling in SPELLINGS.values() for name, key in spelling.items()}
        for key, value in values.items():
            name = field_of.get(key, key)
            if name in fields:
                message = f"'{names[name]}' and '{key}' set the same value"
                self._findings.error((*path, key), message, "Keep one of the two.", code="SLP214")
                continue
            fields[name], names[name] = value, key
        if "body" in fields:
            fields["body"] = self._body(fields["body"], (*path, names["body"]))
        return fields, names

    def routers(self, data: Json, path: KeyPath) -> Json:
        """The routers of a function node."""
        if not isinstance(data, list):
            return data
        routers = [self._router(item, (*path, index)) for index, item in enumerate(data)]
        return [router for router in routers if router is not None]

    def _router(self, data: Json, path: KeyPath) -> Router | None:
        if not isinstance(data, dict):
            message = f"a router must be a mapping with a call, got {shown(data)}"
            self._findings.error(path, message, _ROUTER_FORM, code="SLP201")
            return None
        values = self._shaper.fields(Router, data, path)
        if isinstance(values.get("call"), str):
            self.reference(values["call"], (*path, "call"))
        return self._shaper.build(Router, values, path)

    def state_classes(self, data: Json) -> Json:
        """The references of `state_classes`, unchanged."""
        for index, reference in enumerate(data) if isinstance(data, list) else ():
            if isinstance(reference, str):
                self.reference(reference, ("state_classes", index))
        return data

    def reference(self, reference: str, path: KeyPath) -> None:
        """Report a reference that cannot name a function or a class."""
        if REFERENCE.fullmatch(reference) is None:
            what = "class" if path[-1] == "state_class" or path[0] == "state_classes" else "function"
            self._findings.error(path, f"'{reference}' does not name a {what}", _CALL_FORMS, code="SLP215")

    def _body(self, body: Json, path: KeyPath) -> Json:
        if isinstance(body, str):
            return [body]
        if path[-1] == "branch" and not isinstance(body, list):
            hint = "The `branch` of a map is the node that runs per item; for a conditional edge, let a router follow."
            message = f"'branch' of a map node must name a node, got {shown(body)}"
            self._findings.error(path, message, hint, code="SLP201")
            return []
        return self._names(body, path, "must name a node", keep_duplicates=True) or []

    def _names(self, data: Json, path: KeyPath, must: str, *, keep_duplicates: bool = False) -> list[str] | None:
        """A list of at least one name, without duplicates. None after reporting a problem."""
        key = path[-1] if isinstance(path[-1], str) else path[-2]
        if not isinstance(data, list) or not data:
            given = "an empty list" if data == [] else shown(data)
            self._findings.error(path, f"'{key}' {must}, got {given}", code="SLP201")
            return None
        names: list[str] = []
        for index, name in enumerate(data):
            if not isinstance(name, str):
                message = f"'{key}[{index}]' must name a node, got {shown(name)}"
                self._findings.error((*path, index), message, code="SLP201")
                return None
            if name in names and not keep_duplicates:
                message = f"'{key}' names '{name}' twice; the second is ignored"
                self._findings.warning((*path, index), message, "Remove one of the two.", code="SLP214")
            else:
                names.append(name)
        return names

    def _join(self, data: Json, path: KeyPath) -> Join | None:
        quorum: Json = None
        sources, place = data, path
        if isinstance(data, dict):
            for key in data.keys() - {"from", "min"}:
                hint = "The keys here are: from, min."
                self._shaper.unknown((*path, key), f"unknown key '{key}'", hint, code="SLP203")
            sources, quorum, place = data.get("from"), data.get("min"), (*path, "from")
            if sources is None:
                self._findings.error(path, "missing field `from`", _WAIT_FORMS, code="SLP202")
                return None
        elif not isinstance(data, list):
            self._findings.error(path, f"'wait_for' must list nodes, got {shown(data)}", _WAIT_FORMS, code="SLP213")
            return None
        names = self._names(sources, place, "must list nodes")
        if names is None or not self._is_quorum(quorum, len(names), (*path, "min")):
            return None
        return Join(tuple(sorted(names)), quorum)

    def _is_quorum(self, quorum: Json, sources: int, path: KeyPath) -> bool:
        if quorum is None:
            return True
        if not isinstance(quorum, int) or isinstance(quorum, bool) or quorum < 1:
            self._findings.error(path, f"'min' must be a whole number from 1, got {shown(quorum)}", code="SLP213")
            return False
        if quorum > sources:
            message = f"the join can never fire: 'min' is {quorum}, and it waits for {_count(sources, 'node')} only"
            self._findings.error(path, message, f"At most {sources} can arrive.", code="SLP213")
            return False
        return True

    def _check_how(self, values: Mapping[str, Json], path: KeyPath) -> None:
        ways = [key for key in ("by", "call", "cases", "tools") if key in values]
        if not ways:
            self._findings.error(path, "'branch' does not say how to choose", _HOW, code="SLP212")
        for key in ways[1:]:
            message = f"'branch' chooses by '{ways[0]}' and by '{key}'"
            self._findings.error((*path, key), message, _HOW, code="SLP212")
        if values.get("many") is True and "cases" in values:
            hint = "Give a list of labels by `by` or `call`, or write several conditions that lead to routers."
            message = "'many' cannot be used with cases: only the first true case is taken"
            self._findings.error((*path, "many"), message, hint, code="SLP212")
        if isinstance(values.get("call"), str):
            self.reference(values["call"], (*path, "call"))

    def _cases(self, data: Json, path: KeyPath) -> tuple[list[Choice], str | None]:
        """The conditions in order, and the target if none is true."""
        if not isinstance(data, list) or not data:
            given = "an empty list" if data == [] else shown(data)
            message = f"the cases of a branch must be a list, got {given}"
            self._findings.error(path, message, _LIST_FORM, code="SLP212")
            return [], None
        cases: list[Choice] = []
        default: str | None = None
        for index, item in enumerate(data):
            place = (*path, index)
            if default is not None:
                message, hint = "nothing can come after 'else'", "Make `- {else: ...}` the last line."
                self._findings.error(place, message, hint, code="SLP212")
            if not isinstance(item, dict):
                self._findings.error(place, f"a case must be a mapping, got {shown(item)}", _LIST_FORM, code="SLP212")
            elif "else" in item:
                default = self._else(item, place)
            else:
                choice = self._shaper.build(Choice, self._shaper.fields(Choice, item, place), place)
                cases += [] if choice is None else [choice]
        return cases, default

    def _else(self, item: Mapping[str, Json], path: KeyPath) -> str | None:
        target = item["else"]
        if not isinstance(target, str) or len(item) > 1:
            message = "'else' must be the only key and name a node"
            self._findings.error((*path, "else"), message, _LIST_FORM, code="SLP212")
            return None
        return target


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
