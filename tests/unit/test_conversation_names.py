"""Names of threads and sessions of several namespaces, and the specs of their runs."""

from __future__ import annotations

import pytest

from sleipnir.runs.run import IN_NAMESPACE, RunSpec, child_id
from sleipnir.runs.sessions import SessionName
from sleipnir.runs.threads import ThreadName
from sleipnir.store.keys import Keys
from sleipnir.store.record_text import fields_set

SPEC = RunSpec("agent", "digest", namespace="acme", session="desk", sessions={"child": "desk"})


@pytest.mark.parametrize("kind", [ThreadName, SessionName])
def test_a_name_reads_as_it_is_written_and_that_of_the_default_namespace_as_ever(
    kind: type[ThreadName | SessionName],
) -> None:
    for name, text in ((kind("a", "n"), "a/n"), (kind("a", "n", "acme"), "/acme/a/n"), (kind("acme", "a"), "acme/a")):
        assert (str(name), kind.of_text(text)) == (text, name)


def test_keys_of_the_default_namespace_are_those_of_earlier_releases() -> None:
    keys = Keys(known_partitions=256)
    for make in (keys.of_thread, lambda name: keys.of_session(SessionName(name.agent, name.name, name.namespace))):
        texts = {str(make(ThreadName("a", "n", of))) for of in ("default", "acme", "other")}
        assert len(texts) == 3
    assert keys.of_thread(ThreadName("a", "n")).endswith("}:thread:a/n")


def test_a_spec_says_where_its_names_are_and_a_run_of_an_earlier_release_has_them_in_the_default_namespace() -> None:
    assert SessionName.of(SPEC) == SessionName("agent", "desk")
    here = SPEC.naming_in_its_namespace()
    assert SessionName.of(here) == SessionName("agent", "desk", "acme")
    assert SessionName.of_child(here, "child") == SessionName("child", "desk", "acme")
    assert (here.v, SessionName.of_child(here, "other")) == (IN_NAMESPACE, None)
    turn = RunSpec("agent", "digest", namespace="acme").in_thread("talk", 1, None)
    assert (ThreadName.of(turn), turn.v) == (ThreadName("agent", "talk", "acme"), IN_NAMESPACE)
    plain = RunSpec("agent", "digest").in_thread("talk", 1, None)
    assert "thread_namespace" not in fields_set(plain) and plain.v < IN_NAMESPACE
    names = [str(SessionName("child", "desk", of)) for of in ("default", "acme")]
    ids = [child_id("run", 1, name) for name in names]
    assert [Keys(known_partitions=256).partition_of(run) for run in ids] == [
        Keys(known_partitions=256).partition_of(name) for name in names
    ]
