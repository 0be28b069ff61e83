"use strict";
// All that a reader must know stands in the page without this script; with it they can ask.
// What is shown follows from `state`, and the address holds what of it differs from `defaults`.

const data = JSON.parse(document.getElementById("data").textContent);
const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const unique = (values) => [...new Set(values)];
const lines = new Map(data.lines.flatMap((line) => [line.id, ...line.also].map((id) => [id, line])));
const known = (name) => unique(data.lines.map((line) => line[name]).filter((value) => value !== null));
const several = { match: known("match").length > 1, backbone: known("backbone").length > 1 };

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

function select(label, options, value, chosen) {
  const items = Object.entries(options).map(([key, text]) => make("option", { value: key, selected: key === value }, text));
  return make("label", {}, `${label} `, make("select", { onchange: (event) => chosen(event.target.value) }, ...items));
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
const named = (line) => line.title + (line.target === null ? "" : `, ${line.target} %`);
// Of a row that ran one seed, what a published suite of several found between them.
function spread(numbers) {
  if (numbers.retain_std != null) return ` ± ${fixed(numbers.retain_std)} between seeds`;
  return numbers.seed_std == null ? "" : ` (± ${fixed(numbers.seed_std)} between the seeds of ${data.seeds_of})`;
}

const placed = (line) => [named(line), several.backbone ? line.backbone : null, several.match ? `match ${line.match}` : null].filter(Boolean).join(", ");

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
  match: known("match")[0] || "", backbone: "", hide: "", find: "", columns: "skip", sort: "", x: "skip", y: "retain",
  row: "", task: "", item: "", prompt: "", theme: "",
};
const state = {};

function read() {
  Object.assign(state, defaults);
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in defaults) state[name] = value;
  const allowed = { match: known("match"), backbone: ["", ...known("backbone")], x: Object.keys(data.axes), y: Object.keys(data.measures), theme: ["", "dark", "light"] };
  for (const [name, values] of Object.entries(allowed)) if (!values.includes(state[name])) state[name] = defaults[name];
}

function go(changes, remember = false) {
  Object.assign(state, changes);
  const told = new URLSearchParams(Object.entries(state).filter(([name, value]) => value !== defaults[name]));
  history[remember ? "pushState" : "replaceState"](null, "", `#${told}`);
  draw();
}

const listed = (name) => state[name].split(",").filter(Boolean);
const toggled = (name, value, on) => go({ [name]: [...listed(name).filter((other) => other !== value), ...(on ? [value] : [])].join(",") });

// Each part is drawn again when something that it shows has changed.
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

/* ---- Rows and columns that are shown ---- */

const ROWS = ["match", "backbone", "hide", "find"];

function wanted(line) {
  const hidden = listed("hide");
  return (!state.backbone || line.backbone === state.backbone)
    && !hidden.includes(line.kind) && !hidden.includes(String(line.target)) && !(line.variant && hidden.includes("variants"))
    && `${line.title} ${line.row} ${line.note}`.toLowerCase().includes(state.find.toLowerCase());
}

const shown = () => data.lines.filter((line) => line.match === state.match && wanted(line));

function makeFilters() {
  const box = (name, value, text, on) => make("label", {}, make("input", { type: "checkbox", "data-list": name, value, onchange: (event) => toggled(name, value, event.target.checked === on), "data-on": on }), ` ${text}`);
  const group = (name, boxes) => (boxes.length > 1 ? make("div", { role: "group", "aria-label": name }, make("span", { class: "small" }, name), boxes) : null);
  const radio = (match) => make("label", {}, make("input", { type: "radio", name: "match", value: match, onchange: () => go({ match }) }), ` ${match}`);
  const groups = unique(all(".table [data-group]").map((cell) => cell.dataset.group));
  const backbones = { "": "all", ...Object.fromEntries(known("backbone").map((name) => [name, name])) };
  const search = make("input", { type: "search", id: "find", placeholder: "name or note", oninput: (event) => go({ find: event.target.value }) });
  one("#filters").append(...[
    group("Match", known("match").map(radio)),
    several.backbone ? select("Backbone", backbones, state.backbone, (backbone) => go({ backbone })) : null,
    group("Kind", known("kind").map((kind) => box("hide", kind, kind, false))),
    group("Budget", known("target").map((target) => box("hide", String(target), `${target} %`, false))),
    data.lines.some((line) => line.variant) ? box("hide", "variants", "variants", false) : null,
    make("label", {}, "Search ", search),
    group("Columns", groups.map((name) => box("columns", name, name, true))),
    make("span", { id: "count", role: "status", class: "small" }),
  ].filter(Boolean));
  one("#filters").addEventListener("submit", (event) => event.preventDefault());
}

