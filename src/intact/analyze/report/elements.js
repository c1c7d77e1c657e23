"use strict";
/* Elements, numbers as text, and what the other scripts share. Text is only ever set as text. */

const SVG = "http://www.w3.org/2000/svg";

/* Make an HTML element: h("p", {class: "quiet"}, "text", other). */
function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/* Make an SVG element. */
function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
}

/* ---- numbers ---- */

const MINUS = "\u2212", DASH = "\u2013", SPACE = "\u202f";

function number(value, digits = 4) {
  if (value === null || value === undefined) return DASH;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e9 && Number.isInteger(value)) return signed(whole(value));
  if (size >= 1e6 || size < 1e-3) {
    const [head, power] = value.toExponential(Math.max(0, digits - 2)).split("e");
    return signed(`${head.replace(/\.?0+$/, "")}e${Number(power)}`);
  }
  return signed(String(Number(value.toPrecision(digits))));
}

function signed(text) { return text.replace(/-/g, MINUS); }

function whole(value) { return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, SPACE); }

function fixed(value, digits) {
  return value === null || value === undefined ? DASH : signed(value.toFixed(digits));
}

/* Signal to noise: null is without noise. */
function decibels(value) {
  if (value === undefined) return DASH;
  return value === null ? "exact" : `${fixed(value, 1)} dB`;
}

function percent(share) {
  if (share === null || share === undefined) return DASH;
  const value = 100 * share;
  if (value === 0) return "0 %";
  return value < 0.01 ? "< 0.01 %" : `${value.toPrecision(value >= 10 ? 3 : 2)} %`;
}

function plural(count, noun) { return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`; }

/* The end of a name says more than its beginning. */
function shortened(name, most) {
  return name.length <= most ? name : `\u2026${name.slice(name.length - most + 1)}`;
}

/* ---- colours: a class for each band, so that light, dark and print have their own ---- */

const BANDS = [[40, "e1"], [30, "e2"], [20, "e3"], [15, "e4"], [10, "e5"], [-Infinity, "e6"]];
const BAND_NAMES = ["\u2265 40 dB", "30\u201340", "20\u201330", "15\u201320", "10\u201315", "< 10 dB"];

function bandOf(value) {
  if (value === undefined) return "none";
  if (value === null) return "e1";
  return BANDS.find(([least]) => value >= least)[1];
}
