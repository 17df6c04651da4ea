"""A report as its reader sees it: texts, tables and attributes."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Texts, tables and attributes of a page; refuses tags that do not match."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.html, self.tags, self.attributes = html, [], []
        self.text, self.sections, self.tables, self.row = "", {}, {}, None
        self.open, self.section, self.style = [], "head", False
        self.facts, self.term, self.shares = {}, None, {}
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.attributes.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = attributes.get("id", f"extra {len(self.sections)}")
            self.sections[self.section] = ""
            self.tables[self.section] = []
        if tag == "table":
            self.tables[self.section].append([])
        if tag == "tr":
            self.tables[self.section][-1].append([])
        if tag in ("td", "th"):
            self.tables[self.section][-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if self.section in self.sections:
            self.sections[self.section] += data
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[self.section][-1][-1][-1] += data
        if self.open and self.open[-1] == "dt":
            self.term = data
        if self.open and self.open[-1] == "dd":
            self.facts[self.term] = data
        if self.open[-2:] == ["li", "span"] and data.strip():
            self.shares.setdefault(self.section, []).append(data)

    def rows(self, section, table=0):
        """Rows of a table by their first cell."""
        return {
            row[0]: [cell.replace("\u00a0", " ") for cell in row[1:]] for row in self.tables[section][table]
        }


def without_time(html):
    return re.sub(r"<time[^>]*>[^<]*</time>", "", html)


def digits(value, count):
    return f"{value:.{count}g}"
