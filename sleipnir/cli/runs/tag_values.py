"""The values of `--tag`. Separate from parameters.py, because commands that only look at runs must start fast."""

from __future__ import annotations

import click


def tag_values(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`KEY=TEXT` as tags."""
    from sleipnir.errors import UsageError
    from sleipnir.runs.cards import checked_tags, tag_of

    try:
        return checked_tags(dict(map(tag_of, values)))
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from None
