"use strict";
// The page is complete without this script, which adds filters, sorting and details.
// `state` says what is visible. The address holds the values of `state` that differ from `defaults`.

const data = JSON.parse(document.getElementById("data").textContent);
const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const unique = (values) => [...new Set(values)];
const lines = new Map(data.lines.flatMap((line) => [line.id, ...line.also].map((id) => [id, line])));
const valuesOf = (name) => unique(data.lines.map((line) => line[name]).filter((value) => value !== null));
const several = { match: valuesOf("match").length > 1, backbone: valuesOf("backbone").length > 1 };

/* ---- Elements ---- */

const SVG = new Set(["svg", "g", "path", "line", "rect", "text"]);

function make(tag, attributes = {}, ...children) {
  const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function select(label, options, value, change) {
  const items = Object.entries(options).map(([key, text]) => make("option", { value: key, selected: key === value }, text));
  return make("label", {}, `${label} `, make("select", { onchange: (event) => change(event.target.value) }, ...items));
}

function grid(heads, rows, name = "") {
  const words = (index) => rows.length > 0 && rows.every((row) => parse(String(row[index])) === null || typeof parse(String(row[index])) === "string");
  const style = heads.map((_, index) => (words(index) ? "" : "n"));
  const cells = (row, tag) => row.map((cell, index) => make(tag, { class: style[index], scope: tag === "th" ? "col" : null }, cell));
  const table = make("table", {}, make("thead", {}, make("tr", {}, cells(heads, "th"))), make("tbody", {}, rows.map((row) => make("tr", {}, cells(row, "td")))));
  return make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": name || heads[0] }, table);
}

const facts = (pairs) => make("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
const fixed = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const percent = (share) => (share === null || share === undefined ? "–" : (100 * share).toFixed(2));
const nameOf = (line) => line.title + (line.target === null ? "" : `, ${line.target} %`);
// Deviation between seeds; for a row with one seed that of a published suite with several.
function spread(numbers) {
  if (numbers.retain_std != null) return ` ± ${fixed(numbers.retain_std)} between seeds`;
  return numbers.seed_std == null ? "" : ` (± ${fixed(numbers.seed_std)} between the seeds of ${data.seeds_of})`;
}

const labelOf = (line) => [nameOf(line), several.backbone ? line.backbone : null, several.match ? `match ${line.match}` : null].filter(Boolean).join(", ");

function hint(text, event) {
  const box = one("#hint");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const at = event.clientX ? { x: event.clientX, y: event.clientY } : event.target.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(at.x + 14, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${Math.max(4, Math.min(at.y + 14, innerHeight - box.offsetHeight - 8))}px`;
}

/* ---- State and address ---- */

const defaults = {
  match: valuesOf("match")[0] || "", backbone: "", hide: "", find: "", columns: "skip", sort: "", x: "skip", y: "retain",
  row: "", task: "", item: "", prompt: "", theme: "",
};
const state = {};

function read() {
  Object.assign(state, defaults);
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in defaults) state[name] = value;
  const choices = { match: valuesOf("match"), backbone: ["", ...valuesOf("backbone")], x: Object.keys(data.axes), y: Object.keys(data.measures), theme: ["", "dark", "light"] };
  for (const [name, values] of Object.entries(choices)) if (!values.includes(state[name])) state[name] = defaults[name];
}

function go(changes, remember = false) {
  Object.assign(state, changes);
  const address = new URLSearchParams(Object.entries(state).filter(([name, value]) => value !== defaults[name]));
  history[remember ? "pushState" : "replaceState"](null, "", `#${address}`);
  draw();
}

const listOf = (name) => state[name].split(",").filter(Boolean);
const toggleIn = (name, value, on) => go({ [name]: [...listOf(name).filter((other) => other !== value), ...(on ? [value] : [])].join(",") });

// A part of the page is drawn again when one of its `keys` in `state` has changed.
const parts = [];
const part = (keys, show) => parts.push({ keys, show, last: null });

function draw() {
  for (const one of parts) {
    const now = one.keys.map((key) => state[key]).join("\n");
    if (now !== one.last) {
      one.last = now;
      one.show();
    }
  }
}

/* ---- Visible rows and columns ---- */

const ROWS = ["match", "backbone", "hide", "find"];

function passes(line) {
  const hidden = listOf("hide");
  return (!state.backbone || line.backbone === state.backbone)
    && !hidden.includes(line.kind) && !hidden.includes(String(line.target)) && !(line.variant && hidden.includes("variants"))
    && `${line.title} ${line.row} ${line.note}`.toLowerCase().includes(state.find.toLowerCase());
}

const visibleLines = () => data.lines.filter((line) => line.match === state.match && passes(line));

function makeFilters() {
  const box = (name, value, text, on) => make("label", {}, make("input", { type: "checkbox", "data-list": name, value, onchange: (event) => toggleIn(name, value, event.target.checked === on), "data-on": on }), ` ${text}`);
  const group = (name, boxes) => (boxes.length > 1 ? make("div", { role: "group", "aria-label": name }, make("span", { class: "small" }, name), boxes) : null);
  const radio = (match) => make("label", {}, make("input", { type: "radio", name: "match", value: match, onchange: () => go({ match }) }), ` ${match}`);
  const groups = unique(all(".table [data-group]").map((cell) => cell.dataset.group));
  const backbones = { "": "all", ...Object.fromEntries(valuesOf("backbone").map((name) => [name, name])) };
  const search = make("input", { type: "search", id: "find", placeholder: "name or note", oninput: (event) => go({ find: event.target.value }) });
  one("#filters").append(...[
    group("Match", valuesOf("match").map(radio)),
    several.backbone ? select("Backbone", backbones, state.backbone, (backbone) => go({ backbone })) : null,
    group("Kind", valuesOf("kind").map((kind) => box("hide", kind, kind, false))),
    group("Budget", valuesOf("target").map((target) => box("hide", String(target), `${target} %`, false))),
    data.lines.some((line) => line.variant) ? box("hide", "variants", "variants", false) : null,
    make("label", {}, "Search ", search),
    group("Columns", groups.map((name) => box("columns", name, name, true))),
    make("span", { id: "count", role: "status", class: "small" }),
  ].filter(Boolean));
  one("#filters").addEventListener("submit", (event) => event.preventDefault());
}

part([...ROWS, "columns"], () => {
  for (const input of all("#filters input[data-list]")) input.checked = listOf(input.dataset.list).includes(input.value) === ("on" in input.dataset);
  for (const input of all("#filters input[type=radio]")) input.checked = input.value === state.match;
  if (one("#find").value !== state.find) one("#find").value = state.find;
  const groups = unique(all(".table [data-group]").map((cell) => cell.dataset.group)).filter((name) => !listOf("columns").includes(name));
  one("#hidden-groups").textContent = groups.map((name) => `[data-group="${CSS.escape(name)}"] { display: none; }`).join("\n");
});

part(ROWS, () => {
  for (const section of all("section[data-match]")) section.hidden = section.dataset.match !== state.match;
  for (const row of all("tr[data-line]")) {
    const line = lines.get(row.dataset.line) || lines.get(row.dataset.line + state.match);
    row.hidden = Boolean(line) && !passes(line);
  }
  const of = data.lines.filter((line) => line.match === state.match).length;
  one("#count").textContent = `${visibleLines().length} of ${of} rows`;
});

/* ---- Tables: sort, open, copy ---- */

// A number, lower-case words, or null where a cell is empty.
function parse(text) {
  const bare = text.replaceAll(",", "").replace(/^[±≤\s]+/, "").trim();
  if (bare === "" || bare === "–") return null;
  const number = /^[-+]?\d+(\.\d+)?/.exec(bare);
  return number ? Number(number[0]) : bare.toLowerCase();
}

const collator = new Intl.Collator();

function compare(a, b) {
  if (typeof a === typeof b) return typeof a === "string" ? collator.compare(a, b) : a - b;
  return typeof a === "number" ? -1 : 1;
}

function sortTable(section, column, down) {
  const body = one("tbody", section);
  body.original ||= [...body.rows];
  const heads = all("thead th", section);
  const index = heads.findIndex((head) => head.textContent === column);
  heads.forEach((head, place) => head.setAttribute("aria-sort", place === index ? (down ? "descending" : "ascending") : "none"));
  if (index < 0) return reorder(body, body.original);
  const pairs = body.original.map((row) => [parse(row.cells[index].textContent), row]);
  const full = pairs.filter(([key]) => key !== null).sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
  reorder(body, [...full, ...pairs.filter(([key]) => key === null)].map(([, row]) => row));
}

// Rows that are laid out before the next paint, and in each later piece.
const FIRST = 100, PIECE = 300;

// The body is taken out of the document first: there, moving a row costs no layout. A long table
// shows its top at once and the rest in pieces, because thousands of rows take seconds.
function reorder(body, rows) {
  const table = body.parentNode;
  body.remove();
  body.append(...rows);
  rows.filter((row) => !row.hidden).forEach((row, place) => row.classList.toggle("later", place >= FIRST));
  table.append(body);
  table.closest(".wide").scrollTop = 0;
  requestAnimationFrame(() => setTimeout(() => follow(body)));
}

function follow(body) {
  const later = all(".later", body);
  for (const row of later.slice(0, PIECE)) row.classList.remove("later");
  if (later.length > PIECE) setTimeout(() => follow(body));
}

function sortBy(name, column) {
  const [table, before, way] = state.sort.split("|");
  const same = table === name && before === column;
  const first = ["Row", "Note", "Word"].includes(column) ? "up" : "down";
  const next = !same ? first : way === first ? (first === "down" ? "up" : "down") : null;
  go({ sort: next ? `${name}|${column}|${next}` : "" });
}

part(["sort"], () => {
  const [name, column, way] = state.sort.split("|");
  for (const section of all("section.table")) {
    if (section.dataset.name === name) sortTable(section, column, way === "down");
    else if (one("tbody", section)?.original) sortTable(section, null, false);
  }
});

function makeSortable(section) {
  for (const head of all("thead th", section)) {
    const text = head.textContent;
    head.replaceChildren(make("button", { type: "button", title: "sort", onclick: () => sortBy(section.dataset.name, text) }, text));
  }
}

function visible(section) {
  for (const row of all(".later", section)) row.classList.remove("later");
  const rows = all("tr", section).filter((row) => !row.hidden);
  return rows.map((row) => [...row.cells].filter((cell) => cell.getClientRects().length).map((cell) => cell.textContent.trim().replace(/\s+/g, " ")));
}

const escapeLatex = (text) => [...text].map((sign) => data.latex[sign] ?? sign).join("").replace(/^([-+])(?=\d)/, "$$$1$$");
const FORMS = {
  CSV: (rows) => rows.map((row) => row.map((text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)).join(",")).join("\n"),
  Markdown: ([head, ...rows]) => [head, head.map(() => "---"), ...rows].map((row) => `| ${row.map((text) => text.replace(/[\\|*_<>`]/g, "\\$&")).join(" | ")} |`).join("\n"),
  LaTeX: ([head, ...rows]) => {
    const line = (row) => `${row.map(escapeLatex).join(" & ")} \\\\`;
    return [`\\begin{tabular}{${"l".repeat(head.length)}}`, "\\toprule", line(head), "\\midrule", ...rows.map(line), "\\bottomrule", "\\end{tabular}"].join("\n");
  },
};

function copier(texts) {
  const status = make("span", { role: "status" });
  const buttons = Object.entries(texts).map(([name, text]) => make("button", {
    type: "button",
    onclick: async () => {
      await navigator.clipboard.writeText(text());
      status.textContent = "copied";
      setTimeout(() => (status.textContent = ""), 1500);
    },
  }, name));
  return make("div", { class: "copy" }, "Copy", buttons, status);
}

function enhance(section) {
  makeSortable(section);
  one(".wide", section).before(copier(Object.fromEntries(Object.entries(FORMS).map(([name, form]) => [name, () => `${form(visible(section))}\n`]))));
  for (const row of section.id.startsWith("lead-") ? all("tr[data-line]", section) : []) {
    const cell = row.cells[0];
    cell.replaceChildren(make("button", { type: "button", class: "open", onclick: () => go({ row: row.dataset.line }, true) }, cell.textContent));
  }
}
