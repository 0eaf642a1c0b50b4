"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const L = data.tokens.length, layers = data.layers;
const $ = (id) => document.getElementById(id);

// One line for each quantity; hues (of OKLCH) run from low to high, lightness alone tells them apart as well.
const QUANTITIES = {
  alpha: { name: "α", title: "α: decay", digits: 4, hues: [235, 275], meaning: "α_t: the share of the memory S that token t leaves; 1 keeps everything, 0 forgets everything. Where every channel has its own decay (HGRN2, Mamba), their mean." },
  beta: { name: "β", title: "β: writing strength", digits: 3, hues: [90, 35], meaning: "β_t: how much of what is stored under its key k_t token t replaces by its value v_t; 0 writes nothing, 1 replaces it." },
  memory: { name: "memory", title: "m: memory length", digits: 1, log: true, hues: [190, 150], meaning: "m_t = Σ_j Γ_{t j} with Γ_{t j} = α_{j+1} ⋯ α_t, so m_t = 1 + α_t m_{t−1}: how many tokens are remembered, each counted by what the decay has left of it; 1 / (1 − α) if α stayed the same. Colours on a logarithmic scale." },
  surprise: { name: "surprise", title: "surprise", digits: 2, hues: [75, 15], meaning: "−log p(x_t | x_1 … x_{t−1}), in nats: how wrong the model was about token t, whatever layer and head." },
};
const CURVES = {
  norm: { title: "‖S‖", small: "Frobenius norm: how much is stored", digits: 2 },
  rank: { title: "effective rank of S", small: "exp(−Σ p log p), p = σ / Σσ of its singular values σ: directions used", digits: 2 },
};

// Numbers by head and token, as page.py packed them.
function unpack({ heads, least, most, steps }) {
  const bytes = Uint8Array.from(atob(steps), (c) => c.charCodeAt(0)), words = new DataView(bytes.buffer);
  return Array.from({ length: heads }, (_, h) =>
    Float64Array.from({ length: L }, (_, t) => least + ((most - least) * words.getUint16(2 * (h * L + t), true)) / 65535));
}
for (const layer of layers) for (const q of ["alpha", "beta", "memory"]) if (layer[q]) layer[q] = unpack(layer[q]);
const has = (q) => q === "surprise" || layers.some((layer) => layer[q]);

const view = { quantity: ["alpha", "beta"].find(has) || "surprise", layer: -1, head: -1, own: false, token: -1 };

function mean(rows) {
  return Float64Array.from(rows[0], (_, t) => rows.reduce((sum, row) => sum + row[t], 0) / rows.length);
}
// [L] of what is chosen; null if the layer does not have it. −1 is the mean of all.
function series(q) {
  if (q === "surprise") return data.surprise;
  const chosen = view.layer < 0 ? layers.filter((layer) => layer[q]) : [layers[view.layer]];
  const rows = chosen.flatMap((layer) => layer[q] || []);
  if (!rows.length) return null;
  return view.head < 0 ? mean(rows) : rows[view.head];
}
function range(rows) {
  let least = Infinity, most = -Infinity;
  for (const row of rows) for (const x of row) if (x !== null) { least = Math.min(least, x); most = Math.max(most, x); }
  return [least, most];
}
const everything = Object.fromEntries(Object.keys(QUANTITIES).filter(has).map((q) =>
  [q, q === "surprise" ? [0, Math.max(0, range([data.surprise])[1])] : range(layers.flatMap((layer) => layer[q] || []))]));

// At first, the head with the widest range: something to look at.
function liveliest(q) {
  const spread = (row) => range([row])[1] - range([row])[0];
  const heads = layers.flatMap((layer, i) => (layer[q] || []).map((row, head) => ({ layer: i, head, spread: spread(row) })));
  return heads.reduce((best, one) => (one.spread > best.spread ? one : best), { layer: -1, head: -1, spread: 0 });
}

