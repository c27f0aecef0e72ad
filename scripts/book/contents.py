"""The book's table of contents, as the pages themselves give it: a folder's README lists its pages in their order."""

import re

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)")
BEHIND = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
REPORTS = {"docs/understand": ["scripts/bench/RESULTS.md", "scripts/accuracy/ACCURACY.md"]}


def linked(root, page):
    """The files that a page links to, as places in the repository, in their order and each once."""
    found = dict.fromkeys((root / page).parent.joinpath(target).resolve() for target in LINK.findall(read(root, page)))
    return [str(file.relative_to(root)) for file in found if file.is_file()]


def read(root, page):
    return (root / page).read_text()


def title(root, page):
    return re.search(r"^# (.*)", read(root, page), re.MULTILINE)[1]


def summary(root):
    """The text of mdBook's SUMMARY.md."""
    def entry(page, depth=0):
        return f"{'  ' * depth}- [{title(root, page)}]({page})"

    def unnumbered(page):
        return f"[{title(root, page)}]({page})"

    lines = ["# Summary", "", unnumbered("README.md"), unnumbered("docs/README.md"), ""]
    for page in linked(root, "docs/README.md"):
        folder = page.rpartition("/")[0]
        lines.append(entry(page))
        if folder != "docs":
            own = [other for other in linked(root, page) if other.rpartition("/")[0] == folder]
            lines += [entry(other, 1) for other in [*own, *REPORTS.get(folder, [])]]
    return "\n".join([*lines, "", *map(unnumbered, BEHIND), ""])


def files(root):
    """The files that the book needs: its pages, and what they link to."""
    pages = re.findall(r"\]\((.*?)\)", summary(root))
    others = [file for page in pages for file in linked(root, page) if not file.endswith(".md")]
    shown = [file for page in pages for file in pictures(root, page)]
    return sorted({*pages, *others, *shown})


def pictures(root, page):
    """The pictures that a page shows by HTML."""
    targets = re.findall(r'(?:src|srcset)="(?!https?:)([^"]+)"', read(root, page))
    return [str((root / page).parent.joinpath(target).resolve().relative_to(root)) for target in targets]
