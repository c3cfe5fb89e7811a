"""Reads PromQL well enough to say which metrics and labels it asks for: what alerts and dashboards are checked by."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan", "Inf", "NaN"})
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_RANGE = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w.$])[a-zA-Z_:][\w:]*(?!\w)(?!\s*\()")


def asked(expr: str) -> tuple[dict[str, set[str]], set[str]]:
    """The metrics of an expression, each with the labels that select it, and the labels that it groups by."""
    expr = _STRING.sub('""', expr)
    grouped = {name.strip() for found in _GROUPING.findall(expr) for name in found.split(",") if name.strip()}
    expr = _GROUPING.sub(" ", expr)
    metrics: dict[str, set[str]] = {}
    for name, matchers in _SELECTOR.findall(expr):
        metrics.setdefault(name, set()).update(_LABEL.findall(matchers))
    expr = _RANGE.sub(" ", _SELECTOR.sub(r"\1", expr))
    for name in _NAME.findall(expr):
        if name not in _WORDS:
            metrics.setdefault(name, set())
    return metrics, grouped


def problems(expr: str, shown: str, known: Mapping[str, set[str]]) -> list[str]:
    """What an expression, and a text that shows labels of its result, ask for that is not in `known`, labels by
    metric."""
    metrics, grouped = asked(expr)
    found = [] if metrics else [f"{expr}: asks for no metric"]
    for name, labels in metrics.items():
        if name not in known:
            found.append(f"{expr}: no metric {name}")
        elif unknown := labels - known[name]:
            found.append(f"{expr}: {name} has no {sorted(unknown)}")
    have = set().union(*(known.get(name, set()) for name in metrics))
    wanted = grouped | set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown))
    if missing := wanted - have - {"le"}:
        found.append(f"{expr}: nothing in it has {sorted(missing)}")
    if expr.count("(") != expr.count(")"):
        found.append(f"{expr}: brackets")
    return found


def rules(file: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def of_rules(file: Path) -> list[tuple[str, str]]:
    """Expression and summary of each alert."""
    return [(rule["expr"], rule["annotations"]["summary"]) for rule in rules(file)]


def of_dashboard(file: Path) -> list[tuple[str, str]]:
    """Expression and legend of each query of each panel."""
    panels = json.loads(file.read_text())["panels"]
    return [(target["expr"], target["legendFormat"]) for panel in panels for target in panel.get("targets", ())]


def of_scalers(file: Path) -> list[tuple[str, str]]:
    """Expression of each trigger of KEDA's scalers, and the text that it shows: none."""
    scalers = yaml.safe_load_all(file.read_text())
    return [(trigger["metadata"]["query"], "") for each in scalers for trigger in each["spec"]["triggers"]]
