"""What a fork is submitted with, made from the spec of its source."""

from __future__ import annotations

from dataclasses import replace

from sleipnir.runs.run import RunSpec


def without_its_place(spec: RunSpec) -> RunSpec:
    """The same for a run that is in no thread or session, and that no other run and no schedule has started."""
    return replace(
        spec,
        session=None,
        thread=None,
        turn=0,
        previous=None,
        parent=None,
        parent_seq=0,
        parent_attempt=1,
        root=None,
        depth=0,
        path=[],
        fork=None,
        schedule=None,
        fired_ms=0,
    )


def in_the_place_of(spec: RunSpec, now: RunSpec) -> RunSpec:
    """What a run with the definition of `now` is submitted with, in the place of one with this `spec`."""
    again = replace(
        now,
        config=spec.config,
        context=spec.context,
        cwd=spec.cwd,
        caller_dir=spec.caller_dir,
        caller_marks=spec.caller_marks,
        max_cost_usd=spec.max_cost_usd,
        max_tokens=spec.max_tokens,
        namespace=spec.namespace,
        tags=spec.tags,
    )
    again = again.stopping(spec.interrupt_before, spec.interrupt_after)
    return again.naming_in_its_namespace() if again.sessions else again
