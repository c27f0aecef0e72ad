"""Pictures as small files: their text is text, and numbers have the precision that can be seen."""

import re
from io import StringIO
from types import SimpleNamespace

from matplotlib import rc_context
from scour.scour import sanitizeOptions, scourString

# With a fixed salt equal pictures are equal files.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "swlimit"}
FONTS = "text{font-family:'DejaVu Sans',Verdana,sans-serif}"
OPTIONS = sanitizeOptions(SimpleNamespace(
    quiet=True, strip_xml_prolog=True, remove_metadata=True, strip_comments=True, strip_ids=True, shorten_ids=True,
    group_create=True, indent_type="none", newlines=False, digits=4, cdigits=4, enable_viewboxing=True))


def save(figure, path):
    """Write a figure of matplotlib as a compact SVG."""
    text = StringIO()
    with rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(compact(text.getvalue()))


def rounded(number):
    return f"{float(number[0]):.1f}".removesuffix(".0")


def compact(text):
    """A picture of matplotlib's without what nobody sees. Fonts are named once, for all texts."""
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text).replace("</style>", f"{FONTS}</style>", 1)
    text = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", text)
    text = re.sub(r'="[^"]*"', lambda attribute: re.sub(r"-?\d+\.\d{2,}", rounded, attribute[0]), text)
    return re.sub(r"<!DOCTYPE.*?>\s*", "", scourString(text, OPTIONS)).rstrip() + "\n"
