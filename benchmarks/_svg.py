"""Pictures of benchmarks, as SVG."""

from collections.abc import Sequence


def text(x: float, y: float, words: str, **style: str) -> str:
    """Return `words` at x, y; style: attributes, `_` for `-`."""
    given = "".join(
        f' {name.replace("_", "-")}="{value}"' for name, value in style.items()
    )
    return f'<text x="{x:.0f}" y="{y:.0f}"{given}>{words}</text>'


def picture(width: int, height: int, title: str, lines: Sequence[str]) -> str:
    """Return the whole picture; title: for those who cannot see it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'role="img"'
    )
    style = 'font-family="system-ui, sans-serif" font-size="13" fill="#222"'
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join(
        [f"{head} {style}>", f"<title>{title}</title>", ground, *lines, "</svg>\n"]
    )
