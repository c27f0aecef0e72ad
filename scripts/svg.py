"""Pictures as small files: their text is text, and numbers have the precision that can be seen."""

import re
from collections import Counter
from io import StringIO
from itertools import groupby
from string import ascii_letters
from types import SimpleNamespace
from xml.etree import ElementTree

from matplotlib import rc_context
from scour.scour import sanitizeOptions, scourString

# With a fixed salt equal pictures are equal files.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "swlimit"}
FONTS = "text{font-family:'DejaVu Sans',Verdana,sans-serif}"
OPTIONS = sanitizeOptions(SimpleNamespace(
    quiet=True, strip_xml_prolog=True, remove_metadata=True, strip_comments=True, strip_ids=True, shorten_ids=True,
    group_create=True, indent_type="none", newlines=False, digits=4, cdigits=4, enable_viewboxing=True))
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
LOOK = {"clip-path", "fill", "fill-opacity", "font-size", "opacity", "stroke", "stroke-dasharray", "stroke-linecap",
        "stroke-linejoin", "stroke-opacity", "stroke-width", "text-anchor"}
TICK = re.compile(r"m0 0([hv][-\d.]+)")  # the outline of a tick mark
ElementTree.register_namespace("", SVG.strip("{}"))


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
    return shared(re.sub(r"<!DOCTYPE.*?>\s*", "", scourString(text, OPTIONS)))


def shared(text):
    """The same picture: each look stands once, in the style sheet, and lines of one look are one path."""
    root = ElementTree.fromstring(re.sub(r"#(\w)\1(\w)\2(\w)\3\b", r"#\1\2\3", text))
    draw_ticks(root)
    for parent in list(root.iter()):
        merge_lines(parent)
    name_looks(root)
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>") + "\n"


def draw_ticks(root):
    """Draw each tick mark as a line of its own: it takes fewer bytes than the use of one."""
    paths = [path for path in root.iter(f"{SVG}path") if path.get("id")]
    ticks = {f"#{path.get('id')}": match[1] for path in paths if (match := TICK.fullmatch(path.get("d")))}
    for use in list(root.iter(f"{SVG}use")):
        use.set("href", use.attrib.pop(LINK))
        if line := ticks.get(use.get("href")):
            use.tag = f"{SVG}path"
            use.attrib = {name: value for name, value in use.items() if name in LOOK} | {
                "fill": "none", "d": f"m{use.get('x')} {use.get('y')}{line}"}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{SVG}defs" and len(child) and all(f"#{path.get('id')}" in ticks for path in child):
                parent.remove(child)


def merge_lines(parent):
    """Draw neighbours that are lines of one look as one path, below the texts among them."""
    children = []
    for _, run in groupby(list(parent), lambda child: is_line(child) or child.tag == f"{SVG}text"):
        run = list(run)
        lines = {}
        for line in filter(is_line, run):
            first = lines.setdefault(look(line), line)
            if first is not line:
                first.set("d", first.get("d") + line.get("d").replace("m", "M", 1))
        children += [*lines.values(), *(child for child in run if not is_line(child))]
    parent[:] = children


def is_line(element):
    return element.get("fill") == "none" and set(element.keys()) <= LOOK | {"d"}


def look(element):
    return ";".join(f"{name}:{value}" for name, value in sorted(element.items()) if name in LOOK)


def name_looks(root):
    """Say in the style sheet what elements that look alike look like."""
    found = Counter(filter(None, map(look, root.iter())))
    names = dict(zip((one for one, count in found.most_common() if count > 1), ascii_letters))
    for element in root.iter():
        if name := names.get(look(element)):
            element.attrib = {"class": name} | {key: value for key, value in element.items() if key not in LOOK}
    style = next(root.iter(f"{SVG}style"))
    style.text += "".join(f".{name}{{{one}}}" for one, name in names.items())
