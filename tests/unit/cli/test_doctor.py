"""`doctor`: every finding that is not ok says what to do."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sleipnir.cli import main
from sleipnir.cli.fleet.doctor import (
    Finding,
    look_at_agreement,
    look_at_archive,
    look_at_archiving,
    look_at_durability,
    look_at_fleet,
    look_at_generation,
    look_at_home,
    look_at_knowledge,
    look_at_memory,
    look_at_model,
    look_at_version,
    look_at_webhooks,
)
from sleipnir.cli.fleet.services import scheduler_command, worker_command
from sleipnir.runs.views import ArchiveState, Generation, Health, WorkerInfo
from sleipnir.settings import Settings

SOUND = Health(
    version="7.2.4",
    appendonly=True,
    maxmemory_policy="noeviction",
    queues={"scripts": 3, "llm": 0, "rag": 0},
    schedulers=("a:1",),
    workers=(WorkerInfo("w@a", ("llm", "rag", "scripts"), 0),),
    now_ms=0,
)


def levels(findings: list[Finding]) -> dict[str, str]:
    assert all(finding.hint for finding in findings if finding.level != "ok")
    return {finding.subject: finding.level for finding in findings}


def test_a_sound_deployment_is_ok() -> None:
    assert levels([*look_at_durability(SOUND), *look_at_fleet(SOUND)]) == {
        "appendonly": "ok",
        "maxmemory": "ok",
        "schedulers": "ok",
        "queue llm": "ok",
        "queue rag": "ok",
        "queue scripts": "ok",
    }


def test_a_redis_without_persistence_is_a_warning_and_one_that_evicts_keys_a_failure() -> None:
    forgetful = replace(SOUND, appendonly=False, maxmemory_policy="allkeys-lru")
    assert levels(list(look_at_durability(forgetful))) == {"appendonly": "warn", "maxmemory": "fail"}


def test_a_new_generation_is_shown_with_its_reason_and_how_long_leases_wait() -> None:
    """Findings C4 and C5."""
    began = Generation("g2", "g2", 1_000, "restarted", 7, steady_ms=16_000, now_ms=4_000, pulse_ms=3_500)
    [finding] = look_at_generation(replace(SOUND, now_ms=4_000, generation=began))
    assert finding.level == "warn"
    assert "Redis restarted" in finding.text
    assert "for 12 s" in finding.text
    [finding] = look_at_generation(replace(SOUND, now_ms=4_000, generation=replace(began, now_ms=16_000)))
    assert finding.level == "ok"
    assert list(look_at_generation(SOUND)) == []


def test_missing_schedulers_and_workers_are_reported() -> None:
    findings = list(look_at_fleet(replace(SOUND, schedulers=(), workers=())))
    assert levels(findings) == {"schedulers": "fail", "queue llm": "warn", "queue rag": "warn", "queue scripts": "warn"}
    assert "3 waiting" in next(finding.text for finding in findings if finding.subject == "queue scripts")


def test_a_worker_whose_machine_cannot_run_visits_is_named_with_the_reason() -> None:
    """Finding C18."""
    sick = WorkerInfo("sick@b", (), 0, stopped={"scripts": "disk: No space left on device"})
    findings = {finding.subject: finding for finding in look_at_fleet(replace(SOUND, workers=(*SOUND.workers, sick)))}
    assert findings["queue scripts"].level == "warn"
    assert "sick@b (disk: No space left on device)" in findings["queue scripts"].text
    alone = {finding.subject: finding for finding in look_at_fleet(replace(SOUND, workers=(sick,)))}
    assert alone["queue scripts"].level == "fail"
    assert alone["queue scripts"].hint


def test_the_model_needs_a_key_of_its_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLAUDE_API_KEY", "ANTHROPIC_API_KEY", "CLAUDE_API_BASE", "ANTHROPIC_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    assert levels(list(look_at_model(None))) == {"model": "warn"}
    assert levels(list(look_at_model("claude:large"))) == {"model": "warn"}
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    (finding,) = look_at_model("claude:large")
    assert finding.level == "ok"
    assert "sk-secret" not in finding.text


def test_a_home_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert levels(list(look_at_home(tmp_path / "file"))) == {"home": "fail"}
    assert levels(list(look_at_home(tmp_path / "new"))) == {"home": "ok"}


def test_what_knowledge_bases_need_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(list(look_at_knowledge(Settings(home=tmp_path)))) == {"shelf": "ok"}
    (tmp_path / "file").touch()
    lost = Settings(home=tmp_path, knowledge=str(tmp_path / "file" / "below"))
    assert levels(list(look_at_knowledge(lost))) == {"shelf": "warn"}
    assert levels(list(look_at_knowledge(Settings(home=tmp_path, knowledge="s3://bucket/kb")))) == {"shelf": "ok"}
    monkeypatch.setattr("sleipnir.cli.fleet.doctor.find_spec", lambda name: None)
    bare = list(look_at_knowledge(Settings(home=tmp_path, knowledge="s3://bucket/kb")))
    assert levels(bare) == {"knowledge": "warn", "shelf": "warn"}
    assert [finding.hint.partition("pip ")[2] for finding in bare] == [
        "install '.[rag]' in a checkout",
        "install '.[s3]' in a checkout",
    ]


def test_a_misspelt_setting_is_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLEIPNIR_MODLE", "x:y")
    assert main(["doctor"]) == 1
    assert "did you mean SLEIPNIR_MODEL?" in capsys.readouterr().out


def test_the_settings_are_listed_with_value_and_meaning_but_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLEIPNIR_BROKER_URL", "redis://:hunter2@broker:6379/1")
    assert main(["--redis-url", "redis://:hunter2@store/0", "doctor", "--settings", "--json"]) == 0
    text = capsys.readouterr().out
    listed = {entry["name"]: entry for entry in json.loads(text)}
    assert len(listed) == len(Settings.names())
    assert listed["SLEIPNIR_REDIS_URL"]["value"] == "redis://:***@store/0"
    assert "given to another" in listed["SLEIPNIR_LEASE_S"]["meaning"]
    assert "hunter2" not in text


def test_the_services_are_started_by_these_commands() -> None:
    """Finding U9 of the second review: two workers of one host had one default name."""
    assert scheduler_command()[1:] == ["-m", "sleipnir_scheduler"]
    command = worker_command("scripts,functions", 4, "threads", None, "trace")
    assert " ".join(command[1:]) == (
        f"-m celery -A sleipnir_workers.app worker -Q scripts,functions -c 4 -P threads -n scripts-{os.getpid()}@%h "
        "--loglevel DEBUG --without-gossip --without-mingle"
    )
    assert "me@there" in worker_command("llm", 1, "solo", "me@there", "info")


def test_a_redis_without_a_bound_is_noticed_unless_it_is_private() -> None:
    """S9 of the second review: the kernel kills it, and no alert fires before."""
    assert levels(list(look_at_memory(replace(SOUND, used_memory=5)))) == {"memory": "warn"}
    assert levels(list(look_at_memory(replace(SOUND, used_memory=5), private=True))) == {"memory": "ok"}


@pytest.mark.parametrize(
    ("version", "valkey", "level"),
    [
        ("6.2.14", "", "warn"), ("6.2.23", "", None), ("7.2.5", "", "warn"), ("7.2.10", "", "warn"),
        ("7.2.15", "", None),
        ("8.2.1", "", "warn"), ("7.0.15", "", None), ("9.0.0", "", None), ("odd", "", None), ("7.2.4", "8.1.9", None),
        ("7.2.4", "8.1.3", "warn"), ("7.2.4", "7.2.14", None), ("255.255.255", "", None),
    ],
)  # fmt: skip
def test_a_redis_that_lacks_security_fixes_is_noticed(version: str, valkey: str, level: str | None) -> None:
    """S9 of the second review: `eval` is allowed, and 7.2.5 was pinned."""
    health = replace(SOUND, version=version, valkey=valkey)
    assert levels(list(look_at_version(health))) == ({} if level is None else {"redis version": level})
    assert list(look_at_version(health, private=True)) == []


def test_schedulers_that_do_not_share_their_settings_are_noticed() -> None:
    """S12 of the second review: two deployments with one prefix merged unseen."""
    mine = Settings(redis_url="redis://a", broker_url="redis://:p@b")
    same = mine.replaced(redis_url="redis://c", broker_url="redis://:other@b")
    alike = replace(SOUND, settings={"a": mine.shared_digests(), "b": same.shared_digests(), "c": {}})
    assert list(look_at_agreement(alike)) == []
    other = mine.replaced(broker_url="amqp://b", lease_s=7.0)
    (found,) = look_at_agreement(replace(alike, settings={**alike.settings, "d": other.shared_digests()}))
    assert found.text.endswith("different values: SLEIPNIR_BROKER_URL, SLEIPNIR_LEASE_S")
    assert found.level == "warn" and "SLEIPNIR_KEY_PREFIX" in found.hint


def test_a_redis_that_is_nearly_full_or_cannot_write_is_noticed() -> None:
    assert levels(list(look_at_memory(replace(SOUND, used_memory=5, maxmemory=100)))) == {"memory": "ok"}
    assert levels(list(look_at_memory(replace(SOUND, used_memory=5, maxmemory=10)))) == {"memory": "ok"}
    full = replace(SOUND, used_memory=9, maxmemory=10, persists=False)
    assert levels(list(look_at_memory(full))) == {"persistence": "fail", "memory": "warn"}


def test_an_archive_that_cannot_be_written_is_noticed_here_and_where_the_schedulers_are(tmp_path: Path) -> None:
    assert list(look_at_archive(None)) == []
    assert levels(list(look_at_archive(tmp_path / "archive")))["archive"] == "ok"
    (tmp_path / "file").write_text("")
    assert levels(list(look_at_archive(tmp_path / "file"))) == {"archive": "warn"}
    sound, full = ArchiveState("/a", written=3), ArchiveState("/a", error="/a: No space left on device", lost=7)
    (ok,) = look_at_archiving(replace(SOUND, archives={"s:1": sound}))
    assert (ok.level, ok.text) == ("ok", "s:1 writes to /a, 3 runs since its start")
    (fail,) = look_at_archiving(replace(SOUND, archives={"s:1": full}))
    assert (fail.level, "7 runs have expired" in fail.text) == ("fail", True)
    (warn,) = look_at_archiving(replace(SOUND, archives={"s:1": replace(full, error=None)}))
    assert warn.level == "warn"


def test_webhooks_that_no_process_sends_are_a_warning_and_none_at_all_is_no_finding() -> None:
    assert list(look_at_webhooks(0, [])) == []
    assert levels(list(look_at_webhooks(2, []))) == {"webhooks": "warn"}
    assert levels(list(look_at_webhooks(2, ["a:1"]))) == {"webhooks": "ok"}
