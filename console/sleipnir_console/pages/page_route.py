"""Routes of pages: guarded as those of the HTTP API, with forms instead of JSON.

Rules. A form of a logged-in user has the login's `csrf` as a field. A page that is asked for as JSON is answered by the
operation of the API that has the same content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sleipnir_console.openai_errors import PATHS
from sleipnir_console.origins import SAFE_METHODS
from sleipnir_console.pages.uploaded_form import MULTIPART, UploadedForm
from sleipnir_console.permissions import GuardedRoute, permission_of
from sleipnir_console.problems import HttpProblem

FORM: Final = "application/x-www-form-urlencoded"
MOST_FIELDS: Final = 1_000
_API_PATH: Final = "__sleipnir_api_path__"


class PageRoute(GuardedRoute):
    """A route of a page, or of a form of one."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **{**options, "include_in_schema": False, "response_model": None})

    def get_route_handler(self) -> Callable[[Request], Any]:
        guarded, api_path = super().get_route_handler(), getattr(self.endpoint, _API_PATH, None)

        async def answered(request: Request) -> Response:
            if request.method not in SAFE_METHODS:
                request.state.form = await self.read_form(request)
                request.state.csrf = request.state.form.get("csrf", "")
            elif api_path is not None and _wants_json(request):
                query = f"{'&' if '?' in api_path else '?'}{request.url.query}" if request.url.query else ""
                return RedirectResponse(f"/api/v1{api_path.format(**request.path_params)}{query}", 307)
            if request.method in SAFE_METHODS and permission_of(self.endpoint) != "public":
                request.state.holds = await request.app.state.client.holds()
            response: Response = await guarded(request)
            return response

        return answered

    async def read_form(self, request: Request) -> Mapping[str, str]:
        """The fields of the form that was sent. Raises HttpProblem for a body that is none."""
        return await _form_of(request)


class UploadRoute(PageRoute):
    """A route of a form with a file, which is not read before who sends it is known to be allowed to."""

    async def read_form(self, request: Request) -> Mapping[str, str]:
        """The fields that come before the file."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != MULTIPART:
            return await super().read_form(request)
        request.state.upload = upload = UploadedForm(request)
        return await upload.read_fields()


def upload_of(request: Request) -> UploadedForm | None:
    """The form with its file; None: it was sent without one."""
    found: UploadedForm | None = getattr(request.state, "upload", None)
    return found


def same_as(api_path: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the path of the API, below /api/v1, that answers for a page which is asked for as JSON."""

    def declare(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        setattr(endpoint, _API_PATH, api_path)
        return endpoint

    return declare


def form_of(request: Request) -> Mapping[str, str]:
    """The fields of the form that was sent; of those with one name the last."""
    found: Mapping[str, str] = request.state.form
    return found


def be_linked(request: Request, path: str) -> None:
    """Let a request be that of a signed link, whose page has this path."""
    request.state.link = path


def link_of(request: Request) -> str | None:
    """The path of the page of a signed link; None: the request is that of a caller."""
    return getattr(request.state, "link", None)


def next_page(path: str) -> RedirectResponse:
    """After a form: the browser asks for the page, so that loading it again repeats nothing."""
    return RedirectResponse(path, 303)


def is_of_page(request: Request) -> bool:
    """Whether errors of the request are for a person."""
    return not request.url.path.startswith(("/api/", "/a2a/", "/hooks/", "/mcp", PATHS))


def _wants_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


async def _form_of(request: Request) -> dict[str, str]:
    body = await request.body()
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and media_type != FORM:
        raise HttpProblem("unsupported-media-type", f"a form is sent as {FORM}")
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise HttpProblem("bad-request", f"a form has at most {MOST_FIELDS:,} fields") from None
