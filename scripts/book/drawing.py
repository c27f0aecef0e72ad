"""What the drawn pictures have in common: shapes, and a card in the colours of the reader's system, light or dark."""

from html import escape

STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px; fill: #59636e }
.card { fill: #ffffff } .axis { fill: none; stroke: #8c959f }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .card { fill: #0d1117 } .axis { stroke: #656c76 } }
"""


def rectangle(kind, x, y, width, height):
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def text(x, y, words, kind="", anchor="start"):
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def line(kind, points):
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.4g},{y:.4g}" for x, y in points)}"/>'


def picture(title, width, height, shapes, style):
    """The text of the file."""
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
                      f"<title>{title}</title>", f"<style>{STYLE}{style}</style>",
                      f'<rect class="card" width="{width}" height="{height}" rx="8"/>', *shapes, "</svg>", ""])
