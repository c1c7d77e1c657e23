/* The page of a comparison: figures, graphs that move together, and the tables of what differs. */

const page = JSON.parse(document.getElementById("comparison").textContent);
const {comparison, networks, tables} = page;
const {results} = comparison;
const names = results.map((result) => result.name);
const compared = new Map(comparison.nodes.map((node) => [keyOf(node), node]));
const errors = results.map((result) => new Map(((result.errors || {}).layers || []).map((layer) => [keyOf(layer), layer])));
const measured = results.some((result) => result.errors);

function keyOf(node) { return `${node.op || node.op_type}\n${node.name}`; }

/* ---- colours ---- */

const SEVERE = ["node", "computes"], CLEAR = ["bits", "granularity", "quantized", "fused", "reason", "weights"];
const COLOURS = {
  differs: {name: "what differs", of: differsBand,
    legend: [["e6", "there or not, integer or float"], ["e4", "width, granularity, place, weights"], ["e3", "codes, scale, zero point, method"], ["none", "the same"]]},
  ...(measured ? {change: {name: `error of each layer by itself, against ${names[0]}`, of: changeBand,
    legend: [["e6", "worse by 6 dB or more"], ["e5", "by 3\u20136"], ["e3", "by 1\u20133"], ["e1", "within 1 dB"], ["b8", "better by 1\u20133"], ["b6", "by 3\u20136"], ["b4", "by 6 or more"], ["none", "not measured"]]}} : {}),
  ...(measured ? errorColours(errorsOf) : {}),
  ...OWN_COLOURS,
};

function errorsOf(node, at) {
  const layer = errors[at].get(keyOf(node));
  return layer && {own: layer.own, accumulated: layer.accumulated.sqnr_db, alone: layer.alone};
}

function differsBand(node) {
  const {differs = []} = compared.get(keyOf(node)) || {};
  if (!differs.length) return "none";
  return differs.some((kind) => SEVERE.includes(kind)) ? "e6" : differs.some((kind) => CLEAR.includes(kind)) ? "e4" : "e3";
}

function changeBand(node, at) {
  const first = errors[0].get(keyOf(node)), own = errors[at].get(keyOf(node));
  if (!first || !own) return "none";
  const change = level(own.own) - level(first.own);
  if (Number.isNaN(change) || Math.abs(change) < 1) return "e1";
  const size = Math.abs(change) >= 6 ? 0 : Math.abs(change) >= 3 ? 1 : 2;
  return (change < 0 ? ["e6", "e5", "e3"] : ["b4", "b6", "b8"])[size];
}

function level(value) { return value === null ? Infinity : value; }

/* ---- graphs ---- */

const graphs = networks.map((network, at) => drawGraph(network, {
  name: `Network of ${names[at]}; arrow keys go from node to node`, text: described, onselect: (index) => chosen(at, index),
}));
const panel = h("div", {"aria-live": "polite", role: "region", "aria-label": "The selected node in each result"});
const legendPlace = h("ul", {class: "legend", "aria-label": "Colours"});
const follow = selectTogether(graphs, keyOf);
graphs.forEach((graph, own) => { graph.onview = (view) => moveOthers(own, view); });

function described(node) {
  if (isTerminal(node)) return terminalText(node);
  const width = precision(node);
  const {differs = []} = compared.get(keyOf(node)) || {};
  return [node.op, width, `${node.name}, ${node.op}, ${width}${differs.length ? `; differs in ${differs.map(word).join(", ")}` : "; the same in all"}`];
}

function word(kind) { return kind.replaceAll("_", " "); }

/* Graphs that are laid out differently keep their selected nodes side by side. */
function moveOthers(own, view) {
  const from = graphs[own];
  graphs.forEach((other, at) => {
    if (at === own) return;
    const mine = from.network.nodes[from.selected], theirs = other.network.nodes[other.selected];
    if (mine && theirs && keyOf(mine) === keyOf(theirs)) {
      other.look({x: view.x - mine.x + theirs.x, y: view.y - mine.y + theirs.y, k: view.k});
    } else {
      other.look({x: view.x / from.network.width * other.network.width, y: view.y / from.network.height * other.network.height, k: view.k});
    }
  });
}

function chosen(at, index) {
  follow[at](index);
  const node = networks[at].nodes[index];
  details(node);
  moveOthers(at, graphs[at].view);
}

