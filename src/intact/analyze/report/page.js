/* The page of a report: its sections, in their order, from the figures that the page holds. */

const report = JSON.parse(document.getElementById("report").textContent);
const {summary, network} = report;
const tensors = new Map((network.tensors || []).map((tensor) => [tensor.name, tensor]));
const findings = report.findings || [];
const timed = Boolean(report.accuracy && report.accuracy.kernels_ms);
const layers = collected();

/* Layers: chains of nodes that are fused have one; other nodes are one each. */
function collected() {
  const found = [], byIndex = new Map();
  network.nodes.forEach((node, index) => {
    if (isTerminal(node)) return;
    const head = byIndex.get(node.layer);
    if (head) {
      head.members.push(index);
      return;
    }
    const layer = {index, node, errors: node.errors, members: [index]};
    byIndex.set(index, layer);
    found.push(layer);
  });
  for (const layer of found) {
    const nodes = layer.members.map((index) => network.nodes[index]);
    layer.title = layer.node.name;
    layer.op = nodes.map((node) => node.op).join(" + ");
    layer.bits = precision(layer.node);
    const last = nodes[nodes.length - 1];
    const output = (last.ends || []).find((end) => end.slot.startsWith("output"));
    layer.tensor = output && tensors.get(output.tensor);
    layer.clipped = layer.tensor && layer.tensor.clipped;
    layer.findings = nodes.flatMap((node) => node.findings || []);
  }
  return found;
}

function errorsOf(node) {
  return node.layer === undefined ? undefined : network.nodes[node.layer].errors;
}

/* ---- summary ---- */

function summarySection() {
  const verdict = report.verdict && h("p", {class: `verdict ${report.verdict.judgement}`}, report.verdict.sentence);
  const boxes = (report.boxes || []).map(([name, value, note]) => h("div", {class: "figure"},
    h("dt", {}, name), h("dd", {}, value), note && h("p", {}, note)));
  const caption = report.caption && h("p", {class: "caption"}, report.caption);
  return section("summary", "Summary", verdict, h("dl", {class: "figures"}, boxes), caption, floatList(), verificationTable(), remarks());
}

function floatList() {
  const groups = report.floats || [];
  if (!groups.length) return h("p", {class: "quiet"}, "Every node computes with integers.");
  return [h("h3", {}, "What is float, and why"), h("ul", {class: "reasons"}, groups.map(({reason, nodes}) => h("li", {},
    h("p", {}, h("b", {}, plural(nodes.length, "node")), " ", reason),
    h("p", {class: "names"}, shown(nodes, 12)))))];
}

function shown(indices, most) {
  const links = indices.slice(0, most).map((index) => [nodeLink(index), " "]);
  return [links, indices.length > most && `and ${whole(indices.length - most)} more`];
}

function nodeLink(index, most = 48) {
  const node = network.nodes[index];
  return h("button", {type: "button", class: "link", title: node.name, onclick: () => reveal(index)}, shortened(node.name, most));
}

function verificationTable() {
  const rows = report.verified || [];
  if (!rows.length) return null;
  const head = ["Deployed as", "Runtime"].map(textHead);
  const numbers = ["Tensors", "Values", "Differ", "Most, steps", "Same class"].map(numberHead);
  return [h("h3", {}, "Verification"),
    h("p", {class: "quiet"}, "The deployed model in its runtime against the integers of the plan, each tensor from the runtime\u2019s own inputs."),
    h("div", {class: "scroll"}, h("table", {class: "plain"}, h("thead", {}, h("tr", {}, head, numbers)),
      h("tbody", {}, rows.map(verifiedRow)))),
    rows.flatMap((row) => row.remarks || []).map((line) => h("p", {class: "remark"}, line))];
}

function verifiedRow(row) {
  const name = h("th", {scope: "row"}, row.format);
  if (row.refused) return h("tr", {}, name, h("td", {colspan: 6}, row.refused));
  return h("tr", {}, name, h("td", {title: row.cpu}, row.runtime),
    numberCell(row.ends ? `${row.tensors} of ${row.ends}` : String(row.tensors || 0)),
    numberCell(whole(row.values || 0)), numberCell(row.differ ? whole(row.differ) : "none"),
    numberCell(number(row.largest || 0)),
    numberCell(row.end_to_end === undefined ? DASH : `${fixed(row.end_to_end, 2)} %`));
}