// Perceptually uniform colours: lightness is linear in OKLab. Low is the paper, high is the ink.
const dark = matchMedia("(prefers-color-scheme: dark)");
function oklch(l, c, hue) {
  const a = c * Math.cos((hue * Math.PI) / 180), b = c * Math.sin((hue * Math.PI) / 180);
  const [x, y, z] = [l + 0.3963377774 * a + 0.2158037573 * b, l - 0.1055613458 * a - 0.0638541728 * b, l - 0.0894841775 * a - 1.291485548 * b].map((v) => v ** 3);
  return [4.0767416621 * x - 3.3077115913 * y + 0.2309699292 * z, -1.2684380046 * x + 2.6097574011 * y - 0.3413193965 * z, -0.0041960863 * x - 0.7034186147 * y + 1.707614701 * z]
    .map((v) => Math.round(255 * Math.min(1, Math.max(0, v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055))));
}
const ramps = {};
function ramp(q) {
  const key = q + dark.matches, [from, to] = QUANTITIES[q].hues;
  return (ramps[key] ||= Array.from({ length: 256 }, (_, i) => {
    const t = i / 255, l = dark.matches ? 0.23 + 0.62 * t : 0.985 - 0.56 * t;
    return { rgb: oklch(l, 0.005 + 0.15 * t ** 0.8, from + (to - from) * t), light: l > 0.62 };
  }));
}
function shade(q, x, [least, most]) {
  const f = QUANTITIES[q].log ? Math.log : (v) => v;
  const t = most > least ? (f(x) - f(least)) / (f(most) - f(least)) : 0.5;
  return ramp(q)[Math.round(255 * Math.min(1, Math.max(0, t)))];
}
const format = (x, digits) => (x === null || x === undefined ? "undefined" : x.toFixed(digits));

function element(tag, attributes = {}, text = "") {
  const node = tag === "svg" || ["path", "line", "text"].includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}

// Text whose _x and _{x y} are subscripts, as in the paper.
function mathematics(text) {
  return text.split(/_(\{[^}]*\}|[^\s\W]+)/).map((part, i) => (i % 2 ? element("sub", {}, part.replace(/[{}]/g, "")) : part));
}

// The header
function facts() {
  const c = data.config, seen = data.surprise.filter((x) => x !== null);
  const loss = seen.reduce((sum, x) => sum + x, 0) / seen.length;
  const shown = ([name, x]) => Number.isInteger(x) && /^(n_|d_|window)/.test(name) && !(name === "n_h" && x === 1);
  const sizes = (mixer) => Object.entries(mixer).filter(shown).map((entry) => entry.join(" ")).join(", ");
  const kinds = c.mixers.map((mixer, j) => `${layers.filter((_, i) => i % c.mixers.length === j).length} × ${mixer.mixer} (${sizes(mixer)})`);
  return [
    ["layers", kinds.join(", ")],
    ["sizes", `d_model ${c.d_model}, d_ff ${c.d_ff}, vocabulary ${c.vocab_size}`],
    ["parameters", data.parameters.toLocaleString("en")],
    ["tokens", L < data.n_tokens ? `the first ${L.toLocaleString("en")} of ${data.n_tokens.toLocaleString("en")}` : L.toLocaleString("en")],
    ["mean surprise", seen.length ? `${loss.toFixed(3)} nats (perplexity ${Math.exp(loss).toPrecision(3)})` : "undefined for one token"],
  ];
}
function notices() {
  const said = [];
  if (L < data.n_tokens) said.push(`Of ${data.n_tokens.toLocaleString("en")} tokens the first ${L.toLocaleString("en")} are read and shown.`);
  if (!has("alpha") && !has("beta")) said.push("No layer of this model has gates α or β: the page shows its surprise" + (layers.some((layer) => layer.norm) ? ", and the state S." : "."));
  return said.join(" ");
}

