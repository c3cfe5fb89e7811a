"""`limits.yaml`: what it may say, which limits bound a model, and the words for a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import ConfigError
from sleipnir.models.limits import (
    Limit,
    LimitReached,
    ModelLimits,
    estimated_tokens,
    limits_file,
    load,
    parse,
    retry_after_ms,
)
from sleipnir.settings import Settings

FILE = """\
# The account's tier.
models:
  "openai:*":
    requests_per_minute: 600
    tokens_per_minute: 200000
  "anthropic:claude-*": {max_parallel: 20}
  "openai:gpt-5":
    max_parallel: 4
    tokens_per_minute:
"""


def problems(text: str) -> list[str]:
    return [str(problem) for problem in parse(text, "limits.yaml").problems]


def test_a_file_sets_what_models_may_use_together() -> None:
    loaded = parse(FILE, "limits.yaml")
    assert loaded.problems == ()
    assert loaded.limits == ModelLimits(
        (
            Limit("openai:*", requests_per_minute=600, tokens_per_minute=200_000),
            Limit("anthropic:claude-*", max_parallel=20),
            Limit("openai:gpt-5", max_parallel=4),
        )
    )


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n\n", "models:\n", "\ufeff# nothing\n"])
def test_a_file_may_hold_no_limits(text: str) -> None:
    assert parse(text, "limits.yaml").limits == ModelLimits()
    assert problems(text) == []


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("openai:gpt-5", ["openai:gpt-5"], ["openai:gpt-5-mini", "xopenai:gpt-5", "OPENAI:GPT-5"]),
        ("openai:*", ["openai:gpt-5", "openai:", "openai:a:b/c"], ["azure:openai:x", "openai"]),
        ("*:gpt-5*", ["openai:gpt-5", "azure:gpt-5-mini"], ["openai:gpt-4"]),
        ("*", ["openai:gpt-5", "x:y\nz"], []),
        ("ollama:qwen3.[8]b?", ["ollama:qwen3.[8]b?"], ["ollama:qwen3x8b", "ollama:qwen3.8b"]),
    ],
)
def test_a_star_matches_any_text_and_other_characters_match_themselves(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    assert [model for model in (*matching, *others) if Limit(pattern).matches(model)] == matching


@pytest.mark.timeout(30)
def test_a_pattern_of_a_limit_takes_linear_time() -> None:
    """Finding S1, elsewhere: the model's id comes from an agent."""
    assert not Limit("*a" * 30 + "*!").matches("a" * 10_000)
    assert Limit("*a" * 30 + "*").matches("a" * 10_000)
    assert not Limit("ab*ba").matches("aba")


def test_every_limit_that_matches_bounds_a_model_and_the_most_specific_comes_first() -> None:
    patterns = ["*", "openai:*", "openai:gpt-5", "openai:gpt-5*", "anthropic:claude-*"]
    limits = ModelLimits(tuple(map(Limit, patterns)))
    assert [limit.pattern for limit in limits.matching("openai:gpt-5")] == [
        "openai:gpt-5", "openai:gpt-5*", "openai:*", "*",
    ]  # fmt: skip
    assert limits.matching("claude:claude-x") == (Limit("*"),)
    assert [limit.pattern for limit in limits.matching("claude:claude-x", "anthropic:claude-x")] == [
        "anthropic:claude-*", "*",
    ]  # fmt: skip
    assert ModelLimits().matching("openai:gpt-5") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "modles:\n  'a:*': {max_parallel: 1}\n",
            "limits.yaml:1:1: warning: unknown key 'modles' is ignored\n    Did you mean \"models\"?",
        ),
        (
            "'openai:*': {max_parallel: 1}\n",
            "limits.yaml:1:1: warning: unknown key 'openai:*' is ignored\n"
            "    If it is a pattern of models, indent it below 'models:'.",
        ),
        (
            "models:\n  'a:*':\n    request_per_minute: 1\n",
            "limits.yaml:3:5: warning: unknown key 'request_per_minute' is ignored\n"
            '    Did you mean "requests_per_minute"?',
        ),
        (
            "models:\n  'a:*':\n    max_parallel: 0\n",
            "limits.yaml:3:5: 'max_parallel' must be a whole number from 1 to 10**12, not 0\n"
            "    Omit keys without a bound.",
        ),
        (
            "models:\n  gpt-5: {max_parallel: 2}\n",
            "limits.yaml:2:3: 'gpt-5' matches no model: their ids are written client:model\n"
            "    Write 'client:model', for example 'openai:gpt-5', or use `*` for any text.",
        ),
        (
            "models:\n  'a:*': 600\n",
            "limits.yaml:2:3: the limit of 'a:*' must be a mapping\n"
            "    Its keys are: requests_per_minute, tokens_per_minute, max_parallel.",
        ),
        (
            "models:\n  'a:*': {}\n",
            "limits.yaml:2:3: warning: the limit of 'a:*' has no bounds\n"
            "    Its keys are: requests_per_minute, tokens_per_minute, max_parallel.",
        ),
        (
            "models: [a]\n",
            "limits.yaml:1:1: 'models' must be a mapping of patterns to bounds\n    Write patterns of model ids, each "
            "with its bounds:  models: {'openai:*': {requests_per_minute: 600}}",
        ),
        (
            "models:\n  'a:*': {max_parallel: 1}\n  'a:*': {max_parallel: 2}\n",
            "limits.yaml:3:3: duplicate key 'a:*': it is already set at line 2, column 3\n    Keep one of the two.",
        ),
        ("models: [", "limits.yaml:2:1: YAML parsing error: "),
        ("- a\n", "limits.yaml:1:1: the file must be a mapping with the key 'models'"),
    ],
)
def test_a_problem_reports_where_it_is_and_what_would_be_right(text: str, expected: str) -> None:
    [problem] = problems(text)
    assert problem.startswith(expected)
    assert (parse(text, "limits.yaml").limits is None) == (": warning: " not in problem)


