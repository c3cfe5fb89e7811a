"""How requests to hooks prove who has made them, and what they become: pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest

from sleipnir.errors import UsageError
from sleipnir.webhooks.hooks import Hook, HookRequest, body_of, checked_hook, request_id, run_inputs, signal_name
from sleipnir.webhooks.proofs import is_proved
from sleipnir.webhooks.signatures import headers as signed_headers

NOW_S = 1_800_000_000
KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
BODY = json.dumps({"action": "opened", "issue": {"number": 7, "title": "It is red"}, "id": "evt_1"}).encode()


def hook(form: str, **fields: Any) -> Hook:
    known = {"agent": "triage", "id_header": "webhook-id", **fields}
    return Hook("h", "t0", form, 0, "me", **known)


def proved(of: Hook, headers: dict[str, str], *secrets: str, body: bytes = BODY, at_s: int = NOW_S) -> bool:
    return is_proved(of, HookRequest(body, headers), secrets or [SECRET], at_s * 1000)


def test_a_request_of_standard_webhooks_is_proved_by_its_id_its_time_and_its_body() -> None:
    standard = hook("standard")
    headers = signed_headers(KEY, "msg_1", NOW_S * 1000, BODY)
    assert proved(standard, headers)
    several = {**headers, "webhook-signature": f"v1a,AAAA {headers['webhook-signature']}"}
    assert proved(standard, several), "a sender that changes its secret sends two"
    assert proved(standard, headers, "whsec_" + base64.b64encode(b"x" * 32).decode(), SECRET), "so do we"
    assert not proved(standard, headers, body=BODY + b" ")
    assert not proved(standard, {**headers, "webhook-id": "msg_2"})
    assert not proved(standard, {**headers, "webhook-timestamp": str(NOW_S + 1)})
    assert not proved(standard, headers, "whsec_" + base64.b64encode(b"x" * 32).decode())
    assert not proved(standard, headers, "no base64!")
    assert not proved(standard, {})


@pytest.mark.parametrize(("off_s", "is_close"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)])
def test_a_signature_with_a_time_is_refused_when_it_is_old(off_s: int, is_close: bool) -> None:
    headers = signed_headers(KEY, "msg_1", NOW_S * 1000, BODY)
    assert proved(hook("standard"), headers, at_s=NOW_S + off_s) == is_close
    digest = hmac.new(b"s3", f"{NOW_S}.".encode() + BODY, hashlib.sha256).hexdigest()
    stripe = {"stripe-signature": f"t={NOW_S},v1={digest}"}
    assert proved(hook("stripe"), stripe, "s3", at_s=NOW_S + off_s) == is_close


def test_the_example_in_the_documentation_of_github_is_proved() -> None:
    """Secret, body and signature are those of "Testing the webhook payload validation"."""
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    secret, body = "It's a Secret to Everybody", b"Hello, World!"
    assert proved(hook("github"), {"x-hub-signature-256": signature}, secret, body=body)
    assert not proved(hook("github"), {"x-hub-signature-256": signature.removeprefix("sha256=")}, secret, body=body)
    assert not proved(hook("github"), {"x-hub-signature-256": signature}, secret, body=b"Hello, World?")
    strong = hook("github", algorithm="sha512", header="x-signature")
    digest = hmac.new(secret.encode(), body, hashlib.sha512).hexdigest()
    assert proved(strong, {"x-signature": f"sha512={digest}"}, secret, body=body)


def test_a_request_of_stripe_is_proved_by_any_of_its_signatures() -> None:
    digest = hmac.new(b"whsec_x", f"{NOW_S}.".encode() + BODY, hashlib.sha256).hexdigest()
    given = f"t={NOW_S},v1={'0' * 64},v1={digest},v0={'1' * 64}"
    assert proved(hook("stripe"), {"stripe-signature": given}, "whsec_x")
    assert not proved(hook("stripe"), {"stripe-signature": f"t={NOW_S},v0={digest}"}, "whsec_x")
    assert not proved(hook("stripe"), {"stripe-signature": f"t={NOW_S},t={NOW_S},v1={digest}"}, "whsec_x")
    assert not proved(hook("stripe"), {"stripe-signature": f"v1={digest}"}, "whsec_x")


def test_a_token_is_the_secret_as_a_bearer_or_alone_in_a_header_of_its_own() -> None:
    assert proved(hook("token"), {"authorization": f"Bearer {SECRET}"})
    assert proved(hook("token", header="x-gitlab-token"), {"x-gitlab-token": SECRET})
    for wrong in ("", "Bearer", f"Bearer {SECRET}x", f"Basic {SECRET}", "Bearer é"):
        assert not proved(hook("token"), {"authorization": wrong})


def test_without_a_secret_nothing_is_proved() -> None:
    assert not is_proved(hook("token"), HookRequest(BODY, {"authorization": "Bearer "}), [], 0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": "a/b"}, "cannot name"),
        ({"form": "md5"}, "form of proof"),
        ({"agent": None}, "one of the two"),
        ({"signal": "paid"}, "one of the two"),
        ({"agent": None, "signal": "paid", "prompt": "x"}, "has no inputs"),
        ({"id_header": None}, "known when it comes again"),
        ({"id_header": None, "id_field": "a b"}, "no path"),
        ({"header": "a b"}, "no name of a header"),
        ({"algorithm": "sha1"}, "no algorithm"),
        ({"algorithm": "sha512"}, "only github"),
        ({"per_minute": 0}, "a minute"),
        ({"agent": "\ud800"}, "surrogate"),
        ({"prompt": "\ud800"}, "surrogate"),
        ({"inputs": {"\ud800": "x"}}, "surrogate"),
        ({"prompt": "{{env.HOME}}"}, "not in a request"),
        ({"prompt": "{{body.x"}, "no placeholder"),
        ({"inputs": {"a": "x" * 10_001}}, "characters at most"),
    ],
)
def test_a_hook_that_makes_no_sense_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        checked_hook(replace(hook("standard"), **fields))


def test_the_body_and_the_headers_become_the_inputs_of_a_run_and_credentials_do_not() -> None:
    request = HookRequest(BODY, {"x-github-event": "issues", "authorization": "Bearer x", "x-hub-signature-256": "s"})
    body = body_of(request)
    mapped = hook(
        "github", prompt="{{headers.x_github_event}}: {{body.issue.title}}", inputs={"n": "{{body.issue.number}}"}
    )
    assert run_inputs(mapped, request, body) == ("issues: It is red", {"n": 7})
    assert run_inputs(hook("github"), request, body) == (json.dumps(body, separators=(",", ":")), {})
    for hidden in ("{{headers.authorization}}", "{{headers.x_hub_signature_256}}", "{{body.none}}"):
        with pytest.raises(UsageError, match="does not fit"):
            run_inputs(replace(mapped, prompt=hidden), request, body)
    sends = hook("github", agent=None, signal="issue.{{body.issue.number}}")
    assert signal_name(sends, request, body) == "issue.7"


def test_a_request_is_known_by_its_header_or_by_a_field_of_its_body() -> None:
    request = HookRequest(BODY, {"webhook-id": "msg_1"})
    by_header, by_field = hook("standard"), hook("stripe", id_header=None, id_field="id")
    first = request_id(by_header, request, body_of(request))
    assert first == request_id(by_header, replace(request, body=b"{}"), {})
    assert first != request_id(replace(by_header, token="t1"), request, {}), "of another hook that had the name"
    assert request_id(by_field, request, body_of(request)) != first
    assert len(first) <= 200
    for of, body in ((by_field, {}), (by_field, {"id": ""}), (by_field, {"id": True}), (by_field, {"id": "x" * 1001})):
        with pytest.raises(UsageError, match="id"):
            request_id(of, request, body)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": NaN}', b'{"\\ud800": 1}'])
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError, match="JSON"):
        body_of(HookRequest(body, {}))
