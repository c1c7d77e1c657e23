/* Pictures of the data, and bars of what layers cost: what needs no graph. */

/* ---- samples ---- */

function picturesSection(pictures) {
  if (!pictures) return null;
  const {sheets = [], changed = 0, examples = [], classes = [], found = []} = pictures;
  return section("data", "Samples",
    changed > 0 && changedSamples(changed, examples),
    classes.length > 0 && losingClasses(classes, pictures.is_labelled),
    found.length > 0 && foundBoxes(found),
    sheets.map((sheet) => [h("h3", {}, `${sheet.title} as the model gets them`),
      h("p", {class: "quiet"}, `${sheet.told}.`),
      h("ul", {class: "sheet"}, sheet.pictures.map((each) => h("li", {}, picture(each))))]));
}

function picture({source, sample = 0}) {
  return h("img", {src: source, alt: `Sample ${sample + 1}`, title: `sample ${sample + 1}`});
}

/* Boxes of both models of a detector: float's drawn through, the quantized model's dashed on top. */
function foundBoxes(pictures) {
  return [h("h3", {}, "What both models find"),
    h("p", {class: "quiet"}, "Boxes with a score of 0.25 or more, at most the best 20 of each model; pictures on which the models differ come first. ",
      key("float", "float"), " ", key("quantized", "quantized")),
    h("ul", {class: "sheet boxed"}, pictures.map((each) => {
      const {boxes = [], lost = 0, added = 0} = each;
      const drawn = boxes.map(([isFloat, kind, score, left, top, right, bottom]) => s("rect", {
        class: isFloat ? "float" : "quantized", x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top), "vector-effect": "non-scaling-stroke"},
      s("title", {}, `${isFloat ? "float" : "quantized"}: class ${kind}, score ${fixed(score, 2)}`)));
      const counts = [true, false].map((isFloat) => boxes.filter((box) => box[0] === isFloat).length);
      const told = lost || added ? [lost && `${whole(lost)} not found again`, added && `${whole(added)} added`].filter(Boolean).join(", ") : "the same are found";
      return h("li", {class: lost || added ? "lost" : null},
        h("div", {class: "frame"}, picture(each), s("svg", {viewBox: "0 0 1 1", preserveAspectRatio: "none", role: "img", "aria-label": `${counts[0]} boxes of the float model, ${counts[1]} of the quantized one`}, drawn)),
        h("p", {}, `${whole(counts[0])} float, ${whole(counts[1])} quantized: ${told}`));
    }))];
}

function key(kind, name) {
  return h("span", {class: "key"}, s("svg", {viewBox: "0 0 24 12", "aria-hidden": "true"}, s("rect", {class: kind, x: 2, y: 2, width: 20, height: 8})), name);
}

function changedSamples(count, examples) {
  const some = examples.length < count ? `; ${examples.length} of them` : "";
  return [h("h3", {}, "Answers that change"),
    h("p", {class: "quiet"}, `The quantized model answers ${plural(count, "sample")} otherwise than the float model${some}${examples.some((each) => each.is_lost) ? ", first those that become wrong" : ""}.`),
    h("ul", {class: `sheet answers${examples.some(({before}) => before.length > 4) ? " named" : ""}`}, examples.map((each) => h("li", {class: each.is_lost ? "lost" : null}, picture(each),
      h("dl", {}, answer("label", each.label), answer("float", each.before), answer("quantized", each.after)))))];
}

function answer(name, value) {
  return value !== undefined && value !== null && [h("dt", {}, name), h("dd", {title: value}, value)];
}

function losingClasses(classes, isLabelled) {
  const of = isLabelled ? "Right answers by class; those that lose most." : "Of the samples that the float model gives a class, how many the quantized model does too; those that lose most.";
  const most = Math.max(...classes.map(([, samples]) => samples));
  return [h("h3", {}, "Classes that lose"), h("p", {class: "quiet"}, of),
    h("table", {class: "bars named"}, h("thead", {}, h("tr", {}, textHead("Class"), textHead(""), numberHead("Float"), numberHead("Quantized"), numberHead("Samples"))),
      h("tbody", {}, classes.map(([name, samples, before, after]) => h("tr", {}, h("th", {scope: "row", class: "cut", title: name}, name),
        h("td", {class: "meter"}, bar([[before / most, "lost"], [after / most, "kept"]])),
        numberCell(whole(before)), numberCell(whole(after)), numberCell(whole(samples))))))];
}

/* Bars from 0, one before the other: the shares of the width, and how each is drawn; a line at a share. */
function bar(parts, line = null) {
  return s("svg", {class: "bar-cell", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true"},
    s("rect", {class: "track", width: 100, height: 6}),
    parts.map(([share, kind]) => s("rect", {class: kind, width: Math.max(0, Math.min(100, 100 * share)), height: 6})),
    line !== null && s("rect", {class: "float-mark", x: Math.min(99.2, 100 * line - 0.4), width: 0.8, height: 6}));
}

/* ---- cost to the outputs ---- */

/* The noise that a layer alone makes in the output that loses most, as a part of that of all. */
function noiseOf(errors) {
  return errors && errors.alone !== undefined && errors.alone !== null ? 10 ** (-errors.alone / 10) : 0;
}

const COSTS = [[0.2, "e6", "\u2265 20 % of the cost"], [0.1, "e5", "10\u201320"], [0.05, "e4", "5\u201310"],
  [0.02, "e3", "2\u20135"], [0.005, "e2", "0.5\u20132"], [0, "e1", "less"]];
const COST_LEGEND = [...COSTS.map(([, colour, text]) => [colour, text]), ["none", "not measured"]];

function costBand(share) { return share === undefined ? "none" : COSTS.find(([least]) => share >= least)[1]; }

/* Bars of the layers that cost most; share finds the part of a layer, link makes its name. */
function costBars(layers, share, link) {
  const most = 16;
  const ranked = layers.filter((layer) => share(layer) > 0).sort((a, b) => share(b) - share(a));
  if (!ranked.length) return null;
  const shown = ranked.slice(0, most), left = ranked.slice(most);
  const rest = left.reduce((sum, layer) => sum + share(layer), 0);
  const top = share(ranked[0]);
  return [h("h3", {}, "Cost to the outputs"),
    h("p", {class: "quiet"}, "The noise that each layer alone makes in the outputs, as a part of the sum of all, and the outputs\u2019 signal to noise where it alone is quantized."),
    h("table", {class: "bars named"}, h("thead", {}, h("tr", {}, textHead("Layer"), textHead(""), numberHead("Cost"), numberHead("Alone"))),
      h("tbody", {}, shown.map((layer) => h("tr", {}, h("th", {scope: "row"}, link(layer)),
        h("td", {class: "meter"}, s("svg", {class: "bar-cell", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true"},
          s("rect", {class: "track", width: 100, height: 6}),
          s("rect", {class: "dot", "data-colour": costBand(share(layer)), width: 100 * share(layer) / top, height: 6}))),
        numberCell(percent(share(layer))), numberCell(decibels(layer.errors.alone)))),
        left.length > 0 && h("tr", {}, h("th", {scope: "row", class: "quiet"}, `${plural(left.length, "other layer")}`), h("td"), numberCell(percent(rest)), h("td"))))];
}