@pytest.mark.parametrize("value", ["true", "1.5", "'600'", "-1", "[1]", "1000000000001", ".inf", "600k"])
def test_a_bound_is_a_whole_number(value: str) -> None:
    [problem] = problems(f"models:\n  'a:*':\n    requests_per_minute: {value}\n")
    assert "'requests_per_minute' must be a whole number" in problem


def test_all_problems_are_reported_together() -> None:
    text = "models:\n  a: {max_parallel: x}\n  'b:*': {tokens_per_minute: y, z: 1}\nextra: 1\n"
    assert [problem.partition(" ")[0] for problem in problems(text)] == [
        "limits.yaml:2:3:", "limits.yaml:2:7:", "limits.yaml:3:11:", "limits.yaml:3:33:", "limits.yaml:4:1:",
    ]  # fmt: skip


def test_the_file_is_at_the_configured_path_else_in_the_configuration_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path))
    assert limits_file(Settings()) == tmp_path / "limits.yaml"
    assert load(Settings()) == (ModelLimits(), ())
    (tmp_path / "limits.yaml").write_text("models: {'a:*': {max_parallel: 1, b: 2}}")
    limits, [warning] = load(Settings())
    assert limits == ModelLimits((Limit("a:*", max_parallel=1),))
    assert warning.level == "warning"
    named = Settings.from_env({"SLEIPNIR_LIMITS": str(tmp_path / "other.yaml")})
    with pytest.raises(ConfigError, match=r"other\.yaml': No such file"):
        load(named)
    (tmp_path / "other.yaml").write_text("models: {'a:*': {max_parallel: zero}}")
    with pytest.raises(ConfigError, match=r"cannot be used\n  .*other\.yaml:1:18: 'max_parallel' must"):
        load(named)
    (tmp_path / "other.yaml").write_bytes(b"models: \xff")
    with pytest.raises(ConfigError, match="byte 8 is not UTF-8"):
        load(named)


NOON_MS = 1_800_000_000_000  # 08:00:00 UTC
LIMIT = Limit("openai:*", 600, 200_000, 4)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (
            LimitReached(LIMIT, "requests", NOON_MS + 1, ahead=12, used=600),
            "limit 'openai:*' until 08:00:01 UTC, held by 600 of 600 requests per minute; 12 callers come first",
        ),
        (
            LimitReached(LIMIT, "tokens", NOON_MS, ahead=1, used=199_000),
            "limit 'openai:*' until 08:00:00 UTC, held by 199,000 of 200,000 tokens per minute; 1 caller comes first",
        ),
        (
            LimitReached(LIMIT, "parallel", NOON_MS, used=4, holders=("r1/2/1/1", "r2/2/1/1", "r3/2/1/1")),
            "limit 'openai:*' until 08:00:00 UTC, held by r1/2/1/1, r2/2/1/1, r3/2/1/1 and 1 more",
        ),
        (
            LimitReached(LIMIT, "parallel", NOON_MS, ahead=4),
            "limit 'openai:*' until 08:00:00 UTC, held by no call yet; 4 callers come first",
        ),
        (
            LimitReached(LIMIT, "cooling", NOON_MS),
            "limit 'openai:*' until 08:00:00 UTC, held by the provider, which asked for a pause",
        ),
    ],
)
def test_a_refusal_reports_which_limit_until_when_and_who_holds_it(refused: LimitReached, reason: str) -> None:
    assert refused.reason == reason


def test_limits_of_tools_are_apart_from_those_of_models() -> None:
    text = "models: {'*': {max_parallel: 9}}\ntools: {'db_*': {max_parallel: 2}, db_read: {requests_per_minute: 5}}\n"
    limits = parse(text, "limits.yaml").limits
    assert limits is not None
    assert [limit.pattern for limit in limits.of_tool("db_read")] == ["tool:db_read", "tool:db_*"]
    assert [limit.pattern for limit in limits.matching("openai:gpt")] == ["*"]
    assert limits.of_tool("other") == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tools: {db: {tokens_per_minute: 5}}", "calls of tools have no tokens"),
        ("models: {'tool:db': {max_parallel: 5}}", "'tool:db' is no pattern of models"),
        ("tools: [db]", "'tools' must be a mapping of patterns to bounds"),
    ],
)
def test_a_wrong_limit_of_a_tool_is_an_error(text: str, problem: str) -> None:
    loaded = parse(text, "limits.yaml")
    assert loaded.limits is None
    assert [each.message for each in loaded.problems] == [problem]


@pytest.mark.parametrize(
    ("header", "ms"),
    [
        ("30", 30_000),
        ("0.25", 250),
        ("-5", 0),
        ("Fri, 15 Jan 2027 08:00:10 GMT", 10_000),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0),
        ("soon", None),
        ("", None),
        ("inf", None),
        ("nan", None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(header: str, ms: int | None) -> None:
    assert retry_after_ms(header, NOON_MS / 1000) == ms


def test_a_call_may_use_its_messages_and_the_longest_answer() -> None:
    assert estimated_tokens(0, 0) == 0
    assert estimated_tokens(4_001, 500) == 1_501
