/* Charts: small drawings of figures. Each is a function of the width that it has. */

/* Draw a chart, and again whenever its place gets another width. */
function chart(name, draw, attributes) {
  const place = h("div", {class: "chart", ...attributes});
  let before = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (!width || width === before) return;
    before = width;
    const drawing = draw(width);
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", name);
    place.replaceChildren(drawing);
  }).observe(place);
  return place;
}

function drawing(width, height, ...children) {
  return s("svg", {width, height, viewBox: `0 0 ${width} ${height}`}, children);
}

/* A scale from values to pixels, with round ticks, at least so far apart. */
function linear(low, high, start, end, count = 5, least = 0) {
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough));
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    ticks.push(Number((i * step).toPrecision(12)));
  }
  const scale = (value) => start + (value - low) / (high - low) * (end - start);
  return Object.assign(scale, {ticks, low, high});
}

/* A scale of what is counted: of trials, epochs, channels. */
function counting(low, high, start, end, count) { return linear(low, high, start, end, count, 1); }

/* A scale of values that are there: whole ticks where all of them are whole. */
function spanning(values, start, end, count) {
  return linear(Math.min(...values), Math.max(...values), start, end, count, values.every(Number.isInteger) ? 1 : 0);
}

function horizontalAxis(scale, y, format = number) {
  return s("g", {class: "axis"}, scale.ticks.map((tick) => s("text", {
    x: scale(tick), y: y + 14, "text-anchor": "middle",
  }, format(tick))));
}

function verticalAxis(scale, left, right, format = number) {
  return s("g", {class: "axis"}, scale.ticks.map((tick) => [
    s("line", {x1: left, x2: right, y1: scale(tick), y2: scale(tick), class: "rule"}),
    s("text", {x: left - 6, y: scale(tick) + 4, "text-anchor": "end"}, format(tick)),
  ]));
}

/* Values that calibration observed; heights are logarithmic, so that single values are seen too. */
function histogram(tensor) {
  const {low, high, bins} = tensor.histogram;
  const bounded = tensor.low !== undefined && tensor.high !== undefined;
  const name = `Distribution of ${tensor.name}: ${number(low)} to ${number(high)}`
    + (bounded ? `, codes from ${number(tensor.low)} to ${number(tensor.high)}` : "");
  return chart(name, (width) => {
    const height = 132, bottom = height - 20, top = 14;
    const least = bounded ? Math.min(low, tensor.low) : low, most = bounded ? Math.max(high, tensor.high) : high;
    const x = linear(least, most, 4, width - 4, width < 360 ? 4 : 6);
    const tall = Math.log10(1 + Math.max(...bins));
    const step = (high - low) / bins.length;
    const bars = bins.map((count, i) => {
      if (!count) return null;
      const from = low + i * step, to = from + step, middle = (from + to) / 2;
      const outside = bounded && (middle < tensor.low || middle > tensor.high);
      const size = Math.max(1.5, (bottom - top) * Math.log10(1 + count) / tall);
      const left = step ? x(from) : x(low) - 2, right = step ? x(to) : x(low) + 2;
      return s("rect", {class: outside ? "bar clipped" : "bar", x: left + 0.25, y: bottom - size,
        width: Math.max(1, right - left - 0.5), height: size});
    });
    const marks = bounded ? [tensor.low, tensor.high].map((value) => s("line", {
      class: "threshold", x1: x(value), x2: x(value), y1: 2, y2: bottom,
    })) : [];
    return drawing(width, height, bars, marks,
      s("line", {class: "base", x1: 0, x2: width, y1: bottom, y2: bottom}), horizontalAxis(x, bottom));
  });
}