part([...ROWS, "columns"], () => {
  for (const input of all("#filters input[data-list]")) input.checked = listed(input.dataset.list).includes(input.value) === ("on" in input.dataset);
  for (const input of all("#filters input[type=radio]")) input.checked = input.value === state.match;
  if (one("#find").value !== state.find) one("#find").value = state.find;
  const groups = unique(all(".table [data-group]").map((cell) => cell.dataset.group)).filter((name) => !listed("columns").includes(name));
  one("#hidden-groups").textContent = groups.map((name) => `[data-group="${CSS.escape(name)}"] { display: none; }`).join("\n");
});

part(ROWS, () => {
  for (const section of all("section[data-match]")) section.hidden = section.dataset.match !== state.match;
  for (const row of all("tr[data-line]")) {
    const line = lines.get(row.dataset.line) || lines.get(row.dataset.line + state.match);
    row.hidden = Boolean(line) && !wanted(line);
  }
  const of = data.lines.filter((line) => line.match === state.match).length;
  one("#count").textContent = `${shown().length} of ${of} rows`;
});

/* ---- Tables: sort, open, copy ---- */

// A number, lower-case words, or null where a cell is empty.
function parse(text) {
  const bare = text.replaceAll(",", "").replace(/^[±≤\s]+/, "").trim();
  if (bare === "" || bare === "–") return null;
  const found = /^[-+]?\d+(\.\d+)?/.exec(bare);
  return found ? Number(found[0]) : bare.toLowerCase();
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
  const keyed = body.original.map((row) => [parse(row.cells[index].textContent), row]);
  const full = keyed.filter(([key]) => key !== null).sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
  reorder(body, [...full, ...keyed.filter(([key]) => key === null)].map(([, row]) => row));
}

// Rows that are laid out before the next paint, and in each piece that follows.
const FIRST = 100, PIECE = 300;

// Outside the document, where a row that moves costs no style. Of a long table the top is shown at
// once and the rest in pieces: to lay out thousands of rows takes longer than a reader waits.
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
  const told = make("span", { role: "status" });
  const buttons = Object.entries(texts).map(([name, text]) => make("button", {
    type: "button",
    onclick: async () => {
      await navigator.clipboard.writeText(text());
      told.textContent = "copied";
      setTimeout(() => (told.textContent = ""), 1500);
    },
  }, name));
  return make("div", { class: "copy" }, "Copy", buttons, told);
}

function enhance(section) {
  makeSortable(section);
  one(".wide", section).before(copier(Object.fromEntries(Object.entries(FORMS).map(([name, form]) => [name, () => `${form(visible(section))}\n`]))));
  for (const row of section.id.startsWith("lead-") ? all("tr[data-line]", section) : []) {
    const cell = row.cells[0];
    cell.replaceChildren(make("button", { type: "button", class: "open", onclick: () => go({ row: row.dataset.line }, true) }, cell.textContent));
  }
}

/* ---- The figure ---- */

const FEW = 40; // marks that can all be named
const SHAPES = { reference: "M-4.5,-4.5h9v9h-9z", static: "M0,-5a5,5 0 1,0 .01,0z", dynamic: "M0,-6l5.6,10h-11.2z" };

function ticks(low, high, most) {
  const raw = (high - low) / most;
  const step = [1, 2, 5, 10].map((factor) => factor * 10 ** Math.floor(Math.log10(raw))).find((size) => size >= raw);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high; n += 1) found.push(Number((n * step).toPrecision(10)));
  return found;
}