function reveal(name, op) {
  for (const [at, network] of networks.entries()) {
    const index = network.nodes.findIndex((node) => node.name === name && (!op || node.op === op));
    if (index >= 0) {
      document.getElementById("network").scrollIntoView({block: "start"});
      graphs[at].select(index);
      return;
    }
  }
}

function link(name, op) {
  return h("button", {type: "button", class: "link", title: name, onclick: () => reveal(name, op)}, shortened(name, 40));
}

function paint(name) {
  graphs.forEach((graph, at) => graph.paint((node) => COLOURS[name].of(node, at)));
  replace(legendPlace, legendOf(COLOURS[name].legend));
}

function networkSection() {
  const colours = Object.entries(COLOURS).map(([name, colour]) => [name, colour.name]);
  const all = [...new Set(networks.flatMap((network) => network.nodes.map((node) => node.name)))];
  paint("differs");
  return section("network", "Networks", h("p", {class: "quiet"}, "The graphs move and select together."),
    h("div", {class: "controls"}, control("Colour", choiceOf("colour", colours, paint)),
      nameField(all, (name) => name !== undefined && reveal(name))),
    legendPlace,
    h("div", {class: "graphs"}, graphs.map((graph, at) => h("figure", {}, h("figcaption", {}, names[at]), graph.element))), panel);
}

/* ---- one node in each result ---- */

function details(node) {
  const found = compared.get(keyOf(node));
  if (!found) {
    replace(panel, h("h3", {}, node.name), h("p", {class: "quiet"}, `${node.kind} of the model`));
    return;
  }
  const rows = [
    ["computes", found.each.map((each) => (each ? (each.quantized ? "integers" : `float: ${each.reason}`) : "no such node"))],
    ["fused into", found.each.map((each) => (each && each.fused_into) || "")],
    ...found.tensors.map((tensor) => [tensor.role === "bias" || tensor.role === "weight" ? tensor.role : `${tensor.role} ${shortened(tensor.tensor, 24)}`,
      tensor.each.map((made, at) => (made ? quantization(made, tensor.ratios[at]) : "not quantized"))]),
    ...(measured ? errorRows(node) : []),
  ].filter(([, cells]) => cells.some(Boolean));
  replace(panel, h("h3", {}, found.name),
    h("p", {class: "chips"}, h("span", {class: "chip"}, found.op_type),
      found.differs.length ? found.differs.map((kind) => h("span", {class: "chip integer"}, word(kind))) : h("span", {class: "chip"}, "the same in all")),
    h("div", {class: "scroll"}, h("table", {class: "plain compared"}, head(["", ...names]),
      h("tbody", {}, rows.map(([name, cells]) => h("tr", {}, h("th", {scope: "row"}, name),
        cells.map((cell) => h("td", {class: cell === cells[0] ? null : "other"}, cell || DASH))))))));
}

function quantization(made, scaled) {
  const both = ([low, high], text) => (low === high ? signed(text(low)) : `${signed(text(low))} \u2026 ${signed(text(high))}`);
  const parts = [`${made.bits} bits, codes ${both(made.codes, String)}`,
    `scale ${both(made.scale, (each) => number(each, 5))}${scaled && scaled !== 1 ? ` (${number(scaled)} \u00d7)` : ""}${made.channels > 1 ? `, ${made.channels} channels` : ""}`,
    `zero point ${both(made.zero_point, String)}`, made.method];
  return parts.filter(Boolean).join("; ");
}

function errorRows(node) {
  const of = (figure) => errors.map((layers) => {
    const layer = layers.get(keyOf(node));
    return layer ? decibels(figure(layer)) : "";
  });
  return [["error by itself", of((layer) => layer.own)], ["of that, weights", of((layer) => layer.weights)],
    ["of that, activations", of((layer) => layer.activations)],
    ["accumulated", of((layer) => layer.accumulated.sqnr_db)], ["cost to the outputs", of((layer) => (layer.alone === null ? undefined : layer.alone))]];
}

/* ---- tables ---- */

function head(headings) { return h("thead", {}, h("tr", {}, headings.map(textHead))); }

function figuresTable() {
  const {headings, rows} = tables.figures;
  return h("div", {class: "scroll"}, h("table", {class: "plain compared"}, head(headings),
    h("tbody", {}, rows.map(([name, ...cells]) => h("tr", {}, h("th", {scope: "row"}, name),
      cells.map((cell) => h("td", {class: cell === cells[0] ? null : "other"}, cell)))))));
}

