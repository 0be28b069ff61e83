"""Tables as Markdown, LaTeX (booktabs) and HTML.

pandas' Styler is not used. It writes no Markdown. Its LaTeX keeps ≈ and ≠, which pdflatex lacks,
and writes no minus. Its HTML gives every cell an id and has three times the bytes.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from markupsafe import Markup

from workflows.report.display import Cell, Table

LATEX = {
    "\\": r"$\backslash$", "&": r"\&", "%": r"\%", "$": r"$\$$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"$\sim$", "^": r"$\wedge$",
    "<": "$<$", ">": "$>$", "|": "$|$", "±": r"$\pm$", "≈": r"$\approx$",
    "≤": r"$\leq$", "≠": r"$\neq$", "–": "--",
}  # fmt: skip


def markdown(table: Table, cautions: Sequence[str] = ()) -> str:
    """A Markdown table, with its note and cautions below."""
    heads = [escape_markdown(name) for name in table.columns]
    rule = [":--" if name in table.words else "--:" for name in table.columns]
    lines = [heads, rule, *[[markdown_cell(cell) for cell in line] for line in table.lines]]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"
    return text + "".join(
        f"\n{escape_markdown(note)}\n" for note in (table.note, *cautions) if note
    )


def markdown_cell(cell: Cell) -> str:
    """Bold for the best, underlined for the second, ≈ where tied with the best."""
    text = escape_markdown(cell.text)
    if cell.mark.place:
        text = f"**{text}**" if cell.mark.place == 1 else f"<u>{text}</u>"
    return f"{text} ≈" if cell.mark.tied else text


def escape_markdown(text: str) -> str:
    """Plain text for Markdown."""
    for sign in "\\|*_<>`[]":
        text = text.replace(sign, f"\\{sign}")
    return text


def latex(table: Table, cautions: Sequence[str] = ()) -> str:
    """A tabular of the booktabs package, with its note and cautions below, in one box."""
    columns = "".join("l" if name in table.words else "r" for name in table.columns)
    body = [" & ".join(map(latex_cell, line)) + r" \\" for line in table.lines]
    head = " & ".join(map(escape_latex, table.columns)) + r" \\"
    lines = [
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule",
        r"\end{tabular}",
    ]  # fmt: skip
    if notes := [escape_latex(note) for note in (table.note, *cautions) if note]:
        lines = [
            r"\begin{tabular}{@{}l@{}}", *lines, r"\\[1ex]",
            r"\begin{minipage}{\linewidth}\footnotesize", "\n\n".join(notes), r"\end{minipage}",
            r"\end{tabular}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def latex_cell(cell: Cell) -> str:
    r"""``\textbf``, ``\underline`` and a raised sign where tied with the best."""
    text = escape_latex(cell.text)
    if cell.mark.place:
        text = rf"\{'textbf' if cell.mark.place == 1 else 'underline'}{{{text}}}"
    return rf"{text}$^{{\approx}}$" if cell.mark.tied else text


def escape_latex(text: str) -> str:
    """Plain text for LaTeX; a sign before a number becomes a minus."""
    escaped = "".join(LATEX.get(sign, sign) for sign in text)
    return (
        f"${escaped[0]}${escaped[1:]}" if escaped[:1] in "+-" and text[1:2].isdigit() else escaped
    )


def html_table(table: Table) -> Markup:
    """The table element; words to the left, numbers to the right; lines and groups by name."""
    styles = [_style(name, table) for name in table.columns]
    heads = "".join(
        f'<th scope="col"{style}>{html.escape(name)}</th>'
        for name, style in zip(table.columns, styles, strict=True)
    )
    names = [f' data-line="{html.escape(name)}"' for name in table.ids] or [""] * len(table.lines)
    lines = [
        f"<tr{name}>"
        + "".join(
            f"<td{style}>{html_cell(cell)}</td>" for cell, style in zip(line, styles, strict=True)
        )
        + "</tr>"
        for line, name in zip(table.lines, names, strict=True)
    ]
    body = "\n".join(lines)
    return Markup(f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>")


def _style(name: str, table: Table) -> str:
    """Attributes of the cells of a column."""
    if name in table.words:
        return ' class="note"' if name == "Note" else ""
    group = f' data-group="{table.groups[name]}"' if name in table.groups else ""
    return f' class="n"{group}'


def html_cell(cell: Cell) -> str:
    """As in Markdown."""
    text = html.escape(cell.text)
    if cell.mark.place:
        text = f"<b>{text}</b>" if cell.mark.place == 1 else f"<u>{text}</u>"
    return f"{text}&#8202;≈" if cell.mark.tied else text