function remarks() {
  const lines = [...((report.accuracy && report.accuracy.remarks) || []), ...(report.notes || [])];
  const missing = Object.entries(report.left_out || {}).map(([part, why]) => `Without ${part}: ${why}`);
  return [...lines, ...missing].map((line) => h("p", {class: "remark"}, line));
}

/* ---- network ---- */

/* The part that a layer takes of the time of all kernels; undefined where it is not known. */
function share(node) {
  const head = node.layer === undefined ? node : network.nodes[node.layer];
  return timed && head.time_ms !== undefined ? head.time_ms / report.accuracy.kernels_ms : undefined;
}

const TIMES = [[0.1, "e6", "\u2265 10 % of the time"], [0.05, "e5", "5\u201310"], [0.03, "e4", "3\u20135"],
  [0.02, "e3", "2\u20133"], [0.01, "e2", "1\u20132"], [0, "e1", "< 1 %"]];

function timeBand(part) { return part === undefined ? "none" : TIMES.find(([least]) => part >= least)[1]; }

const TIME_LEGEND = [...TIMES.map(([, colour, name]) => [colour, name]), ["none", "not known, or part of another"]];

/* The part of a layer in the cost of all; undefined where it was not measured. */
const allNoise = layers.reduce((sum, {errors}) => sum + noiseOf(errors), 0);

function costShare(errors) {
  if (!errors || errors.alone === undefined || !allNoise) return undefined;
  return noiseOf(errors) / allNoise;
}

const {precision: byPrecision, ...byBits} = OWN_COLOURS;
const {alone: byLevel, ...byErrors} = errorColours(errorsOf);
const byCost = {name: "cost to the outputs", of: (node) => costBand(costShare(errorsOf(node))), legend: COST_LEGEND};
const COLOURS = {
  ...(report.samples ? {...(allNoise ? {cost: byCost} : {alone: byLevel}), ...byErrors} : {}),
  ...byBits,
  ...(timed ? {time: {name: "time of each kernel", of: (node) => timeBand(share(node)), legend: TIME_LEGEND}} : {}),
  precision: byPrecision,
};

const graph = drawGraph(network, {name: `Network of ${summary.model}, ${plural(summary.nodes, "node")}; arrow keys go from node to node`,
  text: describe, onselect: (index) => details(index)});
const panel = h("aside", {class: "panel", "aria-live": "polite", "aria-label": "Details of the selected node"});
const legendPlace = h("ul", {class: "legend", "aria-label": "Colours"});

function describe(node) {
  if (isTerminal(node)) return terminalText(node);
  const errors = errorsOf(node), own = errors ? `, ${decibels(errors.own)}` : "";
  const spoken = node.kind === "integer" ? precision(node).replace("w", "weights of ").replace("a", "activations of ") + " bits" : node.kind === "float" ? floatType(node) : node.kind;
  return [node.op, precision(node), `${node.name}, ${node.op}, ${spoken}${own}`];
}

function networkSection() {
  const names = Object.entries(COLOURS).map(([name, {name: text}]) => [name, text]);
  paint(names[0][0]);
  const worst = layers.filter(({errors}) => errors && errors.own !== null).sort((a, b) => a.errors.own - b.errors.own)[0];
  const costly = layers.filter(({errors}) => costShare(errors)).sort((a, b) => costShare(b.errors) - costShare(a.errors))[0];
  const start = findings.map((finding) => network.nodes.findIndex((node) => node.name === finding.node)).find((i) => i >= 0);
  const chosen = start !== undefined ? start : costly ? costly.index : worst ? worst.index : network.nodes.findIndex((node) => node.ends && node.kind !== "input");
  if (chosen >= 0) graph.select(chosen);
  return section("network", "Network",
    h("div", {class: "controls"}, control("Colour", choiceOf("colour", names, paint)),
      nameField(network.nodes.map((node) => node.name), find)),
    legendPlace, h("div", {class: "split"}, graph.element, panel));
}

