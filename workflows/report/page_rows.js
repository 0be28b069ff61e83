/* ---- Details of a row ---- */

function chart(title, values, form) {
  const width = 260, height = 80, finite = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...finite, form === "bars" ? 0 : Infinity), Math.max(...finite)];
  const y = (value) => height - 4 - ((value - low) / (high - low || 1)) * (height - 12);
  const wide = width / values.length;
  const shape = form === "bars"
    ? make("path", { class: "bar", d: values.map((value, n) => `M${n * wide + 1},${y(low)}V${y(value ?? low)}h${Math.max(1, wide - 2)}V${y(low)}z`).join("") })
    : make("path", { class: "curve", d: `M${values.map((value, n) => `${(n * (width - 2)) / (values.length - 1) + 1},${y(value ?? low)}`).join("L")}` });
  const caption = `${title}: ${form === "bars" ? "" : `${values[0]} to ${values.at(-1)}, `}lowest ${Math.min(...finite)}, highest ${high}`;
  return make("figure", {}, make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": caption }, make("path", { class: "grid", d: `M0,${height - 4}H${width}` }), shape), make("figcaption", {}, caption));
}

function decisionView(decision) {
  if (decision.curves) {
    const [along, ...keys] = Object.keys(decision.curves);
    const points = decision.curves[along];
    const caption = `${decision.name}: ${points.length} of ${decision.of} entries, ${along} ${points[0]} to ${points.at(-1)}`;
    return [make("p", { class: "small" }, caption), make("div", { class: "charts" }, keys.map((key) => chart(key, decision.curves[key])))];
  }
  if (decision.bars) return make("div", { class: "charts" }, chart(decision.name, decision.bars, "bars"));
  return facts([[decision.name, decision.text]]);
}

// Share of the scored tokens that ran each layer, by kind of unit. Layers without a unit ran for all.
function byLayer(run) {
  const kinds = unique(run.units.map(([, kind]) => kind));
  const whole = Array.from({ length: run.layers.dense }, (_, layer) => (run.layers.removed.includes(layer) ? 0 : 100));
  const shares = (kind) => whole.map((value, layer) => {
    const unit = run.units.find(([at, name]) => at === layer && name === kind);
    return unit ? Number((100 * unit[3]).toFixed(2)) : value;
  });
  return make("div", { class: "charts" }, kinds.length ? kinds.map((kind) => chart(`${kind} ran, % of tokens, layer 0 to ${whole.length - 1}`, shares(kind), "bars")) : chart(`layer kept, 0 to ${whole.length - 1}`, whole, "bars"));
}

function item(line, task, number, side, answer) {
  const question = data.items[line.backbone][task][number];
  const name = `${task}:${number}`;
  const theirs = question.scores ?? question.text;
  const scores = (choice) => [choice === question.target ? "✓" : "", question.choices[choice], fixed(theirs[choice]), fixed(answer[choice])];
  const body = question.choices
    ? [make("p", {}, question.prompt), grid(["Right", "Choice", "Reference", line.title], question.choices.map((_, choice) => scores(choice)), `Choices of item ${number}`)]
    : [make("p", {}, question.prompt), facts([["right answer", String(question.target)], ["reference wrote", String(theirs)], [`${line.title} wrote`, String(answer)]])];
  const toggle = (event) => (event.target.open ? state.item !== name && go({ item: name }) : state.item === name && go({ item: "" }));
  return make("details", { class: "item", open: state.item === name, ontoggle: toggle }, make("summary", {}, `${side} item ${number}: …${question.prompt.slice(-70)}`), body);
}

function itemsOf(line, run) {
  const tasks = Object.keys(run.items);
  if (!tasks.length) return null;
  const task = tasks.includes(state.task) ? state.task : tasks[0];
  const options = Object.fromEntries(tasks.map((name) => [name, `${name}: won ${run.items[name].won.number}, lost ${run.items[name].lost.number}`]));
  const sides = Object.entries(run.items[task]).map(([side, { number, items }]) => {
    const texts = Object.entries(items);
    const heading = texts.length < number ? `${side} ${number}, ${texts.length ? `the first ${texts.length}` : "without texts"}` : `${side} ${number}`;
    return [make("p", { class: "small" }, heading), texts.map(([name, answer]) => item(line, task, name, side, answer))];
  });
  return [make("h3", {}, "Items won from and lost to the reference"), select("Task", options, task, (name) => go({ task: name, item: "" })), sides];
}

