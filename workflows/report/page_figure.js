/* ---- The figure ---- */

const SHAPES = { reference: "M-4.5,-4.5h9v9h-9z", static: "M0,-5a5,5 0 1,0 .01,0z", dynamic: "M0,-6l5.6,10h-11.2z" };
const SIGNS = { reference: "■", static: "●", dynamic: "▲" };

function ticks(low, high, most) {
  const raw = (high - low) / most;
  const step = [1, 2, 5, 10].map((factor) => factor * 10 ** Math.floor(Math.log10(raw))).find((size) => size >= raw);
  const values = [];
  for (let n = Math.ceil(low / step); n * step <= high; n += 1) values.push(Number((n * step).toPrecision(10)));
  return values;
}

function scale(values, from, to) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const pad = (high - low || 1) * 0.06;
  const at = (value) => from + ((value - low + pad) / (high - low + 2 * pad)) * (to - from);
  return Object.assign(at, { ticks: ticks(low - pad, high + pad, Math.max(3, Math.abs(to - from) / 80)) });
}

const pen = document.createElement("canvas").getContext("2d");
pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;

// A name goes beside its mark, on the first free side, or to one of `far` places farther off, with a line
// to the mark. Without a free place the name appears under the pointer only.
function placeLabel(boxes, text, x, y, [width, height], far) {
  const long = pen.measureText(text).width;
  const beside = [[x + 8, y + 4], [x - 8 - long, y + 4], ...[x - long / 2, x - 6, x + 6 - long].flatMap((left) => [[left, y - 9], [left, y + 18]])];
  const sides = (down) => [[x + 22, y + 4 + down], [x - 22 - long, y + 4 + down]];
  const away = Array.from({ length: far }, (_, n) => [7 * (n + 1), -7 * (n + 1)]).flat().flatMap(sides);
  for (const [left, base] of [...beside, ...away]) {
    const box = [left, base - 11, left + long, base + 3];
    const free = left > 46 && box[1] > 0 && box[2] < width && box[3] < height && boxes.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
    if (!free) continue;
    boxes.push(box);
    const name = make("text", { class: "name", x: left, y: base }, text);
    return beside.some(([at, on]) => at === left && on === base) ? [name] : [make("line", { class: "leader", x1: x, y1: y, x2: left > x ? left - 2 : left + long + 2, y2: base - 4 }), name];
  }
  return [];
}

function describe(line) {
  const n = line.numbers, retain = `Retain ${fixed(n.retain)}${spread(n)}, 95 %: ${fixed(n.retain_low, 1)} to ${fixed(n.retain_high, 1)}`;
  const measure = state.y === "retain" ? null : `${data.measures[state.y]} ${fixed(n[state.y])}`;
  return [labelOf(line), measure, retain, ...Object.entries(data.axes).map(([name, text]) => `${text}: ${fixed(n[name])}`), line.note].filter(Boolean).join("\n");
}

// The first places are for references and for the best row of each budget by Retain. Of the others, none
// goes far before all have tried the places beside their marks.
function namesOf(points, levels, at, size) {
  const budget = (line) => `${line.backbone}/${line.target}`;
  const byRetain = points.filter((line) => line.kind !== "reference").sort((a, b) => b.numbers.retain - a.numbers.retain);
  const leaders = byRetain.filter((line, n) => byRetain.findIndex((other) => budget(other) === budget(line)) === n);
  const boxes = points.map(at).map(([x, y]) => [x - 6, y - 6, x + 6, y + 6]), names = new Map();
  for (const [some, far] of [[[...leaders, ...levels], 12], [points, 0], [points, 12]]) {
    for (const line of some.filter((line) => !names.get(line)?.length)) names.set(line, placeLabel(boxes, line.title, ...at(line), size, far));
  }
  const parts = [...names.values()].flat();
  return [...parts.filter((part) => part.tagName === "line"), ...parts.filter((part) => part.tagName === "text")];
}

function drawCaption(dashed) {
  const signs = valuesOf("kind").flatMap((kind, n) => [n ? ", " : "", make("b", { class: kind }, SIGNS[kind]), `\u00a0${kind}`]);
  const interval = state.y === "retain" ? " with its 95 % interval" : "";
  one("#caption").replaceChildren(`Vertical: ${data.measures[state.y]}${interval}. Horizontal: ${data.axes[state.x]}. `, ...signs, dashed ? ". Dashed: references, which skip nothing." : ".");
}

function drawFigure() {
  const box = one("#scatter");
  const width = Math.max(280, box.clientWidth), height = Math.round(Math.max(300, Math.min(460, width * 0.66)));
  const points = visibleLines().filter((line) => line.numbers[state.x] != null && line.numbers[state.y] != null);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${data.measures[state.y]} over ${data.axes[state.x]}` });
  one("svg", box)?.remove();
  one(".tools", box).after(svg);
  const ends = (line) => (state.y === "retain" ? [line.numbers.retain_low, line.numbers.retain_high] : [line.numbers[state.y]]);
  // References skip nothing. Drawn as levels they do not stretch the axis to zero.
  const levels = state.x.startsWith("skip") ? points.filter((line) => line.kind === "reference" && line.target === null) : [];
  const rest = points.filter((line) => !levels.includes(line));
  drawCaption(rest.length && levels.length);
  if (!points.length) return svg.append(make("text", { x: 20, y: 40 }, "No row has both numbers."));
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
  const byHeight = [...points].sort((a, b) => b.numbers[state.y] - a.numbers[state.y]);
  byHeight.forEach((line, place) => {
    const [left, top] = at(line);
    const bar = state.y === "retain" ? make("line", { x1: 0, x2: 0, y1: y(line.numbers.retain_low) - top, y2: y(line.numbers.retain_high) - top }) : null;
    const open = () => go({ row: line.id }, true);
    svg.append(make("g", {
      class: `mark ${line.kind}`, transform: `translate(${left},${top})`, tabindex: place ? -1 : 0, role: "button", "aria-label": describe(line).replaceAll("\n", "; "),
      onclick: open, onkeydown: (event) => (event.key === "Enter" || event.key === " " ? (event.preventDefault(), open()) : step(event)),
      onpointerenter: (event) => hint(describe(line), event), onpointerleave: () => hint(), onfocus: (event) => hint(describe(line), event), onblur: () => hint(),
    }, bar, make("path", { d: SHAPES[line.kind] })));
  });
  // After all marks: their bars would run through names.
  svg.append(...namesOf(byHeight, levels, at, [width, height - 42]));
}

// Arrow keys go from mark to mark, from the highest down.
function step(event) {
  const way = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const marks = all(".mark", event.currentTarget.parentNode);
  const next = way && marks[marks.indexOf(event.currentTarget) + way];
  if (!way) return;
  event.preventDefault();
  next?.focus();
}

part([...ROWS, "x", "y"], drawFigure);
