"""The page itself: its files, which hold no data of the cluster, and the policy for
what they may load.
"""

from importlib import resources

from fastapi import APIRouter, HTTPException, Response

# Everybody may load the files: they are the same for all clusters. What they show comes
# from the API, for which they need the token.
ROOT_PATH = "/"
FILES_PATH = "/page/"

STATIC = resources.files("coadapt.service.page") / "static"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# Scripts and styles come from this origin only, and none is inline. No text becomes
# markup: Trusted Types without a policy make each attempt raise.
HEADERS = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}

router = APIRouter(redirect_slashes=False, include_in_schema=False)


def is_open(path: str) -> bool:
    """Return whether a path is a file of the page, for which no token is needed."""
    return path == ROOT_PATH or path.startswith(FILES_PATH)


@router.get(ROOT_PATH)
def page() -> Response:
    """The page."""
    return _file("index.html")


@router.get(FILES_PATH + "{name}")
def page_file(name: str) -> Response:
    """A file that the page loads."""
    return _file(name)


def _file(name: str) -> Response:
    # Only names of files that are there: none leads out of the folder.
    known = {entry.name for entry in STATIC.iterdir()}
    suffix = name[name.rfind(".") :]
    if name not in known or suffix not in MEDIA_TYPES:
        raise HTTPException(404, f"the page has no file {name!r}")
    return Response(
        (STATIC / name).read_bytes(), media_type=MEDIA_TYPES[suffix], headers=HEADERS
    )