function paint(name) {
  graph.paint(COLOURS[name].of);
  replace(legendPlace, legendOf(COLOURS[name].legend));
}

function find(name) {
  if (name !== undefined) graph.select(network.nodes.findIndex((node) => node.name === name));
}

function reveal(index) {
  document.getElementById("network").scrollIntoView({block: "start"});
  graph.select(index);
}

/* ---- one node ---- */

function details(index) {
  const node = network.nodes[index];
  const layer = layers.find((each) => each.members.includes(index));
  const errors = errorsOf(node);
  const mine = (layer ? layer.findings : node.findings) || [];
  replace(panel,
    h("h3", {}, node.name),
    h("p", {class: "chips"}, h("span", {class: "chip"}, node.op), h("span", {class: `chip ${node.kind}`}, node.kind === "stored" ? "integer weights" : node.kind === "float" ? floatType(node) : node.kind),
      node.kind === "integer" && h("span", {class: "chip"}, bitsText(node)), node.weights && h("span", {class: "chip"}, plural(node.weights, "weight"))),
    node.reason && h("p", {class: "quiet"}, `${node.kind === "integer" ? "Integer" : "Float"}: ${node.reason}.`),
    node.given && h("p", {class: "quiet given"}, `In the given model: ${node.given.join(", ")}.`),
    layer && layer.members.length > 1 && h("p", {class: "quiet"}, "Fused: ", layer.members.map((each, i) => [i ? " \u2192 " : "", each === index ? node.name : nodeLink(each)])),
    mine.map((each) => findingBlock(findings[each], false)),
    (node.notes || []).map((note) => h("p", {class: "remark"}, note)),
    share(node) !== undefined && h("p", {class: "quiet"}, `Time: ${milliseconds(network.nodes[node.layer === undefined ? index : node.layer])} of a batch of ${report.accuracy.batch}, ${percent(share(node))} of all kernels.`),
    errors && errorsBlock(errors),
    distributions(node),
    node.weight && [h("h4", {}, `Weights by channel: float (thin) and quantized (wide)`), channelRanges(node.weight),
      h("h4", {}, "Signal to noise of each channel of the weight, dB"), channelErrors(node.weight.sqnr_db, node.weight.count, "Signal to noise")],
    errors && errors.channels && errors.channels.length > 1 && [h("h4", {}, "Signal to noise of each channel of the result, dB"),
      channelErrors(errors.channels, node.weight ? node.weight.count : errors.channels.length, "Signal to noise")],
    endsTable(node));
}

function bitsText(node) {
  const parts = [];
  if (node.weight_bits) parts.push(`${node.weight_bits}-bit weights`);
  if (node.bits) parts.push(`${node.bits}-bit activations`);
  return parts.join(", ");
}

function errorsBlock(errors) {
  const rows = [
    ["by itself", errors.own, "on what the float model computes before it"],
    ["of that, weights", errors.weights, "only weights and bias quantized"],
    ["of that, activations", errors.activations, "what quantizing inputs and result adds"],
    ["accumulated", errors.accumulated, "in the quantized model, with all layers before"],
    ["cost to the outputs", errors.alone, "the outputs, where this layer alone is quantized"],
  ].filter(([, value]) => value !== undefined);
  return [h("h4", {}, "Error, as signal to noise"), h("table", {class: "errors"}, h("tbody", {}, rows.map(([name, value, meaning]) => h("tr", {title: meaning},
    h("th", {scope: "row"}, name), h("td", {class: "meter"}, meter(value)), numberCell(decibels(value))))))];
}

