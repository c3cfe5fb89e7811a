"""The messages and exit codes of Sleipnir's own errors."""

from __future__ import annotations

from sleipnir.cli import exit_codes
from sleipnir.cli.terminal import terminal
from sleipnir.errors import (
    BundleError,
    ConfigError,
    GraphError,
    KnowledgeError,
    SleipnirError,
    ToolFileError,
    UsageError,
)

USER_ERRORS = (UsageError, GraphError, ToolFileError, ConfigError, BundleError)
"""Errors that the caller or the author must fix: exit code 2. All others: 1, except for a knowledge base whose agent or
documents must be changed."""


def report(failure: SleipnirError, *, verbose: bool = False) -> int:
    """Print the error and return its exit code."""
    if verbose:
        import traceback

        terminal.note("".join(traceback.format_exception(failure)).rstrip())
    terminal.error(_with_problems(failure) if isinstance(failure, GraphError) else str(failure))
    return exit_codes.USAGE if _is_for_the_user(failure) else exit_codes.FAILED


def _is_for_the_user(failure: SleipnirError) -> bool:
    if isinstance(failure, KnowledgeError):
        return failure.kind in ("usage", "sources")
    return isinstance(failure, USER_ERRORS)


def _with_problems(failure: GraphError) -> str:
    """The headline and every problem with its place; a problem that only repeats the headline is not listed."""
    headline = str(failure).partition("\n")[0]
    problems = [problem for problem in failure.problems if problem.message != headline]
    return "".join([headline, *(f"\n  {problem.with_code().replace(chr(10), chr(10) + '  ')}" for problem in problems)])