/* The range of each channel of a weight, before (thin) and after (thick) quantization. */
function channelRanges(weight) {
  const entries = weight.low.length, unit = weight.unit;
  const name = `Ranges of ${weight.count} channels before and after quantization`;
  return chart(name, (width) => {
    const height = 132, left = 52, bottom = height - 20, top = 6;
    const low = unit * Math.min(...weight.low, ...weight.quantized_low, 0);
    const high = unit * Math.max(...weight.high, ...weight.quantized_high, 0);
    const y = linear(low, high, bottom, top, 4);
    const x = counting(0, weight.count, left, width - 4, width < 360 ? 4 : 8);
    const each = (width - 4 - left) / entries;
    const columns = weight.low.map((_, i) => {
      const middle = left + (i + 0.5) * each;
      const line = (from, to, kind, size) => s("line", {class: kind, x1: middle, x2: middle,
        y1: y(unit * from), y2: y(unit * to) - 0.5, "stroke-width": size});
      return [
        line(weight.quantized_low[i], weight.quantized_high[i], "quantized", Math.max(1, Math.min(9, each * 0.8))),
        line(weight.low[i], weight.high[i], "float", Math.max(0.6, Math.min(2, each * 0.25))),
      ];
    });
    return drawing(width, height, verticalAxis(y, left, width), columns, horizontalAxis(x, bottom));
  });
}

/* One number of each channel, in decibels. */
function channelErrors(values, count, what) {
  return chart(`${what} of ${count} channels, dB`, (width) => {
    const height = 92, left = 52, bottom = height - 20, top = 6;
    const known = values.filter((value) => value !== null);
    if (!known.length) return drawing(width, 20, s("text", {x: 0, y: 14, class: "note"}, "all exact"));
    const y = linear(Math.min(0, ...known), Math.max(...known), bottom, top, 3);
    const x = counting(0, count, left, width - 4, width < 360 ? 4 : 8);
    const each = (width - 4 - left) / values.length;
    const bars = values.map((value, i) => s("rect", {
      class: "dot", "data-colour": bandOf(value), x: left + i * each + each * 0.1, width: Math.max(0.8, each * 0.8),
      y: value === null ? top : y(value), height: Math.max(1, bottom - (value === null ? top : y(value))),
    }));
    return drawing(width, height, verticalAxis(y, left, width), bars, horizontalAxis(x, bottom));
  });
}

/* Errors along the network: a line for what adds up, a dot for each layer by itself. */
function profile(layers, onselect) {
  const name = `Signal to noise of ${layers.length} layers, in their order`;
  return chart(name, (width) => {
    const height = 190, left = 52, bottom = height - 22, top = 8;
    const values = layers.flatMap(({errors}) => [errors.own, errors.accumulated])
      .filter((value) => value !== null && value !== undefined);
    const y = linear(Math.min(0, ...values), Math.max(50, ...values), bottom, top, 5);
    const x = counting(0, Math.max(1, layers.length - 1), left + 8, width - 10, width < 500 ? 4 : 10);
    const at = (value) => y(value === null || value === undefined ? y.high : value);
    const line = layers.map(({errors}, i) => `${i ? "L" : "M"}${x(i).toFixed(1)},${at(errors.accumulated).toFixed(1)}`);
    const radius = Math.max(2, Math.min(4, (width - left) / layers.length / 2));
    const dots = layers.map(({errors, index, title}, i) => s("circle", {
      class: "dot", "data-colour": bandOf(errors.own), cx: x(i), cy: at(errors.own), r: radius,
      onclick: () => onselect(index),
    }, s("title", {}, `${title}: ${decibels(errors.own)} by itself, ${decibels(errors.accumulated)} accumulated`)));
    return drawing(width, height, verticalAxis(y, left, width), s("path", {class: "line", d: line.join("")}),
      dots, horizontalAxis(x, bottom, (tick) => String(tick + 1)));
  });
}