function scale(values, from, to) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const pad = (high - low || 1) * 0.06;
  const at = (value) => from + ((value - low + pad) / (high - low + 2 * pad)) * (to - from);
  return Object.assign(at, { ticks: ticks(low - pad, high + pad, Math.max(3, Math.abs(to - from) / 80)) });
}

const pen = document.createElement("canvas").getContext("2d");
pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;

// Beside its mark, on the first side where nothing stands yet; of few marks also farther off, with a
// line to the mark; else the name is left to the pointer.
function placeLabel(taken, text, x, y, [width, height], far) {
  const long = pen.measureText(text).width;
  const beside = [[x + 8, y + 4], [x - 8 - long, y + 4], [x - long / 2, y - 9], [x - long / 2, y + 18]];
  const sides = (down) => [[x + 22, y + 4 + down], [x - 22 - long, y + 4 + down]];
  const away = Array.from({ length: far }, (_, n) => [7 * (n + 1), -7 * (n + 1)]).flat().flatMap(sides);
  for (const [left, base] of [...beside, ...away]) {
    const box = [left, base - 11, left + long, base + 3];
    const free = left > 46 && box[1] > 0 && box[2] < width && box[3] < height && taken.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
    if (!free) continue;
    taken.push(box);
    const name = make("text", { class: "name", x: left, y: base }, text);
    return beside.some(([at, on]) => at === left && on === base) ? [name] : [make("line", { class: "leader", x1: x, y1: y, x2: left > x ? left - 2 : left + long + 2, y2: base - 4 }), name];
  }
  return [];
}

function describe(line) {
  const n = line.numbers, held = `Retain ${fixed(n.retain)}${spread(n)}, 95 %: ${fixed(n.retain_low, 1)} to ${fixed(n.retain_high, 1)}`;
  const measure = state.y === "retain" ? null : `${data.measures[state.y]} ${fixed(n[state.y])}`;
  return [placed(line), measure, held, ...Object.entries(data.axes).map(([name, text]) => `${text}: ${fixed(n[name])}`), line.note].filter(Boolean).join("\n");
}