function meter(value) {
  const share = value === null ? 100 : Math.max(2, Math.min(100, value / 60 * 100));
  return s("svg", {class: "bar-cell", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true"},
    s("rect", {class: "track", width: 100, height: 6}), s("rect", {class: "dot", "data-colour": bandOf(value), width: share, height: 6}));
}

function distributions(node) {
  const seen = new Set();
  const ends = (node.ends || []).filter(({slot}) => slot !== "weight" && slot !== "bias");
  const results = ends.filter(({slot}) => slot.startsWith("output"));
  return [...results, ...ends.filter((end) => !results.includes(end))].map((end) => {
    const tensor = tensors.get(end.tensor);
    if (!tensor || !tensor.histogram || seen.has(end.tensor)) return null;
    seen.add(end.tensor);
    return [h("h4", {}, `Values of the ${end.slot}`), histogram(tensor), h("p", {class: "caption"}, caption(tensor))];
  });
}

function caption(tensor) {
  const {low, high, mean, deviation, zeros, values} = tensor.histogram;
  const parts = [`${whole(values)} values from ${number(low)} to ${number(high)}, mean ${number(mean)}, deviation ${number(deviation)}`];
  if (zeros) parts.push(`${percent(zeros)} are 0`);
  if (tensor.low !== undefined) parts.push(`codes from ${number(tensor.low)} to ${number(tensor.high)}, ${percent(tensor.clipped || 0)} clipped`);
  return `${parts.join("; ")}. Heights are logarithmic.`;
}

function endsTable(node) {
  const ends = node.ends || [];
  if (!ends.length) return null;
  return [h("h4", {}, "Configurations"), h("div", {class: "scroll"}, h("table", {class: "plain ends"},
    h("thead", {}, h("tr", {}, ["End", "Tensor"].map(textHead),
      ["Bits", "Codes", "Scale", "Zero point"].map(numberHead), textHead("State"))),
    h("tbody", {}, ends.map((end) => h("tr", {}, h("th", {scope: "row"}, end.slot),
      h("td", {title: end.tensor}, h("span", {class: "name"}, shortened(end.tensor, 26)), end.shape && end.shape.length ? h("small", {}, ` ${shapeText(end.shape)}`) : null),
      numberCell(end.bits || DASH), numberCell(end.codes && end.bits <= 16 ? span(end.codes, String) : DASH),
      numberCell(end.scale ? [span(end.scale, (each) => number(each, 5)), end.channels > 1 && h("small", {}, ` ${end.channels} channels`), end.logarithmic && h("small", {}, " logarithmic")] : DASH),
      numberCell(end.zero_point ? span(end.zero_point, String) : DASH),
      h("td", {title: end.shares ? `scale of ${end.shares}` : end.method}, end.state || DASH, end.shares && h("small", {}, ` as ${shortened(end.shares, 26)}`))))))) ];
}

function span(values, text) { return values.map((value) => signed(text(value))).join(" \u2026 "); }

/* ---- layers ---- */

const COLUMNS = [
  {name: "Layer", key: ({title}) => title, cell: layerCell},
  {name: "Operator", key: ({op}) => op, cell: ({op}) => op},
  {name: "Bits", key: ({bits}) => bits, cell: ({bits}) => bits},
  {name: "By itself", title: "Signal to noise of the layer by itself", key: ({errors}) => rank(errors && errors.own), cell: ({errors}) => tinted(errors, "own"), number: true},
  {name: "Accumulated", title: "Signal to noise in the quantized model", key: ({errors}) => rank(errors && errors.accumulated), cell: ({errors}) => tinted(errors, "accumulated"), number: true},
  {name: "To the outputs", title: "Signal to noise of the outputs where this layer alone is quantized", key: ({errors}) => rank(errors && errors.alone), cell: ({errors}) => tinted(errors, "alone"), number: true},
  {name: "Clipped", title: "Part of the result\u2019s values outside of its codes", key: ({clipped}) => (clipped === undefined ? -1 : clipped), cell: ({clipped}) => percent(clipped), number: true, falls: true},
  ...(timed ? [{name: "Time", title: "What its kernel takes of a batch", key: ({node}) => node.time_ms || 0, cell: ({node}) => milliseconds(node), number: true, falls: true}] : []),
  {name: "Weights", key: ({node}) => node.weights || 0, cell: ({node}) => (node.weights ? whole(node.weights) : DASH), number: true, falls: true},
].map((column) => ({...column, compare: (a, b) => ordered(column.key(a), column.key(b))}));

function layerCell({index, findings: mine}) {
  return [nodeLink(index, 34), mine.length > 0 && h("span", {class: "flag", title: "the diagnosis names it"}, " \u25cf")];
}

function milliseconds(node) { return node.time_ms === undefined ? DASH : `${fixed(node.time_ms, 2)} ms`; }

function rank(value) { return value === undefined ? Infinity : value === null ? 1e9 : value; }

function tinted(errors, which) {
  if (!errors || errors[which] === undefined) return DASH;
  return h("span", {class: "tint", "data-colour": bandOf(errors[which])}, decibels(errors[which]));
}

/* Which layers a choice shows. */
const SHOWN = {
  all: () => true,
  integer: ({node}) => node.kind === "integer",
  float: ({node}) => node.kind !== "integer",
  "with a finding": ({findings: mine}) => mine.length > 0,
  "below 20 dB by itself": ({errors}) => errors && errors.own !== null && errors.own < 20,
};

function layersSection() {
  const measured = layers.filter(({errors}) => errors);
  let kind = "all";
  const table = sortable(COLUMNS, layers, {
    id: "layers", hint: "Name or operator", kind: "layers", noun: "layer",
    matches: (layer, wanted) => `${layer.title} ${layer.op}`.toLowerCase().includes(wanted) && SHOWN[kind](layer),
    more: (update) => control("Show", choiceOf("kind", Object.keys(SHOWN).map((name) => [name, name]), (chosen) => {
      kind = chosen;
      update();
    })),
  });
  return section("layers", "Layers",
    costBars(layers, ({errors}) => costShare(errors) || 0, ({index}) => nodeLink(index, 34)),
    measured.length ? [h("h3", {}, "Error along the network"), h("p", {class: "quiet"}, "Signal to noise along the network, dB: a dot for each layer by itself, the line for what has accumulated. Lower is worse."),
      profile(measured, (index) => reveal(index))] : null,
    table);
}

/* ---- diagnosis, improvements, search, training, provenance ---- */

function findingBlock(finding, linked = true) {
  const index = network.nodes.findIndex((node) => node.name === finding.node);
  return h("div", {class: "finding"},
    h("p", {}, h("b", {}, finding.cause.replaceAll("_", " ")), linked && index >= 0 ? [" at ", nodeLink(index)] : null, `: ${finding.meaning}.`),
    h("p", {class: "quiet"}, finding.evidence),
    finding.remedy && (finding.remedy.startsWith("intact ") ? code(finding.remedy) : h("p", {}, `Remedy: ${finding.remedy}`)),
    finding.gain !== undefined && finding.gain !== null && h("p", {}, `Measured gain: ${finding.gain > 0 ? "+" : ""}${fixed(finding.gain, 1)} ${finding.unit || "dB"}`));
}

function diagnosisSection() {
  if (report.findings === undefined) return null;
  return section("diagnosis", "Diagnosis", findings.length ? h("ol", {class: "findings"}, findings.map((each) => h("li", {}, findingBlock(each))))
    : h("p", {class: "quiet"}, `Nothing wrong was found${report.drawn ? ", on inputs that are drawn: with data of yours more is looked at" : ""}.`));
}

function improvementsSection() {
  const rows = report.improvements || [];
  if (!rows.length) return null;
  return section("improvements", "Improvements", h("div", {class: "scroll"}, h("table", {class: "plain"},
    h("thead", {}, h("tr", {}, textHead("Pass"), numberHead("Before"), numberHead("After"), textHead("Kept"))),
    h("tbody", {}, rows.map((row) => h("tr", {}, h("th", {scope: "row"}, row.name), numberCell(decibels(row.before)), numberCell(decibels(row.after)), h("td", {}, row.kept ? "yes" : "no")))))));
}

function searchSection() {
  const {search} = report;
  if (!search) return null;
  const goal = [];
  if (search.min_score !== undefined) goal.push(`${search.objective} of at least ${number(search.min_score, 5)}`);
  if (search.max_cost !== undefined) goal.push(`${search.cost} of at most ${number(search.max_cost, 5)}`);
  const known = (search.trials || []).some(([, cost, score]) => cost !== null && score !== null);
  const told = search.log
    ? `${plural(search.count, "trial")} by ${search.sampler}; ${search.objective} on ${plural(search.samples, "sample")}, `
      + `${search.cost} as the cost${goal.length ? `; wanted: ${goal.join(", ")}` : ""}.`
    : "Its log is not beside the result: --log names it.";
  const marks = [search.best !== undefined && ["mark best", `taken: trial ${search.best}`],
    ["mark front", "no trial is better and cheaper"], ["mark", "others"], ["mark stopped", "stopped early"]].filter(Boolean);
  return section("search", "Search", h("p", {class: "quiet"}, `Found by ${search.found}. ${told}`),
    known && [
      h("h3", {}, "Score and cost"), markLegend(marks), trialPlane(search),
      h("h3", {}, `The walk: ${search.objective}`), walk(search, 2, search.objective),
      h("h3", {}, `The walk: ${search.cost}`), walk(search, 1, search.cost),
    ]);
}

function markLegend(marks) {
  return h("ul", {class: "legend"}, marks.map(([mark, text]) => h("li", {}, mark && h("i", {class: mark}), text)));
}

function trainingSection() {
  const {training} = report;
  if (!training) return null;
  const epochs = training.epochs || [], scored = epochs.some((epoch) => epoch[3] !== null);
  const missing = epochs.length ? "" : " The log of its epochs is not beside the result.";
  const marks = [["curve-mark", "training"], ["curve-mark held", "held out"],
    training.best !== undefined && ["", `large dot: epoch ${training.best}, which was taken`]].filter(Boolean);
  const losses = [{index: 1, kind: "own"}, {index: 2, kind: "held"}];
  return section("training", "Training", h("p", {class: "quiet"}, `Learned ${training.how}.${missing}`),
    epochs.length > 1 && [
      h("h3", {}, "Loss"), markLegend(marks), curves("Loss of each epoch", epochs, losses, training.best),
      scored && [h("h3", {}, "Right on what is held out, %"),
        curves("Percent right of each epoch", epochs, [{index: 3, kind: "held"}], training.best)],
    ]);
}

function provenanceSection() {
  const rows = Object.entries({deployed: summary.deployed, formats: summary.formats, ...report.provenance, intact: report.intact})
    .filter(([, value]) => value !== "" && value !== undefined);
  return section("recipe", "Provenance and recipe",
    report.command && [h("h3", {}, "To make it again"), code(report.command)],
    report.recipe && [h("h3", {}, "Recipe"), code(report.recipe)],
    h("h3", {}, "Provenance"), h("div", {class: "scroll"}, h("table", {class: "plain facts"}, h("tbody", {}, rows.map(([name, value]) => h("tr", {},
      h("th", {scope: "row"}, name.replaceAll("_", " ")), h("td", {}, plain(value))))))));
}

function plain(value) {
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (value && typeof value === "object") return Object.entries(value).map(([name, each]) => `${name} ${plain(each)}`).join(", ");
  return String(value);
}

function code(text) {
  const copy = h("button", {type: "button", class: "copy", onclick: () => copied(copy, text)}, "Copy");
  // No line ends inside of a flag.
  const words = text.replace(/\n$/, "").split(/(\s+)/).map((word) => (word.startsWith("--") ? h("span", {class: "word"}, word) : word));
  return h("div", {class: "code"}, h("pre", {tabindex: 0}, words), copy);
}

function copied(button, text) {
  const done = () => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const select = () => {
    const range = document.createRange();
    range.selectNodeContents(button.previousSibling);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, select);
  else select();
}

/* ---- the page ---- */

const calibrated = summary.samples ? `, calibrated on ${plural(summary.samples, "sample")}` : "";
fillPage({
  title: summary.model,
  lead: h("p", {class: "lead"}, `Quantized for ${summary.target}${calibrated}${summary.method ? ` (${summary.method})` : ""}${summary.source ? `; ${summary.source}` : ""}.`,
    report.accuracy ? ` Run by ${report.accuracy.runtime}.` : ""),
  skip: "To the network",
  version: report.intact,
}, [summarySection(), diagnosisSection(), picturesSection(report.pictures), networkSection(), layersSection(), improvementsSection(), searchSection(), trainingSection(), provenanceSection()]);
