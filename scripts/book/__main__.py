"""Make the site of the documentation, and say where it is."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import contents

ROOT = Path(__file__).resolve().parents[2]


def indexed(text):
    """The text with links to a README led to index.md. mdBook makes index.html of both, but leaves the links."""
    return re.sub(r"(\]\((?!https?:)[^)]*?)README\.md", r"\1index.md", text)


def copy(file, folder):
    """Copy a file of the repository to its place in a folder."""
    to = folder / file.replace("README.md", "index.md")
    to.parent.mkdir(parents=True, exist_ok=True)
    if file.endswith(".md"):
        to.write_text(indexed((ROOT / file).read_text()))
    else:
        shutil.copyfile(ROOT / file, to)


def main():
    parser = argparse.ArgumentParser(prog="make-docs", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "target/site",
                        help="where to put it; what is there is replaced (default: target/site)")
    site = parser.parse_args().folder.resolve()
    book = site.with_name(f"{site.name}-pages")
    for folder in (book, site):
        shutil.rmtree(folder, ignore_errors=True)
    for file in contents.files(ROOT):
        copy(file, book / "src")
    (book / "src/SUMMARY.md").write_text(indexed(contents.summary(ROOT)))
    for file in ("book.toml", "book.css"):
        shutil.copyfile(Path(__file__).with_name(file), book / file)
    mdbook = Path(sys.executable).with_name("mdbook")
    subprocess.run([mdbook, "build", "--dest-dir", site, book], env=os.environ | {"RUST_LOG": "warn"}, check=True)
    shutil.rmtree(book)
    print(f"The site is {site}/index.html")


main()