// The text
function visible(piece) {
  if (piece === "") return [["i", "·"]]; // a further byte of the character before
  return [...piece].map((c) => c === "\n" ? ["i", "↵"] : c === "\t" ? ["i", "⇥"] : c < " " || c === "\x7f" ? ["i", c === "\x7f" ? "␡" : String.fromCharCode(0x2400 + c.charCodeAt(0))] : ["", c]);
}
const spans = data.tokens.map((piece, t) => {
  const span = element("span");
  span.dataset.t = t;
  for (const [tag, c] of visible(piece)) span.append(tag ? element(tag, {}, c) : c);
  if (piece.endsWith("\n")) span.append("\n");
  return span;
});
function paintText() {
  const q = view.quantity, row = series(q), [least, most] = row && q !== "surprise" ? range([row]) : everything[q];
  spans.forEach((span, t) => {
    const known = row && row[t] !== null, colour = known && shade(q, row[t], [least, most]);
    span.style.background = known ? `rgb(${colour.rgb})` : "";
    span.style.color = known ? (colour.light ? "#17171a" : "#ffffff") : "";
  });
  $("meaning").replaceChildren(...mathematics(QUANTITIES[q].meaning));
  const scale = $("scale").getContext("2d");
  ramp(q).forEach(({ rgb }, i) => { scale.fillStyle = `rgb(${rgb})`; scale.fillRect(i, 0, 1, 1); });
  $("least").textContent = format(least, QUANTITIES[q].digits);
  $("most").textContent = format(most, QUANTITIES[q].digits);
  $("missing").textContent = row ? "" : `Layer ${view.layer} (${layers[view.layer].mixer}) has no ${QUANTITIES[q].name}.`;
}

// The maps: a canvas for each quantity, one pixel wide a token, stretched
const maps = Object.keys(QUANTITIES).filter((q) => has(q) && (q !== "surprise" || L > 1)).map((q) => {
  const rows = q === "surprise" ? [{ layer: -1, head: -1, values: data.surprise }] : layers.flatMap((layer, i) =>
    layer[q] ? layer[q].map((values, head) => ({ layer: i, head, values })) : [{ layer: i, head: -1, values: null }]);
  const height = Math.max(rows.length === 1 ? 26 : 3, Math.min(14, Math.floor(420 / rows.length)));
  const canvas = element("canvas", { width: L, height: height * rows.length }), box = element("div", { class: "plot" });
  canvas.style.height = `${height * rows.length}px`;
  box.append(canvas, ...rows.flatMap((row, r) => (r && row.layer !== rows[r - 1].layer ? [border(height * r)] : [])));
  const map = { q, rows, height, canvas, box, labels: element("div", { class: "labels" }) };
  const grid = element("div", { class: "map" }), axis = element("div", { class: "axis" });
  axis.append(...ticks().map((t) => element("span", {}, t)));
  grid.append(map.labels, box, axis);
  const heading = element("h3", {}, QUANTITIES[q].title);
  if (q !== "surprise") heading.append(element("small", {}, `from ${everything[q].map((x) => format(x, QUANTITIES[q].digits)).join(" to ")}`));
  $("maps").append(heading, grid);
  listen(map);
  return map;
});
function border(top) {
  const line = element("div", { class: "border" });
  line.style.top = `${top}px`;
  return line;
}
function ticks() {
  return L < 5 ? Array.from({ length: L }, (_, t) => t) : [0, 1, 2, 3, 4].map((i) => Math.round((i * (L - 1)) / 4));
}
function paintMap({ q, rows, height, canvas, box, labels }) {
  const context = canvas.getContext("2d");
  rows.forEach(({ values }, r) => {
    const limits = values && view.own && q !== "surprise" ? range([values]) : everything[q];
    for (let t = 0; t < L; t++) {
      context.clearRect(t, height * r, 1, height);
      context.fillStyle = !values ? "rgb(128 128 128 / 0.22)" : values[t] === null ? "transparent" : `rgb(${shade(q, values[t], limits).rgb})`;
      context.fillRect(t, height * r, 1, height);
    }
  });
  canvas.style.imageRendering = L > box.clientWidth * devicePixelRatio ? "auto" : "pixelated";
  labels.replaceChildren(...labelsOf(q, rows, height).map(({ text, middle, layer }) => {
    const label = element("span", layer >= 0 && layer === view.layer ? { class: "chosen" } : {}, text);
    label.style.top = `${1 + height * middle}px`;
    return label;
  }));
}
// One label a layer, at its middle, as long as there is room for them.
function labelsOf(q, rows, height) {
  if (q === "surprise") return [{ text: "model", middle: 0.5, layer: -1 }];
  const every = Math.ceil((13 * layers.length) / (rows.length * height));
  return layers.map((layer, i) => {
    const own = rows.map((row, r) => [row, r]).filter(([row]) => row.layer === i).map(([, r]) => r);
    return { text: `${i} ${layer.mixer}${layer[q] ? "" : `: no ${q === "beta" ? "β" : "α"}`}`, middle: (own[0] + own[own.length - 1] + 1) / 2, layer: i };
  }).filter((_, i) => i % every === 0);
}
function listen(map) {
  const at = (event) => {
    const box = map.canvas.getBoundingClientRect();
    const inside = (x, n) => Math.min(n - 1, Math.max(0, Math.floor(x * n)));
    return [inside((event.clientX - box.left) / box.width, L), map.rows[inside((event.clientY - box.top) / box.height, map.rows.length)]];
  };
  map.canvas.addEventListener("pointermove", (event) => { const [t, row] = at(event); point(t, event, row); });
  map.canvas.addEventListener("pointerleave", () => point(-1));
  map.canvas.addEventListener("click", (event) => {
    const [, row] = at(event);
    Object.assign(view, map.q === "surprise" ? { quantity: "surprise" } : { quantity: map.q, layer: row.layer, head: row.head });
    update();
  });
}

