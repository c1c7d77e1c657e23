/* What the pages are made of: the frame, sections, controls, tables, and the colours of nodes. */

/* ---- the page ---- */

function section(id, title, ...content) {
  return h("section", {id, "aria-labelledby": `${id}-title`}, h("h2", {id: `${id}-title`}, title), content);
}

/* Fill the page: {title, lead, skip, version} and its sections, of which some may be missing. */
function fillPage({title, lead, skip, version}, sections) {
  const there = sections.filter(Boolean);
  const links = there.map((each) => h("li", {}, h("a", {href: `#${each.id}`}, each.querySelector("h2").textContent)));
  replace(document.getElementById("page"),
    h("a", {class: "skip", href: "#network"}, skip),
    h("header", {}, h("p", {class: "mark-line"}, "intact"), h("h1", {}, title), lead,
      h("nav", {"aria-label": "Sections"}, h("ul", {}, links))),
    h("main", {}, there),
    h("footer", {}, `Written by intact ${version}. Nothing on this page is fetched.`));
}

function control(name, input) {
  return h("span", {class: "control"}, h("label", {for: input.id}, name), input);
}

function choiceOf(id, entries, onchange) {
  return h("select", {id, onchange: (event) => onchange(event.target.value)},
    entries.map(([value, name]) => h("option", {value}, name)));
}

/* A field that finds nodes by name, with the list of the names. */
function nameField(names, onfind) {
  return [
    control("Find", h("input", {id: "find", type: "search", list: "names", placeholder: "Name of a node",
      onchange: (event) => onfind(nameLike(event.target.value, names))})),
    h("datalist", {id: "names"}, names.map((name) => h("option", {value: name}))),
  ];
}

/* The name that a text means: that name, or the first that has the text in it. */
function nameLike(text, names) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return undefined;
  return names.find((name) => name.toLowerCase() === wanted) || names.find((name) => name.toLowerCase().includes(wanted));
}

/* ---- tables ---- */

function numberHead(text) { return h("th", {scope: "col", class: "number"}, text); }

function numberCell(text) { return h("td", {class: "number"}, text); }

function textHead(text) { return h("th", {scope: "col"}, text); }

/* A table with a filter, sorted by the column that is clicked.

   columns  {name, title, number, falls, compare(a, b), cell(row)}; the first names the row
   rows     anything that columns and matches know
   options  id, hint (of the filter), kind (class of the table), noun (a row), matches(row, text),
            more (controls; each has to call update()), most (rows that are shown, the first) */
function sortable(columns, rows, {id, hint, kind, noun, matches, more = () => null, most = Infinity}) {
  const body = h("tbody"), count = h("p", {class: "quiet", role: "status"}), drawn = new Map();
  const text = h("input", {id: `${id}-filter`, type: "search", placeholder: hint, oninput: () => update()});
  const order = {column: null, up: true};
  const heads = columns.map((column) => h("th", {scope: "col", class: column.number ? "number" : null, "aria-sort": "none", title: column.title},
    h("button", {type: "button", onclick: () => sortBy(column)}, column.name)));

  function sortBy(column) {
    order.up = order.column === column ? !order.up : !column.falls;
    order.column = column;
    heads.forEach((head, i) => head.setAttribute("aria-sort", columns[i] !== column ? "none" : order.up ? "ascending" : "descending"));
    update();
  }

  function row(each) {
    if (!drawn.has(each)) {
      const [name, ...others] = columns;
      drawn.set(each, h("tr", {}, h("th", {scope: "row"}, name.cell(each)),
        others.map(({cell, number: isNumber}) => h("td", {class: isNumber ? "number" : null}, cell(each)))));
    }
    return drawn.get(each);
  }

  function update() {
    const wanted = text.value.trim().toLowerCase();
    const kept = rows.filter((each) => matches(each, wanted));
    if (order.column) kept.sort((a, b) => (order.up ? 1 : -1) * order.column.compare(a, b));
    const visible = kept.slice(0, most);
    replace(body, visible.map(row));
    replace(count, `${whole(visible.length)} of ${plural(rows.length, noun)}`);
  }

  const controls = h("div", {class: "controls"}, control("Filter", text), more(() => update()), count);
  update();
  return [controls, h("div", {class: "scroll tall", tabindex: 0, role: "region", "aria-label": `Table of ${id}`},
    h("table", {class: `plain sorted ${kind}`}, h("thead", {}, h("tr", {}, heads)), body))];
}

function ordered(one, other) { return one < other ? -1 : one > other ? 1 : 0; }

/* ---- nodes ---- */

function precision(node) {
  if (node.kind === "stored") return `w${node.weight_bits}`;
  if (node.kind !== "integer") return node.kind === "float" ? floatType(node) : "";
  return node.weight_bits ? `w${node.weight_bits} a${node.bits || "?"}` : `a${node.bits || "?"}`;
}

function floatType(node) { return node.half ? "float16" : "float"; }

function shapeText(shape) { return shape && shape.length ? shape.join("\u00d7") : ""; }

/* What is written on an input or an output of the model, and said of it. */
function terminalText(node) {
  const [end] = node.ends;
  return [node.kind, shapeText(end.shape), `${node.kind} of the model: ${node.name}`];
}

function isTerminal(node) { return node.kind === "input" || node.kind === "output"; }

/* ---- colours ---- */

/* Entries of legends: a colour and what it means. */
const ERROR_LEGEND = [...BANDS.map(([, colour], i) => [colour, BAND_NAMES[i]]), ["none", "not measured"]];
const BITS_LEGEND = [["b32", "float"], ["b16", "9\u201316"], ["b8", "8"], ["b6", "5\u20137"], ["b4", "4"], ["b2", "2\u20133"], ["none", "none"]];
const PRECISION_LEGEND = [["integer", "integer"], ["stored", "integer weights, float operator"], ["half", "float16"], ["float", "float"]];

/* Colours of nodes that follow from the nodes themselves. */
const OWN_COLOURS = {
  weights: {name: "bits of weights", of: (node) => bitsBand(node.weight_bits), legend: BITS_LEGEND},
  activations: {name: "bits of activations", of: (node) => bitsBand(node.kind === "float" ? (node.half ? 16 : 32) : node.bits), legend: BITS_LEGEND},
  precision: {name: "precision", of: (node) => node.half && node.kind === "float" ? "half" : node.kind, legend: PRECISION_LEGEND},
};

/* Colours by errors of layers: of finds a node's, its figure is that of a layer. */
function errorColours(of) {
  const colour = (name, figure) => ({name, errors: true, legend: ERROR_LEGEND, of: (node, at) => {
    const errors = of(node, at);
    return errors ? bandOf(errors[figure]) : "none";
  }});
  return {
    own: colour("error of each layer by itself", "own"),
    accumulated: colour("error accumulated up to a layer", "accumulated"),
    alone: colour("cost to the outputs of a layer alone", "alone"),
  };
}

function bitsBand(bits) {
  if (!bits) return "none";
  return bits >= 32 ? "b32" : bits > 8 ? "b16" : bits === 8 ? "b8" : bits > 4 ? "b6" : bits === 4 ? "b4" : "b2";
}

function legendOf(entries) {
  return entries.map(([colour, text]) => h("li", {}, h("i", {"data-colour": colour}), text));
}