function drawFigure() {
  const box = one("#scatter");
  const width = Math.max(280, box.clientWidth), height = Math.round(Math.max(300, Math.min(460, width * 0.66)));
  const points = shown().filter((line) => line.numbers[state.x] != null && line.numbers[state.y] != null);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${data.measures[state.y]} over ${data.axes[state.x]}` });
  one("svg", box)?.remove();
  one(".tools", box).after(svg);
  if (!points.length) return svg.append(make("text", { x: 20, y: 40 }, "No row has both numbers."));
  const ends = (line) => (state.y === "retain" ? [line.numbers.retain_low, line.numbers.retain_high] : [line.numbers[state.y]]);
  // A reference skips nothing: a level, so that the axis is that of the rows that do.
  const levels = state.x.startsWith("skip") ? points.filter((line) => line.kind === "reference" && line.target === null) : [];
  const rest = points.filter((line) => !levels.includes(line));
  const x = scale((rest.length ? rest : points).map((line) => line.numbers[state.x]), 46, width - 14);
  const y = scale(points.flatMap(ends), height - 42, 10);
  for (const tick of x.ticks) svg.append(make("text", { class: "soft", x: x(tick), y: height - 24, "text-anchor": "middle" }, String(tick)));
  for (const tick of y.ticks) svg.append(make("line", { class: "grid", x1: 46, x2: width, y1: y(tick), y2: y(tick) }), make("text", { class: "soft", x: 40, y: y(tick) + 4, "text-anchor": "end" }, String(tick)));
  svg.append(make("path", { class: "axis", d: `M46,10V${height - 42}H${width}` }), make("text", { x: width / 2, y: height - 6, "text-anchor": "middle" }, data.axes[state.x]));
  for (const row of unique(points.map((line) => `${line.backbone}/${line.row}`))) {
    const own = points.filter((line) => `${line.backbone}/${line.row}` === row).sort((a, b) => a.target - b.target);
    if (own.length > 1) svg.append(make("path", { class: `path ${own[0].kind}`, d: `M${own.map((line) => `${x(line.numbers[state.x])},${y(line.numbers[state.y])}`).join("L")}` }));
  }
  const at = (line) => [levels.includes(line) && rest.length ? 54 : x(line.numbers[state.x]), y(line.numbers[state.y])];
  if (rest.length) for (const [, top] of levels.map(at)) svg.append(make("line", { class: "level", x1: 46, x2: width, y1: top, y2: top }));
  const ordered = [...points].sort((a, b) => b.numbers[state.y] - a.numbers[state.y]);
  const taken = points.map((line) => [at(line)[0] - 6, at(line)[1] - 6, at(line)[0] + 6, at(line)[1] + 6]);
  ordered.forEach((line, place) => {
    const [left, top] = at(line);
    const bar = state.y === "retain" ? make("line", { x1: 0, x2: 0, y1: y(line.numbers.retain_low) - top, y2: y(line.numbers.retain_high) - top }) : null;
    const open = () => go({ row: line.id }, true);
    svg.append(make("g", {
      class: `mark ${line.kind}`, transform: `translate(${left},${top})`, tabindex: place ? -1 : 0, role: "button", "aria-label": describe(line).replaceAll("\n", "; "),
      onclick: open, onkeydown: (event) => (event.key === "Enter" || event.key === " " ? (event.preventDefault(), open()) : step(event)),
      onpointerenter: (event) => hint(describe(line), event), onpointerleave: () => hint(), onfocus: (event) => hint(describe(line), event), onblur: () => hint(),
    }, bar, make("path", { d: SHAPES[line.kind] })));
    svg.append(...placeLabel(taken, line.title, left, top, [width, height - 42], points.length > FEW ? 0 : 12));
  });
}

// Arrow keys walk over the marks, from the highest down.
function step(event) {
  const way = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const marks = all(".mark", event.currentTarget.parentNode);
  const next = way && marks[marks.indexOf(event.currentTarget) + way];
  if (!way) return;
  event.preventDefault();
  next?.focus();
}

part([...ROWS, "x", "y"], drawFigure);

/* ---- A row opened ---- */

function chart(title, values, form) {
  const width = 260, height = 80, finite = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...finite, form === "bars" ? 0 : Infinity), Math.max(...finite)];
  const y = (value) => height - 4 - ((value - low) / (high - low || 1)) * (height - 12);
  const wide = width / values.length;
  const shape = form === "bars"
    ? make("path", { class: "bar", d: values.map((value, n) => `M${n * wide + 1},${y(low)}V${y(value ?? low)}h${Math.max(1, wide - 2)}V${y(low)}z`).join("") })
    : make("path", { class: "curve", d: `M${values.map((value, n) => `${(n * (width - 2)) / (values.length - 1) + 1},${y(value ?? low)}`).join("L")}` });
  const told = `${title}: ${form === "bars" ? "" : `${values[0]} to ${values.at(-1)}, `}lowest ${Math.min(...finite)}, highest ${high}`;
  return make("figure", {}, make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told }, make("path", { class: "grid", d: `M0,${height - 4}H${width}` }), shape), make("figcaption", {}, told));
}

function decided(decision) {
  if (decision.curves) {
    const [along, ...keys] = Object.keys(decision.curves);
    const points = decision.curves[along];
    const told = `${decision.name}: ${points.length} of ${decision.of} entries, ${along} ${points[0]} to ${points.at(-1)}`;
    return [make("p", { class: "small" }, told), make("div", { class: "charts" }, keys.map((key) => chart(key, decision.curves[key])))];
  }
  if (decision.bars) return make("div", { class: "charts" }, chart(decision.name, decision.bars, "bars"));
  return facts([[decision.name, decision.text]]);
}

// Share of the scored tokens that ran each layer, by kind of unit; what is not routed ran for all.
function byLayer(run) {
  const kinds = unique(run.units.map(([, kind]) => kind));
  const whole = Array.from({ length: run.layers.dense }, (_, layer) => (run.layers.removed.includes(layer) ? 0 : 100));
  const shares = (kind) => whole.map((value, layer) => {
    const unit = run.units.find((found) => found[0] === layer && found[1] === kind);
    return unit ? Number((100 * unit[3]).toFixed(2)) : value;
  });
  return make("div", { class: "charts" }, kinds.length ? kinds.map((kind) => chart(`${kind} ran, % of tokens, layer 0 to ${whole.length - 1}`, shares(kind), "bars")) : chart(`layer kept, 0 to ${whole.length - 1}`, whole, "bars"));
}

function item(line, task, number, side, answer) {
  const asked = data.items[line.backbone][task][number];
  const name = `${task}:${number}`;
  const theirs = asked.scores ?? asked.text;
  const scores = (choice) => [choice === asked.target ? "✓" : "", asked.choices[choice], fixed(theirs[choice]), fixed(answer[choice])];
  const body = asked.choices
    ? [make("p", {}, asked.prompt), grid(["Right", "Choice", "Reference", line.title], asked.choices.map((_, choice) => scores(choice)), `Choices of item ${number}`)]
    : [make("p", {}, asked.prompt), facts([["wanted", String(asked.target)], ["reference wrote", String(theirs)], [`${line.title} wrote`, String(answer)]])];
  const toggle = (event) => (event.target.open ? state.item !== name && go({ item: name }) : state.item === name && go({ item: "" }));
  return make("details", { class: "item", open: state.item === name, ontoggle: toggle }, make("summary", {}, `${side} item ${number}: …${asked.prompt.slice(-70)}`), body);
}

function itemsOf(line, run) {
  const tasks = Object.keys(run.items);
  if (!tasks.length) return null;
  const task = tasks.includes(state.task) ? state.task : tasks[0];
  const options = Object.fromEntries(tasks.map((name) => [name, `${name}: won ${run.items[name].won.number}, lost ${run.items[name].lost.number}`]));
  const sides = Object.entries(run.items[task]).map(([side, { number, items }]) => {
    const kept = Object.entries(items);
    const told = kept.length < number ? `${side} ${number}, ${kept.length ? `the first ${kept.length}` : "no texts kept"}` : `${side} ${number}`;
    return [make("p", { class: "small" }, told), kept.map(([name, answer]) => item(line, task, name, side, answer))];
  });
  return [make("h3", {}, "Items won from and lost to the reference"), select("Task", options, task, (chosen) => go({ task: chosen, item: "" })), sides];
}

function behind(line, run) {
  const rates = Object.entries(run.rates).map(([kind, rate]) => [kind, rate.tokens.toLocaleString("en"), percent(rate.skip), percent(rate.skip_net), percent(rate.skip_std)]);
  const scores = run.scores.map((score) => [score.task, score.metric, score.k === null ? fixed(score.value, 4) : `${score.k}/${score.n}`, percent(score.skip.all), percent(score.skip.answer), run.seeds.map((seed) => fixed(seed[score.task], 4)).join(", ")]);
  const plain = (object) => Object.entries(object || {}).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
  return [
    make("h3", {}, "What ran, by kind of token, pooled over tokens"), grid(["Tokens", "Number", "Skip %", "Net %", "Spread %"], rates),
    make("h3", {}, "What ran, by layer"), byLayer(run),
    run.decisions.length ? [make("h3", {}, "What it decided"), run.decisions.map(decided)] : null,
    make("h3", {}, "Scores"), grid(["Task", "Metric", "Score", "Skip %", "Answers %", `Seeds ${run.seeds.map((seed) => seed.seed).join(", ")}`], scores),
    itemsOf(line, run),
    make("h3", {}, "Params"), facts([...plain(run.params), ...(run.start ? plain({ "starts from": run.start }) : [])]),
    make("h3", {}, "Fit"), facts(plain(run.fit)),
    make("h3", {}, "This number again"), Object.entries(run.commands).map(([name, text]) => [copier({ [name]: () => text }), make("pre", {}, text)]),
  ].flat(Infinity).filter(Boolean);
}

part(["row", "task", "item"], () => {
  const dialog = one("#row"), line = lines.get(state.row), run = line && data.runs[data.run_of[line.id]];
  if (!line) return dialog.close();
  const same = dialog.dataset.row === line.id;
  if (same && dialog.dataset.task === state.task && dialog.open) return;
  Object.assign(dialog.dataset, { row: line.id, task: state.task });
  const n = line.numbers, top = same ? dialog.scrollTop : 0;
  dialog.replaceChildren(
    make("div", { class: "head" }, make("h2", { id: "row-title" }, placed(line)), make("button", { type: "button", onclick: () => dialog.close() }, "Close")),
    facts([
      ["Retain", `${fixed(n.retain)}${spread(n)}, 95 %: ${fixed(n.retain_low, 1)} to ${fixed(n.retain_high, 1)}`],
      ...Object.entries(data.axes).map(([name, text]) => [text, fixed(n[name])]),
      ["seeds", String(n.seeds ?? "–")], ["note", line.note || null],
      ["record", run ? `${run.file}, seed ${run.seed}, commit ${String(run.commit).slice(0, 12)}` : null],
    ]),
    ...(run ? behind(line, run) : [make("p", { class: "small" }, "The record behind this row is not in this page.")]),
  );
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = top;
});

/* ---- Routing ---- */

function skipOf(run, ran, token) {
  return run.units.reduce((sum, unit, n) => sum + (ran[n][token] === "0" ? unit[2] : 0), 0) / run.parameters;
}

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function routed() {
  const backbone = state.backbone || Object.keys(data.prompts)[0];
  const rows = shown().map((line) => [line, data.runs[data.run_of[line.id]]]).filter(([line, run]) => line.backbone === backbone && run?.routes);
  return { prompts: data.prompts[backbone] || {}, rows };
}

function drawMap(line, run, prompt, ran) {
  const cell = 15, tall = Math.max(7, Math.min(12, 200 / run.layers.dense)), top = 62, left = 30, count = prompt.tokens.length;
  const skips = prompt.tokens.map((_, token) => skipOf(run, ran, token));
  const width = left + count * cell + 50, height = top + run.layers.dense * tall + 24;
  const box = (token, layer, from, share) => `M${left + token * cell},${(top + layer * tall + from * tall).toFixed(1)}h${cell - 1}v${(tall * share - 1).toFixed(1)}h${1 - cell}z`;
  const cells = { ran: "", gone: "" };
  run.units.forEach(([layer, kind], n) => {
    const own = run.units.filter((unit) => unit[0] === layer);
    const place = own.indexOf(run.units[n]);
    for (let token = 0; token < count; token += 1) cells[ran[n][token] === "1" ? "ran" : "gone"] += box(token, layer, place / own.length, 1 / own.length);
  });
  const free = Array.from({ length: run.layers.dense }, (_, layer) => layer).filter((layer) => !run.layers.removed.includes(layer) && !run.units.some((unit) => unit[0] === layer));
  const always = free.map((layer) => `M${left},${top + layer * tall}h${count * cell - 1}v${tall - 1}h${1 - count * cell}z`).join("");
  const words = prompt.tokens.map((word, n) => make("text", { transform: `translate(${left + n * cell + 10},${top - 5}) rotate(-55)`, "font-size": 11 }, word.trim().slice(0, 10) || "␣"));
  const bars = skips.map((skip, n) => `M${left + n * cell},${height - 2}v${-(skip * 20).toFixed(2)}h${cell - 1}V${height - 2}z`).join("");
  const told = (event) => {
    const token = Math.floor((event.offsetX - left) / cell);
    if (token < 0 || token >= count) return hint();
    const kind = token < prompt.first_answer ? "prompt" : "answer";
    hint(`${prompt.tokens[token].trim() || "␣"} (${kind} token)\nskips ${percent(skips[token])} % of the parameters\n${ran.filter((unit) => unit[token] === "1").length} of ${ran.length} units ran`, event);
  };
  const both = (read) => `prompt ${percent(read("prompt", 0, prompt.first_answer))} %, answers ${percent(read("answer", prompt.first_answer))} %`;
  const name = placed(line), rates = `Skip here: ${both((_, from, to) => mean(skips.slice(from, to)))}; pooled over all scored tokens: ${both((kind) => run.rates[kind]?.skip)}`;
  const mark = left + prompt.first_answer * cell - 1;
  return make("figure", { tabindex: 0, "aria-label": name }, make("figcaption", {}, make("b", {}, name), make("br"), rates), make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", onpointermove: told, onpointerleave: () => hint() },
    words, make("path", { class: "ran", opacity: 0.3, d: always }), make("path", { class: "ran", d: cells.ran }), make("path", { class: "gone", d: cells.gone }),
    make("text", { class: "soft", x: 2, y: top + 9 }, "L0"), make("text", { class: "soft", x: 2, y: top + run.layers.dense * tall - 2 }, `L${run.layers.dense - 1}`), make("text", { class: "soft", x: 2, y: height - 3 }, "skip"),
    make("path", { class: "bar", d: bars }), make("line", { class: "answer", x1: mark, x2: mark, y1: top - 4, y2: height })));
}

// Mean skip of each word over all prompts shown, the most frequent first.
function words(prompts, rows) {
  const seen = new Map();
  for (const [task, prompt] of Object.entries(prompts)) prompt.tokens.forEach((word, token) => seen.set(word.trim() || "␣", [...(seen.get(word.trim() || "␣") || []), [task, token]]));
  const often = [...seen].sort((a, b) => b[1].length - a[1].length).slice(0, 60);
  const skip = (run, places) => mean(places.filter(([task]) => run.routes[task]).map(([task, token]) => skipOf(run, run.routes[task], token)));
  return grid(["Word", "Times", ...rows.map(([line]) => named(line))], often.map(([word, places]) => [word, String(places.length), ...rows.map(([, run]) => percent(skip(run, places)))]), "Mean skip per word");
}

part([...ROWS, "prompt"], () => {
  const section = one("#routing"), { prompts, rows } = routed(), names = Object.keys(prompts);
  section.hidden = !names.length;
  if (!names.length) return;
  const task = names.includes(state.prompt) ? state.prompt : names[0];
  one(".tools", section).replaceChildren(select("Prompt of", Object.fromEntries(names.map((name) => [name, name])), task, (prompt) => go({ prompt })));
  const maps = rows.filter(([, run]) => run.routes[task]).map(([line, run]) => drawMap(line, run, prompts[task], run.routes[task]));
  one(".maps", section).replaceChildren(...(maps.length ? maps : ["No row that routes tokens is shown."]));
  one(".words", section)?.remove();
  const table = make("section", { class: "table", "data-name": "words" });
  const fill = (event) => event.target.open && !table.childElementCount && (table.append(words(prompts, rows)), enhance(table), parts.find((found) => found.keys[0] === "sort").show());
  section.append(make("details", { class: "words", ontoggle: fill }, make("summary", {}, "Mean skip per word, in percent of the parameters"), table));
});

/* ---- Start ---- */

part(["theme"], () => {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  one("#theme").textContent = dark ? "Light" : "Dark";
});

function start() {
  read();
  document.head.append(make("style", { id: "hidden-groups" }));
  all(".script, #theme").forEach((element) => (element.hidden = false));
  const refresh = (key) => (value) => go({ [key]: value });
  const tools = make("div", { class: "tools" });
  one("#scatter").prepend(tools);
  part(["x", "y"], () => tools.replaceChildren(select("Over", data.axes, state.x, refresh("x")), select("show", data.measures, state.y, refresh("y"))));
  makeFilters();
  all("section.table").forEach(enhance);
  one("#theme").addEventListener("click", () => go({ theme: document.documentElement.dataset.theme === "dark" ? "light" : "dark" }));
  one("#row").addEventListener("close", () => state.row && go({ row: "", task: "", item: "" }));
  addEventListener("hashchange", () => (read(), draw()));
  addEventListener("popstate", () => (read(), draw()));
  addEventListener("resize", drawFigure);
  addEventListener("keydown", (event) => event.key === "/" && !event.target.closest("input, select, textarea, dialog") && (event.preventDefault(), one("#find").focus()));
  draw();
}

start();