/* All trials of a search by cost and score, with the front. */
function trialPlane(search) {
  const known = search.trials.filter(([, cost, score]) => cost !== null && score !== null);
  const name = `Score and cost of ${known.length} trials`;
  return chart(name, (width) => {
    const height = 260, left = 60, bottom = height - 38, top = 10;
    const costs = known.map(([, cost]) => cost), scores = known.map(([, , score]) => score);
    const x = spanning(costs, left + 8, width - 12, width < 500 ? 4 : 8);
    const y = spanning(scores, bottom - 6, top + 4, 5);
    const front = known.filter(([, , , , isFront]) => isFront).sort((a, b) => a[1] - b[1]);
    const path = front.map(([, cost, score], i) => (i ? `H${x(cost)}V${y(score)}` : `M${x(cost)},${y(score)}`));
    const marks = known.map(([number_, cost, score, isComplete, isFront]) => s("circle", {
      class: `trial${isComplete ? "" : " stopped"}${isFront ? " front" : ""}${number_ === search.best ? " best" : ""}`,
      cx: x(cost), cy: y(score), r: number_ === search.best ? 6 : 3.2,
    }, s("title", {}, `trial ${number_}: ${search.objective} ${number(score, 5)}, ${search.cost} ${number(cost, 5)}`)));
    const limit = search.min_score === undefined || search.min_score < y.low || search.min_score > y.high ? null
      : s("line", {class: "limit", x1: left, x2: width, y1: y(search.min_score), y2: y(search.min_score)});
    return drawing(width, height, verticalAxis(y, left, width), limit,
      s("path", {class: "line front", d: path.join("")}), marks, horizontalAxis(x, bottom),
      s("text", {class: "label", x: width - 4, y: height - 4, "text-anchor": "end"}, `cost: ${search.cost}`));
  });
}

/* How a search went: the score and the cost of the trials, in their order. */
function walk(search, index, what) {
  const rows = search.trials.filter((trial) => trial[index] !== null);
  return chart(`${what} of the trials in their order`, (width) => {
    const height = 150, left = 60, bottom = height - 22, top = 8;
    const values = rows.map((trial) => trial[index]);
    const x = counting(0, Math.max(1, search.count - 1), left + 6, width - 10, width < 500 ? 4 : 8);
    const y = spanning(values, bottom - 4, top + 2, 4);
    const marks = rows.map((trial) => s("circle", {
      class: `trial${trial[3] ? "" : " stopped"}${trial[4] ? " front" : ""}${trial[0] === search.best ? " best" : ""}`,
      cx: x(trial[0]), cy: y(trial[index]), r: trial[0] === search.best ? 5 : 2.4,
    }, s("title", {}, `trial ${trial[0]}: ${number(trial[index], 5)}`)));
    return drawing(width, height, verticalAxis(y, left, width), marks, horizontalAxis(x, bottom));
  });
}

/* Curves over the epochs of a training. */
function curves(name, epochs, series, best) {
  return chart(name, (width) => {
    const height = 190, left = 60, bottom = height - 22, top = 10;
    const values = series.flatMap(({index}) => epochs.map((epoch) => epoch[index])).filter((value) => value !== null);
    const x = counting(0, Math.max(1, epochs[epochs.length - 1][0]), left + 6, width - 12, Math.min(10, epochs.length));
    const y = spanning(values, bottom - 4, top, 4);
    const lines = series.map(({index, kind}) => {
      const known = epochs.filter((epoch) => epoch[index] !== null);
      const path = known.map((epoch, i) => `${i ? "L" : "M"}${x(epoch[0])},${y(epoch[index])}`);
      return s("g", {class: `curve ${kind}`}, s("path", {class: "line", d: path.join("")}),
        known.map((epoch) => s("circle", {cx: x(epoch[0]), cy: y(epoch[index]), r: epoch[0] === best ? 4.5 : 2.4},
          s("title", {}, `epoch ${epoch[0]}: ${number(epoch[index])}`))));
    });
    return drawing(width, height, verticalAxis(y, left, width), lines, horizontalAxis(x, bottom));
  });
}
