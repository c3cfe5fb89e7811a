"""The header of every Lua script is its contract: it names all slots, and the body uses what it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sleipnir.store.scripts import LuaScript

LUA = Path(__file__).parents[2] / "sleipnir" / "store" / "lua"
NAMES = sorted(file.stem for file in LUA.glob("*.lua"))
AFTER_6_2 = {
    "LMPOP",
    "ZMPOP",
    "BLMPOP",
    "BZMPOP",
    "SINTERCARD",
    "FCALL",
    "FUNCTION",
    "EXPIRETIME",
    "HEXPIRE",
    "XACKDEL",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_header_describes_what_the_script_does_its_slots_and_its_returns(name: str) -> None:
    text = (LUA / f"{name}.lua").read_text()
    assert text.startswith(f"-- {name}: ")
    assert "-- Returns" in text
    script = LuaScript(name)
    assert script.keys
    assert len(set(script.keys)) == len(script.keys)


@pytest.mark.parametrize("name", NAMES)
def test_slots_are_numbered_without_gaps(name: str) -> None:
    text = (LUA / f"{name}.lua").read_text()
    for kind in ("KEYS", "ARGV"):
        numbers = [int(number) for number in re.findall(rf"^-- {kind}\[(\d+)", text, re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1)), kind


@pytest.mark.parametrize("name", NAMES)
def test_the_body_gives_every_key_a_name_and_uses_keys_by_name_only(name: str) -> None:
    body = "\n".join(line for line in (LUA / f"{name}.lua").read_text().splitlines() if not line.startswith("--"))
    head, _, rest = body.partition("\n\n")
    for key in LuaScript(name).keys:
        assert re.search(rf"\b{key}\b", body), f"{key} is declared and never used"
    assert "KEYS[" not in rest
    assert not re.search(r"redis\.call\('(\w+)', (KEYS|ARGV)", head)


@pytest.mark.parametrize("name", NAMES)
def test_only_commands_of_redis_6_2_are_used(name: str) -> None:
    commands = set(re.findall(r"redis\.call\('(\w+)'", LuaScript(name).text))
    assert commands
    assert not commands & AFTER_6_2


def test_a_wrong_name_is_a_type_error_before_anything_is_sent() -> None:
    script = LuaScript("fire_timers")
    with pytest.raises(TypeError, match="takes keys"):
        script.vector({"timers": "t"}, {"limit": 1})
    with pytest.raises(TypeError, match="takes keys"):
        script.vector({"timers": "t", "inbox": "i"}, {"most": 1})
    with pytest.raises(TypeError, match="takes keys"):
        script.vector({"timers": "t", "inbox": "i"}, {"limit": 1}, ["more"])


def test_a_script_of_many_keys_takes_a_list_and_others_take_names() -> None:
    many, named = LuaScript("limit_take"), LuaScript("limit_release")
    arguments = {name: 0 for name in many.args}
    assert many.vector(["k1", "k2"], arguments, [7]) == ["k1", "k2", *arguments.values(), 7]
    with pytest.raises(TypeError, match="takes keys"):
        many.vector({"limits": "k1"}, arguments)
    with pytest.raises(TypeError, match="takes keys"):
        named.vector(["w", "h"], {name: 0 for name in named.args})
