"""The models that litellm itself knows."""

from __future__ import annotations


def test_litellm_accepts_every_name_that_we_pass() -> None:
    from sleipnir_workers.llm.litellm_compat import providers
    from sleipnir_workers.llm.models import ALIASES, LITELLM_NAMES, PRESET_BASES

    presets = {"deepinfra", "deepseek", "github", "groq", "minimax", "mistral", "moonshot", "openrouter"}
    names = presets | {"cloudflare", "perplexity", "xai", "ai21"} | set(ALIASES.values()) | set(LITELLM_NAMES.values())
    assert names <= providers()
    assert not set(PRESET_BASES) & providers()