function behind(line, run) {
  const rates = Object.entries(run.rates).map(([kind, rate]) => [kind, rate.tokens.toLocaleString("en"), percent(rate.skip), percent(rate.skip_net), percent(rate.skip_std)]);
  const scores = run.scores.map((score) => [score.task, score.metric, score.k === null ? fixed(score.value, 4) : `${score.k}/${score.n}`, percent(score.skip.all), percent(score.skip.answer), run.seeds.map((seed) => fixed(seed[score.task], 4)).join(", ")]);
  const plain = (object) => Object.entries(object || {}).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
  return [
    make("h3", {}, "What ran, by kind of token, pooled over tokens"), grid(["Tokens", "Number", "Skip %", "Net %", "Spread %"], rates),
    make("h3", {}, "What ran, by layer"), byLayer(run),
    run.decisions.length ? [make("h3", {}, "What the fit decided"), run.decisions.map(decisionView)] : null,
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
    make("div", { class: "head" }, make("h2", { id: "row-title" }, labelOf(line)), make("button", { type: "button", onclick: () => dialog.close() }, "Close")),
    facts([
      ["Retain", `${fixed(n.retain)}${spread(n)}, 95 %: ${fixed(n.retain_low, 1)} to ${fixed(n.retain_high, 1)}`],
      ...Object.entries(data.axes).map(([name, text]) => [text, fixed(n[name])]),
      ["seeds", String(n.seeds ?? "–")], ["note", line.note || null],
      ["record", run ? `${run.file}, seed ${run.seed}, commit ${String(run.commit).slice(0, 12)}` : null],
    ]),
    ...(run ? behind(line, run) : [make("p", { class: "small" }, "This page does not hold the record of this row.")]),
  );
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = top;
});

/* ---- Routing ---- */

function skipOf(run, ran, token) {
  return run.units.reduce((sum, unit, n) => sum + (ran[n][token] === "0" ? unit[2] : 0), 0) / run.parameters;
}

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function routing() {
  const backbone = state.backbone || Object.keys(data.prompts)[0];
  const rows = visibleLines().map((line) => [line, data.runs[data.run_of[line.id]]]).filter(([line, run]) => line.backbone === backbone && run?.routes);
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
  const describeToken = (event) => {
    const token = Math.floor((event.offsetX - left) / cell);
    if (token < 0 || token >= count) return hint();
    const kind = token < prompt.first_answer ? "prompt" : "answer";
    hint(`${prompt.tokens[token].trim() || "␣"} (${kind} token)\nskips ${percent(skips[token])} % of the parameters\n${ran.filter((unit) => unit[token] === "1").length} of ${ran.length} units ran`, event);
  };
  const both = (read) => `prompt ${percent(read("prompt", 0, prompt.first_answer))} %, answers ${percent(read("answer", prompt.first_answer))} %`;
  const name = labelOf(line), rates = `Skip here: ${both((_, from, to) => mean(skips.slice(from, to)))}; pooled over all scored tokens: ${both((kind) => run.rates[kind]?.skip)}`;
  const mark = left + prompt.first_answer * cell - 1;
  return make("figure", { tabindex: 0, "aria-label": name }, make("figcaption", {}, make("b", {}, name), make("br"), rates), make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", onpointermove: describeToken, onpointerleave: () => hint() },
    words, make("path", { class: "ran", opacity: 0.3, d: always }), make("path", { class: "ran", d: cells.ran }), make("path", { class: "gone", d: cells.gone }),
    make("text", { class: "soft", x: 2, y: top + 9 }, "L0"), make("text", { class: "soft", x: 2, y: top + run.layers.dense * tall - 2 }, `L${run.layers.dense - 1}`), make("text", { class: "soft", x: 2, y: height - 3 }, "skip"),
    make("path", { class: "bar", d: bars }), make("line", { class: "answer", x1: mark, x2: mark, y1: top - 4, y2: height })));
}

// Mean skip of each word over all prompts, the most frequent word first.
function words(prompts, rows) {
  const placesOf = new Map();
  for (const [task, prompt] of Object.entries(prompts)) prompt.tokens.forEach((word, token) => placesOf.set(word.trim() || "␣", [...(placesOf.get(word.trim() || "␣") || []), [task, token]]));
  const often = [...placesOf].sort((a, b) => b[1].length - a[1].length).slice(0, 60);
  const skip = (run, places) => mean(places.filter(([task]) => run.routes[task]).map(([task, token]) => skipOf(run, run.routes[task], token)));
  return grid(["Word", "Times", ...rows.map(([line]) => nameOf(line))], often.map(([word, places]) => [word, String(places.length), ...rows.map(([, run]) => percent(skip(run, places)))]), "Mean skip per word");
}

part([...ROWS, "prompt"], () => {
  const section = one("#routing"), { prompts, rows } = routing(), names = Object.keys(prompts);
  section.hidden = !names.length;
  if (!names.length) return;
  const task = names.includes(state.prompt) ? state.prompt : names[0];
  one(".tools", section).replaceChildren(select("Prompt of", Object.fromEntries(names.map((name) => [name, name])), task, (prompt) => go({ prompt })));
  const maps = rows.filter(([, run]) => run.routes[task]).map(([line, run]) => drawMap(line, run, prompts[task], run.routes[task]));
  one(".maps", section).replaceChildren(...(maps.length ? maps : ["No visible row routes tokens."]));
  one(".words", section)?.remove();
  const table = make("section", { class: "table", "data-name": "words" });
  const fill = (event) => event.target.open && !table.childElementCount && (table.append(words(prompts, rows)), enhance(table), parts.find((other) => other.keys[0] === "sort").show());
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