/* ---- charts ---- */

/* What is drawn of each result: a row of the table of figures, its number, and the float model's. */
const DRAWN = [
  {row: "top-1", of: ({measured: m}) => m && m.top1 && m.top1[1], float: ({measured: m}) => m && m.top1 && m.top1[0]},
  {row: "agreement", of: ({measured: m}) => m && m.agreement, most: 100},
  {row: "size", of: ({bytes}) => bytes, float: (result) => result.float_bytes},
  {row: "latency", of: ({measured: m}) => m && m.latency_ms && m.latency_ms[1], float: ({measured: m}) => m && m.latency_ms && m.latency_ms[0]},
];

/* Bars of what can be compared at a glance; a line is the float model. */
function figureCharts() {
  const charts = DRAWN.map(({row, of, float = () => null, most = 0}) => {
    const cells = tables.figures.rows.find(([name]) => name === row);
    const numbers = results.map(of), floats = results.map(float);
    const known = [...numbers, ...floats].filter((value) => typeof value === "number");
    if (!cells || !numbers.some((value) => typeof value === "number")) return null;
    const top = Math.max(most, ...known) || 1;
    return h("figure", {class: "bar-chart"}, h("figcaption", {}, row),
      h("table", {class: "bars"}, h("tbody", {}, results.map((result, at) => h("tr", {},
        h("th", {scope: "row", title: result.name}, shortened(result.name, 24)),
        h("td", {class: "meter"}, typeof numbers[at] === "number" && bar([[numbers[at] / top, "kept"]], typeof floats[at] === "number" ? floats[at] / top : null)),
        numberCell(cells[at + 1]))))));
  }).filter(Boolean);
  const isMarked = results.some((result) => DRAWN.some(({float}) => float && typeof float(result) === "number"));
  return charts.length > 0 && [h("div", {class: "bar-charts"}, charts), isMarked && h("p", {class: "caption"}, "A line across a bar is the float model.")];
}

/* Of many rows the first are shown: the filter finds the others. */
const MOST_ROWS = 500;

/* A table of texts; its first column may name nodes. */
function textTable(id, {headings, rows}, linked) {
  const columns = headings.map((name, at) => ({name, compare: (a, b) => asNumbers(a[at], b[at]),
    cell: (cells) => (linked && at === 0 ? link(cells[0]) : cells[at])}));
  return sortable(columns, rows, {
    id, hint: "Any text", kind: "texts", noun: "row", most: MOST_ROWS,
    matches: (cells, wanted) => cells.join("\n").toLowerCase().includes(wanted),
  });
}

/* By the numbers that two texts begin with, or else as texts. */
function asNumbers(one, other) {
  const [x, y] = [parseFloat(one), parseFloat(other)];
  return Number.isNaN(x) || Number.isNaN(y) ? ordered(one, other) : x - y;
}

function decisionsSection() {
  const differs = comparison.nodes.filter((node) => node.differs.length).length;
  const said = differs ? `${whole(differs)} of ${plural(comparison.nodes.length, "node")} differ.` : `The same in all ${whole(comparison.nodes.length)} nodes.`;
  return section("decisions", "Decisions", h("p", {class: "quiet"}, said),
    tables.decisions.rows.length > 0 && textTable("decisions", tables.decisions, false),
    tables.scales.rows.length > 0 && [h("h3", {}, "Scales and zero points"), textTable("scales", tables.scales, true)]);
}

function layersSection() {
  if (!measured) return null;
  return section("layers", "Layers", h("p", {class: "quiet"}, tables.layers.rows.length ? `${tables.layers.title}.` : "The errors of layers by themselves are the same."),
    tables.layers.rows.length > 0 && textTable("layers", tables.layers, true));
}

fillPage({title: `Comparison of ${names.join(", ")}`, skip: "To the networks", version: page.intact}, [
  section("summary", "Summary", figureCharts(), figuresTable(), comparison.remarks.map((line) => h("p", {class: "remark"}, line))),
  networkSection(), decisionsSection(), layersSection(),
]);

const start = comparison.nodes.find((node) => node.differs.length) || comparison.nodes[0];
if (start) {
  const at = networks.findIndex((network) => network.nodes.some((node) => keyOf(node) === keyOf(start)));
  graphs[at].select(networks[at].nodes.findIndex((node) => keyOf(node) === keyOf(start)));
}