// The curves: a line for each layer, its heads' mean, or the chosen head
const WIDTH = 560, HEIGHT = 230, LEFT = 44, RIGHT = 26, TOP = 14, BOTTOM = 26;
const across = (t) => LEFT + ((WIDTH - LEFT - RIGHT) * (L > 1 ? t / (L - 1) : 0.5));
function nice(most) {
  const power = 10 ** Math.floor(Math.log10(most || 1)), step = [0.25, 0.5, 1, 2, 2.5].find((s) => s * power * 4 >= most) * power;
  return Array.from({ length: 5 }, (_, i) => i * step).filter((v, i, all) => i === 0 || all[i - 1] < most);
}
function paintCurves() {
  $("curves").replaceChildren(...Object.entries(CURVES).filter(([name]) => layers.some((layer) => layer[name])).map(([name, { title, small }]) => {
    const lines = layers.map((layer, i) => ({ i, heads: layer[name] })).filter(({ heads }) => heads).map(({ i, heads }) =>
      ({ i, values: i === view.layer && view.head >= 0 && heads[view.head] ? heads[view.head] : data.state_at.map((_, n) => heads.reduce((sum, head) => sum + head[n], 0) / heads.length) }));
    const grid = nice(range(lines.map(({ values }) => values))[1]), most = grid[grid.length - 1];
    const up = (x) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * x) / most;
    const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} over the tokens, a line for each layer` });
    for (const y of grid) svg.append(element("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: up(y), y2: up(y) }), element("text", { x: LEFT - 6, y: up(y) + 4, "text-anchor": "end" }, +y.toPrecision(3)));
    for (const t of ticks()) svg.append(element("text", { x: across(t), y: HEIGHT - 8, "text-anchor": "middle" }, t));
    for (const line of apart(lines, up)) svg.append(...curve(line, up));
    svg.append(element("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }));
    const figure = element("div"), heading = element("h3", {}, title);
    heading.append(element("small", {}, small));
    figure.append(heading, svg);
    return figure;
  }));
}
// Where each line's name is written: beside its end, but not over another.
function apart(lines, up) {
  let free = 0;
  return lines.map((line) => ({ ...line, end: up(line.values[line.values.length - 1] || 0) })).sort((a, b) => a.end - b.end)
    .map((line) => ({ ...line, end: (free = Math.max(line.end, free) + 11) - 11 }));
}
function curve({ i, values, end }, up) {
  const share = layers.length > 1 ? i / (layers.length - 1) : 0.5;
  const colour = `rgb(${oklch(dark.matches ? 0.84 - 0.22 * share : 0.72 - 0.34 * share, 0.13, 195 + 145 * share)})`;
  const points = values.map((x, n) => `${across(data.state_at[n]).toFixed(1)} ${up(x || 0).toFixed(1)}`);
  const path = element("path", { d: `M${points.join("L")}${points.length === 1 ? "h3" : ""}`, stroke: colour, ...(i === view.layer ? { class: "chosen" } : {}) });
  const name = element("text", { x: WIDTH - RIGHT + 5, y: end + 4 }, i);
  name.style.fill = colour;
  return [path, name];
}

// Pointing at a token: in the text, in the maps and in the curves alike
function point(t, event, row) {
  spans[view.token]?.classList.remove("current");
  view.token = t;
  spans[t]?.classList.add("current");
  for (const cursor of document.querySelectorAll(".plot .cursor")) cursor.remove();
  for (const cursor of document.querySelectorAll("svg .cursor")) {
    cursor.setAttribute("visibility", t < 0 ? "hidden" : "visible");
    cursor.setAttribute("x1", across(t)); cursor.setAttribute("x2", across(t));
  }
  $("tip").hidden = t < 0;
  if (t < 0) return;
  for (const { box } of maps) {
    const cursor = element("div", { class: "cursor" });
    cursor.style.left = `${(100 * (t + 0.5)) / L}%`;
    box.append(cursor);
  }
  tell(t, row);
  place(event);
}
const shown = (piece) => visible(piece).map(([, c]) => (c === " " ? "␣" : c)).join("");
function tell(t, row) {
  const where = row && row.layer >= 0 ? row : view, rows = [];
  for (const q of ["alpha", "beta", "memory"].filter(has)) {
    const values = where === view ? series(q) : layers[row.layer][q] && layers[row.layer][q][Math.max(0, row.head)];
    rows.push([QUANTITIES[q].title, values ? format(values[t], QUANTITIES[q].digits) : "none"]);
  }
  rows.push(["surprise", t === 0 ? "undefined: nothing was read before" : `${format(data.surprise[t], 2)} nats (p = ${Math.exp(-data.surprise[t]).toPrecision(2)})`]);
  if (t > 0) rows.push(["expected", data.expected[t] === data.tokens[t] ? "this token" : shown(data.expected[t])]);
  const n = data.state_at.findLastIndex((at) => at <= t), state = where.layer >= 0 && layers[where.layer];
  if (state && state.norm && n >= 0 && where.head >= 0) for (const [name, { title, digits }] of Object.entries(CURVES)) rows.push([title, format(state[name][where.head][n], digits)]);
  const table = element("table");
  for (const [name, value] of rows) { const line = element("tr"); line.append(element("th", {}, name), element("td", {}, value)); table.append(line); }
  const place = where.layer < 0 ? "mean of all layers" : `layer ${where.layer}, ${where.head < 0 ? "mean of its heads" : `head ${where.head}`}`;
  $("tip").replaceChildren(element("b", {}, shown(data.tokens[t])), ` token ${t}, ${place}`, table);
}
function place(event) {
  const tip = $("tip"), at = event && "clientX" in event ? { x: event.clientX, y: event.clientY } : below(spans[view.token]);
  const left = at.x + 16 + tip.offsetWidth > innerWidth ? at.x - tip.offsetWidth - 12 : at.x + 16;
  const top = at.y + 18 + tip.offsetHeight > innerHeight ? at.y - tip.offsetHeight - 12 : at.y + 18;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}
function below(span) {
  const box = span.getBoundingClientRect();
  return { x: box.left, y: box.bottom };
}

// The controls
function fillHeads() {
  const layer = layers[view.layer], heads = layer && (layer.alpha || layer.beta || layer.norm);
  $("head").replaceChildren(element("option", { value: -1 }, "mean of all"), ...(heads || []).map((_, h) => element("option", { value: h }, h)));
  $("head").disabled = !heads;
  if (!heads || view.head >= heads.length) view.head = -1;
  $("head").value = view.head;
  $("layer").value = view.layer;
  for (const input of $("quantities").querySelectorAll("input")) input.checked = input.value === view.quantity;
}
function markRow({ q, rows, height, box }) {
  box.querySelector(".row")?.remove();
  const own = rows.flatMap((row, r) => (q !== "surprise" && view.layer >= 0 && row.layer === view.layer && (view.head < 0 || row.head === view.head) ? [r] : []));
  if (!own.length) return;
  const mark = element("div", { class: "row" });
  mark.style.top = `${height * own[0] - 1}px`;
  mark.style.height = `${height * own.length + 2}px`;
  box.append(mark);
}
function update() {
  fillHeads();
  paintText();
  for (const map of maps) { paintMap(map); markRow(map); }
  paintCurves();
}

function start() {
  ({ layer: view.layer, head: view.head } = liveliest(view.quantity));
  $("checkpoint").textContent = data.checkpoint;
  for (const [name, value] of facts()) { const fact = element("div"); fact.append(element("dt", {}, name), element("dd", {}, value)); $("facts").append(fact); }
  $("notice").textContent = notices();
  $("notice").hidden = !notices();
  $("rule").hidden = layers.every((layer) => layer.mixer !== "GatedDeltaNet");
  $("rows").hidden = !has("alpha") && !has("beta");
  for (const q of Object.keys(QUANTITIES).filter(has)) {
    const label = element("label", {}, QUANTITIES[q].name);
    label.prepend(element("input", { type: "radio", name: "quantity", value: q }));
    $("quantities").append(label);
  }
  $("layer").append(element("option", { value: -1 }, "mean of all"), ...layers.map((layer, i) => element("option", { value: i }, `${i} ${layer.mixer}`)));
  const every = data.state_at.length > 1 ? data.state_at[1] - data.state_at[0] : 1;
  const stateless = layers.every((layer) => !layer.norm);
  $("sampled").textContent = stateless ? "No layer of this model has one: attention keeps all keys and values instead." : `A line for each layer, named at its end: the mean of its heads, or the chosen head. S is measured after ${every > 1 ? `every ${every} tokens` : "every token"}.`;
  $("text").append(...spans);
  $("quantities").addEventListener("change", (event) => { view.quantity = event.target.value; update(); });
  $("layer").addEventListener("change", (event) => { view.layer = +event.target.value; update(); });
  $("head").addEventListener("change", (event) => { view.head = +event.target.value; update(); });
  $("own").addEventListener("change", (event) => { view.own = event.target.checked; update(); });
  const token = (event) => event.target.closest("[data-t]");
  $("text").addEventListener("pointermove", (event) => point(token(event) ? +token(event).dataset.t : -1, event));
  $("text").addEventListener("pointerleave", () => point(-1));
  $("text").addEventListener("blur", () => point(-1));
  $("text").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    point(Math.min(L - 1, Math.max(0, view.token + step)));
    spans[view.token].scrollIntoView({ block: "nearest" });
  });
  dark.addEventListener("change", update);
  addEventListener("resize", update);
  update();
}
start();
