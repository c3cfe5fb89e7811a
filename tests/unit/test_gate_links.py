"""Signed links to questions: what is signed, and which texts are none."""

from __future__ import annotations

import base64
import json

import pytest

from sleipnir.webhook_sender.linked_body import linked_body
from sleipnir.webhooks.gate_links import GateLink, LinkDamaged, link_of, token_of
from sleipnir.webhooks.records import Webhook, WebhookDelivery
from sleipnir.webhooks.signatures import SigningKeys

KEYS = SigningKeys({"k1": b"a" * 32})
LINK = GateLink("k1", "r" * 12, 3, 2, "ann", 1_000, "bob@desk (cli)")


def parts_of(token: str) -> tuple[dict[str, object], str]:
    body, mac = token.split(".")
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))), mac


def forged(**fields: object) -> str:
    body, mac = parts_of(token_of(LINK, KEYS))
    text = base64.urlsafe_b64encode(json.dumps({**body, **fields}).encode()).rstrip(b"=").decode()
    return f"{text}.{mac}"


def test_a_link_is_what_was_signed() -> None:
    token = token_of(LINK, KEYS)
    assert link_of(token, KEYS) == LINK and LINK.gate == "3.2"
    assert all(letter.isalnum() or letter in "-_." for letter in token)


@pytest.mark.parametrize("name", ["run", "seq", "attempt", "person", "until_ms", "by"])
def test_a_change_of_any_field_breaks_the_signature(name: str) -> None:
    value = "other" if isinstance(getattr(LINK, name), str) else 9
    with pytest.raises(LinkDamaged, match="signature"):
        link_of(forged(**{name: value}), KEYS)


@pytest.mark.parametrize("token", ["", ".", "a", "a.b", "ä.ö", "e30.e30", "W10.W10", "x" * 3_000, forged(v=99)])
def test_other_texts_are_no_links(token: str) -> None:
    with pytest.raises(LinkDamaged):
        link_of(token, KEYS)


def test_a_link_ends_with_its_key_and_not_with_a_newer_one() -> None:
    token = token_of(LINK, KEYS)
    assert link_of(token, SigningKeys({"k2": b"b" * 32, **KEYS.by_id})) == LINK
    with pytest.raises(LinkDamaged):
        link_of(token, SigningKeys({"k2": b"b" * 32}))
    with pytest.raises(LinkDamaged):
        link_of(token, SigningKeys({"k1": b"b" * 32}))


def delivery(occasion: str = "gate_opened", **data: object) -> WebhookDelivery:
    given = {"run": "r", "visit": 3, "attempt": 1, "assignees": ["ann", "bob"], "due_ms": None, **data}
    body = json.dumps({"type": occasion, "data": given})
    return WebhookDelivery("msg_1", occasion, "r" * 12, body, 1_000)


@pytest.mark.parametrize("links", [True, False])
def test_a_delivery_about_a_question_gets_its_links_when_it_is_sent(links: bool) -> None:
    webhook = Webhook("w", "https://x.example", ("gate_opened",), "t", "k1", 1, "me", links=links)
    sent = json.loads(linked_body(webhook, delivery(due_ms=5_000), KEYS, "https://runs.example/"))["data"]
    assert sent["url"] == f"https://runs.example/decisions/{'r' * 12}/3.1"
    assert ("links" in sent) is links
    for each in sent.get("links", ()):
        link = link_of(each["url"].removeprefix("https://runs.example/d/"), KEYS)
        assert (link.person, link.run, link.gate, link.until_ms) == (each["person"], "r" * 12, "3.1", 5_000)
        assert link.by == "webhook w"
    assert [each["person"] for each in sent.get("links", ())] == (["ann", "bob"] if links else [])
    assert linked_body(webhook, delivery(), KEYS, "https://runs.example") == linked_body(
        webhook, delivery(), KEYS, "https://runs.example"
    ), "each try sends the same"


@pytest.mark.parametrize(
    ("of", "console_url"), [(delivery(), ""), (delivery("run_ended"), "https://runs.example")], ids=["no url", "a run"]
)
def test_other_deliveries_stay_as_they_are(of: WebhookDelivery, console_url: str) -> None:
    webhook = Webhook("w", "https://x.example", ("gate_opened",), "t", "k1", 1, "me", links=True)
    assert linked_body(webhook, of, KEYS, console_url) == of.body
