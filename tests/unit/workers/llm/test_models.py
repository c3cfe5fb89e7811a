"""Model ids become litellm names, bases and keys."""

from __future__ import annotations

import pytest

from sleipnir.errors import NodeFailed
from sleipnir_workers.llm.models import NO_KEY, Endpoint, resolve

PROVIDERS = frozenset(
    ["openai", "anthropic", "gemini", "cohere", "cohere_chat", "azure", "vertex_ai", "bedrock", "ollama", "groq"]
)


@pytest.mark.parametrize(
    ("model_id", "env", "expected"),
    [
        ("openai:gpt-x", {"OPENAI_API_KEY": "k"}, Endpoint("openai/gpt-x", None, "k")),
        ("openai:gpt-x", {"OPENAI_API_BASE": "http://b/v1"}, Endpoint("openai/gpt-x", "http://b/v1", NO_KEY)),
        ("claude:c", {"ANTHROPIC_API_KEY": "k"}, Endpoint("anthropic/c", None, "k")),
        ("claude:c", {"CLAUDE_API_KEY": "own", "ANTHROPIC_API_KEY": "k"}, Endpoint("anthropic/c", None, "own")),
        ("anthropic:c", {"ANTHROPIC_API_KEY": "k"}, Endpoint("anthropic/c", None, "k")),
        ("google:g", {"GOOGLE_API_KEY": "k"}, Endpoint("gemini/g", None, "k")),
        ("gemini:g", {"GOOGLE_API_KEY": "k"}, Endpoint("gemini/g", None, "k")),
        ("cohere:c", {"COHERE_API_KEY": "k"}, Endpoint("cohere_chat/c", None, "k")),
        ("azure:d", {"AZURE_API_BASE": "https://b", "AZURE_API_KEY": "k"}, Endpoint("azure/d", "https://b", "k")),
        ("azure-openai:d", {"AZURE_OPENAI_API_KEY": "k"}, Endpoint("azure/d", None, "k")),
        ("vertex:g", {}, Endpoint("vertex_ai/g")),
        ("vertexai:g", {}, Endpoint("vertex_ai/g")),
        ("bedrock:b", {}, Endpoint("bedrock/b")),
        ("ollama:llama3:8b", {}, Endpoint("ollama_chat/llama3:8b")),
        ("ollama:l", {"OLLAMA_API_BASE": "http://b:1"}, Endpoint("ollama_chat/l", "http://b:1")),
        ("ollama:l", {"OLLAMA_API_BASE": "http://b:1/v1"}, Endpoint("openai/l", "http://b:1/v1", NO_KEY)),
        ("groq:g", {"GROQ_API_KEY": "k"}, Endpoint("groq/g", None, "k")),
        ("zhipuai:glm", {"ZHIPUAI_API_KEY": "k"}, Endpoint("openai/glm", "https://open.bigmodel.cn/api/paas/v4", "k")),
        ("my-box:org/m:free", {"MY_BOX_API_BASE": "http://b"}, Endpoint("openai/org/m:free", "http://b", NO_KEY)),
    ],
)
def test_an_id_becomes_an_endpoint(model_id: str, env: dict[str, str], expected: Endpoint) -> None:
    assert resolve(model_id, env, PROVIDERS) == expected


@pytest.mark.parametrize(
    ("model_id", "message"),
    [
        ("gpt-x", "write it as client:model, like 'openai:"),
        ("openai", "write it as client:model"),
        ("openai:", "write it as client:model"),
        ("groq/llama", "write it as client:model, like 'groq:llama'"),
        ("nobody:m", "no provider is called 'nobody'; for an OpenAI-compatible server set NOBODY_API_BASE"),
        ("openai:m", "No API key for model 'openai:m': set OPENAI_API_KEY"),
    ],
)
def test_an_id_that_leads_nowhere_reports_what_to_do(model_id: str, message: str) -> None:
    with pytest.raises(NodeFailed, match=r".") as caught:
        resolve(model_id, {}, PROVIDERS)
    assert message in str(caught.value)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Endpoint("m", None, "secret"))
