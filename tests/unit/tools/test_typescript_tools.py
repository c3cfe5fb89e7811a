"""What a TypeScript tools file declares (spec 4.4)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir.errors import ToolFileError
from sleipnir.tools.declaration import Declaration
from sleipnir.tools.typescript import declarations
from sleipnir.tools.typescript_tokens import tokens

FILE = Path("/agents/triage/tools.ts")


def declared(text: str, *, agent: bool = True, file: Path = FILE) -> list[Declaration]:
    return declarations(text, file, agent=agent)


def parameters(written: str) -> dict[str, Any]:
    (declaration,) = declared(f"/** Does it. */\nexport function tool({written}) {{}}\n")
    return dict(declaration.parameters)


WEATHER = """\
import { request } from "./request";

/**
 * What the weather will be.
 *
 * Asks a service.
 * @param city - where,
 *   exactly
 * @param {number} [days=1] how many
 * @returns the forecast
 */
export async function getWeather(city: string, days: number = 1): Promise<{ text: string }> {
    return request(`weather/${city}?q=${"}"}`);
}
"""


@pytest.mark.conformance("X16")
def test_an_exported_function_is_declared_with_its_comment_and_the_order_of_its_parameters() -> None:
    assert declared(WEATHER) == [
        Declaration(
            name="getweather",
            description="What the weather will be.\n\nAsks a service.",
            parameters={
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "where, exactly"},
                    "days": {"type": "number", "description": "how many"},
                },
                "required": ["city"],
            },
            file=FILE,
            language="typescript",
            line=12,
            agent=True,
            command="getWeather",
            written={"city": "city", "days": "days"},
        )
    ]


@pytest.mark.conformance("X16")
@pytest.mark.parametrize(
    ("written", "schema", "required"),
    [
        ("x", {"type": "string"}, True),
        ("x: string", {"type": "string"}, True),
        ("x: number", {"type": "number"}, True),
        ("x: boolean", {"type": "boolean"}, True),
        ("x: string[]", {"type": "array", "items": {"type": "string"}}, True),
        ("x: number[][]", {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, True),
        ("x: Array<boolean>", {"type": "array", "items": {"type": "boolean"}}, True),
        ("x: readonly number[]", {"type": "array", "items": {"type": "number"}}, True),
        ('x: ("a" | "b")[]', {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, True),
        ("x: \"a\" | 'b'", {"type": "string", "enum": ["a", "b"]}, True),
        ('x: | "a" | "b"', {"type": "string", "enum": ["a", "b"]}, True),
        ("x: 1 | 2", {"type": "number", "enum": [1, 2]}, True),
        ("x: -1 | 1", {"type": "number", "enum": [-1, 1]}, True),
        ("x: true | false", {"type": "boolean"}, True),
        ("x: string | null", {"type": "string"}, False),
        ("x: undefined | number", {"type": "number"}, False),
        ("x?: boolean", {"type": "boolean"}, False),
        ("x = 1", {"type": "string"}, False),
        ("x = [1, 2]", {"type": "string"}, False),
        ("x: number = 1 < 2 ? 3 : 4", {"type": "number"}, False),
        ("x: Map<string, Array<number>>", {"type": "object"}, True),
        ("x: Record<string, number>", {"type": "object"}, True),
        ("x: { a: number; b: string }", {"type": "object"}, True),
        ("x: string | number", {"anyOf": [{"type": "string"}, {"type": "number"}]}, True),
        ("x: Colour", {"type": "string"}, True),
        ("x: (a: number) => void", {"type": "string"}, True),
        ("/* where */ x: number, // the end\n", {"type": "number"}, True),
    ],
)
def test_types_become_schemas(written: str, schema: dict[str, Any], required: bool) -> None:
    found = parameters(written)
    assert found["properties"] == {"x": schema}
    assert found.get("required") == (["x"] if required else None)


@pytest.mark.conformance("X16")
def test_parameters_are_split_at_commas_outside_of_brackets() -> None:
    found = parameters("this: Window, a: Map<string, number>, b: [string, number] = ['', 1], c = f(1, 2), d: string")
    assert list(found["properties"]) == ["a", "b", "c", "d"]
    assert found["required"] == ["a", "d"]


@pytest.mark.conformance("X13", "X16")
def test_only_exported_functions_with_a_body_are_declared() -> None:
    text = """\
// export function inComment() {}
const text = "export function inString() {}";
const template = `${`}`} export function inTemplate() {}`;
const pattern = /[/`"]{/g;
const half = 4 / 2; const more = 4 / 2;
function hidden() { }
/** Private. */
export function _hidden() { }
/** Overload. */
export function tool(a: string): string;
/** The tool. */
export function tool(a: string): { a: string } | null { return null }
export const arrow = () => { };
export type Kind = "a";
namespace inner { /** Not at the top. */ export function nested() { } }
/** The default. */
export default function main<T extends { a: string }>(a: T): asserts a is T { }
export default function () { }
"""
    assert [found.name for found in declared(text)] == ["tool", "main"]


def test_the_comment_must_be_directly_above() -> None:
    with pytest.raises(ToolFileError, match="Missing or empty description on function: tool"):
        declared("/** Of x. */\nconst x = 1;\nexport function tool() {}\n")


@pytest.mark.conformance("X15", "X16")
def test_a_global_file_declares_its_run_under_its_own_name() -> None:
    (found,) = declared("/** x */\nexport function run() {}", agent=False, file=Path("/functions/tools/demo-ts.ts"))
    assert (found.name, found.command, found.agent) == ("demo_ts", "run", False)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("\nexport function tool() {}", 2, "Missing or empty description on function: tool"),
        ("/** @param a - x */\nexport function tool(a) {}", 2, "Missing or empty description on function: tool"),
        ("/** x */\nexport function tool(\n...a) {}", 3, "rest parameters are not supported in tool functions: `tool`"),
        ("/** x */ export function tool({ a }) {}", 1, "destructured parameters are not supported in tool functions"),
        ("/** x */ export function tool([a]) {}", 1, "destructured parameters are not supported in tool functions"),
        ("/** x */ export function tool(a", 1, "failed to parse typescript: `(` is never closed"),
        ("/** x */ export function tool", 1, "failed to parse typescript: `tool` has no parameter list"),
    ],
)
def test_an_impossible_declaration_is_an_error_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ToolFileError) as caught:
        declared(text)
    assert caught.value.message.startswith(message)
    assert caught.value.line == line


def test_a_global_file_without_run_reports_it() -> None:
    with pytest.raises(ToolFileError, match="a global TypeScript tool is an exported function `run`; define it"):
        declared("/** x */ export function tool() {}", agent=False)


@given(st.text(alphabet="ab1 \n/*'\"`\\${}()[]<>=,.:;|?!export", max_size=60))
def test_any_text_is_read_to_its_end(text: str) -> None:
    found = list(tokens(text))
    assert all(text[token.start : token.end] == token.text for token in found)
    assert all(one.end <= other.start for one, other in pairwise(found))


@given(
    st.lists(
        st.sampled_from(
            ["export ", "default ", "function ", "async ", "f", "(", ")", "{", "}", "<", ">", "[", "]", ":", ",", "=",
             "|", "?", "...", "string", "'a'", "/** x */", "@param a", "\n", ";", "=>", "1", "/"]
        ),
        max_size=30,
    )
)  # fmt: skip
def test_every_text_is_declared_or_refused(parts: list[str]) -> None:
    try:
        found = declared("".join(parts))
    except ToolFileError:
        return
    assert all(each.language == "typescript" for each in found)
