"""Parts of the pictures that commands write, as SVG."""

from html import escape


def text(
    x: float, y: float, words: str, *, weight: str = "normal", anchor: str = "start"
) -> str:
    """Return `words` at x, y."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )
