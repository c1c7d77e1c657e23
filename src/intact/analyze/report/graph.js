/* A graph that is looked at: pan, zoom, a map of the whole, keys, selection.

   drawGraph(network, {name, text, onselect}) returns a graph:
     element              what goes into the page
     paint(classOf)       gives each node a class for its colour, by index
     select(index, quiet) selects a node and brings it into view; quiet tells nobody
     view, look(view)     what is seen: {x, y, k}, the centre in pixels of the drawing and the scale
     onview               called with the view after the user moved it
   selectTogether(graphs, keyOf) returns, for each of several graphs, what selects in the others. */

const NODE = {width: 156, height: 40};
const LEAST_SCALE = 0.02, MOST_SCALE = 3, FAR = 0.42;

function drawGraph(network, options) {
  const {nodes, edges} = network;
  const sources = nodes.map(() => []), readers = nodes.map(() => []);
  for (const [source, reader] of edges) {
    readers[source].push(reader);
    sources[reader].push(source);
  }
  const boxes = nodes.map((node, index) => drawnNode(node, index));
  const lines = edges.map((edge) => s("path", {class: "edge", d: route(nodes, edge)}));
  const scene = s("g", {}, s("g", {"aria-hidden": "true"}, lines), s("g", {}, boxes));
  const canvas = s("svg", {class: "canvas", role: "group", "aria-label": options.name}, scene);
  const dots = nodes.map((node) => onMap(node, network));
  const frame = s("rect", {class: "frame"});
  const map = s("svg", {
    class: "map", viewBox: `0 0 ${network.width} ${network.height}`, "aria-hidden": "true",
  }, dots, frame);
  const tools = h("div", {class: "tools"},
    tool("+", "Zoom in", () => zoom(1.4)), tool("\u2212", "Zoom out", () => zoom(1 / 1.4)),
    tool("\u2922", "Show the whole network", () => told(whole_())));
  const element = h("div", {class: "graph"}, canvas, map, tools);
  const graph = {element, network, paint, select, look, onview: null, selected: null, view: {x: 0, y: 0, k: 1}};
  let current = 0, size = null, begun = false;

  function drawnNode(node, index) {
    const [title, detail, spoken] = options.text(node);
    const x = node.x - NODE.width / 2, y = node.y - NODE.height / 2;
    const end = node.kind === "input" || node.kind === "output";
    return s("g", {class: `node ${node.kind}`, transform: `translate(${x} ${y})`, role: "button",
      tabindex: index ? -1 : 0, "aria-label": spoken, "data-index": index},
    s("rect", {width: NODE.width, height: NODE.height, rx: end ? NODE.height / 2 : 5}),
    s("text", {x: 10, y: 17, class: "op"}, shortened(title, roomFor(detail))),
    s("text", {x: NODE.width - 10, y: 17, class: "width"}, detail),
    s("text", {x: 10, y: 31, class: "name"}, shortened(node.name, 22)),
    s("title", {}, spoken));
  }

  function paint(classOf) {
    nodes.forEach((node, index) => {
      const found = classOf(node, index);
      boxes[index].dataset.colour = found;
      dots[index].dataset.colour = found;
    });
  }

  /* ---- what is seen ---- */

  function measured() {
    const box = canvas.getBoundingClientRect();
    size = {width: box.width || 600, height: box.height || 500};
    return size;
  }

  function look(view) {
    const {width, height} = size || measured();
    const k = Math.min(MOST_SCALE, Math.max(LEAST_SCALE, view.k));
    const x = inside(view.x, network.width, width / k), y = inside(view.y, network.height, height / k);
    graph.view = {x, y, k};
    scene.setAttribute("transform", `translate(${width / 2 - k * x} ${height / 2 - k * y}) scale(${k})`);
    canvas.classList.toggle("far", k < FAR);
    for (const [name, value] of Object.entries({
      x: x - width / k / 2, y: y - height / k / 2, width: width / k, height: height / k,
    })) frame.setAttribute(name, value);
  }

  function told(view) {
    look(view);
    if (graph.onview) graph.onview(graph.view);
  }

  /* The centre may move as long as the drawing fills what is seen; what is smaller is centred. */
  function inside(centre, whole, seen) {
    if (whole <= seen) return whole / 2;
    return Math.min(whole - seen / 2, Math.max(seen / 2, centre));
  }

  function whole_() {
    const {width, height} = measured();
    const k = Math.min(1, width / network.width, height / network.height);
    return {x: network.width / 2, y: network.height / 2, k};
  }

  function first() {
    const {width, height} = measured();
    const k = Math.max(Math.min(1, width / network.width), Math.min(1, height / network.height), 0.6);
    const top = nodes.length ? nodes[0].x : 0;
    return {x: top, y: 0, k};
  }

  function zoom(factor, at) {
    const {x, y, k} = graph.view;
    const next = Math.min(MOST_SCALE, Math.max(LEAST_SCALE, k * factor));
    const {dx, dy} = at || {dx: 0, dy: 0};
    told({x: x + dx / k - dx / next, y: y + dy / k - dy / next, k: next});
  }

  function moved(dx, dy) {
    const before = graph.view;
    told({...before, x: before.x - dx / before.k, y: before.y - dy / before.k});
    return graph.view.x !== before.x || graph.view.y !== before.y;
  }

  function fromCentre(event) {
    const box = canvas.getBoundingClientRect();
    return {dx: event.clientX - box.left - box.width / 2, dy: event.clientY - box.top - box.height / 2};
  }

  /* ---- selection ---- */

  function select(index, quiet = false) {
    const node = nodes[index];
    if (!node) return;
    if (graph.selected !== null) boxes[graph.selected].classList.remove("selected");
    boxes[current].setAttribute("tabindex", -1);
    boxes[index].setAttribute("tabindex", 0);
    boxes[index].classList.add("selected");
    boxes[index].parentNode.append(boxes[index]);
    graph.selected = current = index;
    const near = new Set(edges.flatMap(([a, b], i) => a === index || b === index ? [i] : []));
    lines.forEach((line, i) => line.classList.toggle("near", near.has(i)));
    if (!begun) graph.view = {...graph.view, x: node.x, y: node.y};
    else bring(node);
    if (!quiet && options.onselect) options.onselect(index);
  }

  function bring(node) {
    const {width, height} = size || measured(), {x, y, k} = graph.view;
    const hidden = Math.abs(node.x - x) > width / k / 2 - NODE.width / 2
      || Math.abs(node.y - y) > height / k / 2 - NODE.height;
    if (hidden || k < FAR) told({x: node.x, y: node.y, k: Math.max(k, 0.8)});
  }

  function beside(index, step) {
    const from = nodes[index];
    const row = nodes.map((node, i) => [node, i])
      .filter(([node, i]) => i !== index && Math.abs(node.y - from.y) < 2 && step * (node.x - from.x) > 0)
      .sort(([a], [b]) => step * (a.x - b.x));
    return row.length ? row[0][1] : undefined;
  }

  const KEYS = {
    ArrowDown: () => readers[current][0], ArrowUp: () => sources[current][0],
    ArrowRight: () => beside(current, 1), ArrowLeft: () => beside(current, -1),
    Home: () => 0, End: () => nodes.length - 1,
    Enter: () => current, " ": () => current,
  };

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") zoom(1.4);
    else if (event.key === "-") zoom(1 / 1.4);
    else if (event.key === "0") told(whole_());
    else if (KEYS[event.key]) {
      const next = KEYS[event.key]();
      if (next !== undefined) {
        select(next);
        boxes[next].focus({preventScroll: true});
      }
    } else return;
    event.preventDefault();
  });

  /* ---- pointers ---- */

  const pointers = new Map();
  let dragged = 0;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    pointers.set(event.pointerId, event);
    dragged = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
    if (pointers.size === 2) {
      const other = [...pointers.values()].find((each) => each.pointerId !== event.pointerId);
      const spread = (each) => Math.hypot(each.clientX - other.clientX, each.clientY - other.clientY);
      const middle = {clientX: (event.clientX + other.clientX) / 2, clientY: (event.clientY + other.clientY) / 2};
      zoom(spread(event) / Math.max(1, spread(before)), fromCentre(middle));
      dragged = 9;
    } else {
      dragged += Math.abs(dx) + Math.abs(dy);
      if (dragged > 4) {
        canvas.setPointerCapture(event.pointerId);
        canvas.classList.add("dragging");
        moved(dx, dy);
      }
    }
    pointers.set(event.pointerId, event);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => {
      pointers.delete(event.pointerId);
      if (!pointers.size) canvas.classList.remove("dragging");
    });
  }
  canvas.addEventListener("click", (event) => {
    const box = event.target.closest(".node");
    if (box && dragged <= 4) select(Number(box.dataset.index));
  });
  /* The wheel moves along the network, and the page at its ends; with Ctrl, or two fingers, it zooms. */
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      zoom(Math.exp(-event.deltaY / 240), fromCentre(event));
      event.preventDefault();
    } else if (moved(-event.deltaX, -event.deltaY)) event.preventDefault();
  }, {passive: false});

  function jump(event) {
    const box = map.getBoundingClientRect();
    const k = Math.min(box.width / network.width, box.height / network.height);
    told({
      ...graph.view,
      x: network.width / 2 + (event.clientX - box.left - box.width / 2) / k,
      y: network.height / 2 + (event.clientY - box.top - box.height / 2) / k,
    });
  }
  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    jump(event);
  });
  map.addEventListener("pointermove", (event) => {
    if (map.hasPointerCapture(event.pointerId)) jump(event);
  });

  new ResizeObserver(() => {
    measured();
    if (begun || !canvas.isConnected) look(graph.view);
    else {
      begun = true;
      look(graph.selected === null ? first() : graph.view);
    }
  }).observe(canvas);
  return graph;
}

function tool(sign, name, act) {
  return h("button", {type: "button", "aria-label": name, title: name, onclick: act}, sign);
}

/* Letters of a title that fit beside what stands at its right. */
function roomFor(detail) { return Math.floor((NODE.width - 26 - 6 * detail.length) / 7.2); }

/* A node on the map: as large as it is, but large enough to be seen. */
function onMap(node, network) {
  const pixel = Math.max(network.width / 64, network.height / 640);
  const width = Math.max(NODE.width, 5 * pixel), height = Math.max(NODE.height + 12, 2 * pixel);
  return s("rect", {x: node.x - width / 2, y: node.y - height / 2, width, height});
}

/* A line from the lower side of a node to the upper side of another, smooth at each bend. */
function route(nodes, [source, reader, bends]) {
  const from = nodes[source], to = nodes[reader];
  const points = [[from.x, from.y + NODE.height / 2]];
  for (let i = 0; bends && i < bends.length; i += 2) points.push([bends[i], bends[i + 1]]);
  points.push([to.x, to.y - NODE.height / 2]);
  let path = `M${points[0]}`;
  for (let i = 1; i < points.length; i += 1) {
    const [x, y] = points[i], [left, top] = points[i - 1];
    path += left === x ? `V${y}` : `C${left},${(y + top) / 2} ${x},${(y + top) / 2} ${x},${y}`;
  }
  return path;
}

/* For each graph a function that selects in the others what has the key of one of its nodes. */
function selectTogether(graphs, keyOf) {
  const indices = graphs.map((graph) => new Map(graph.network.nodes.map((node, i) => [keyOf(node), i])));
  return graphs.map((graph, own) => (index) => graphs.forEach((other, i) => {
    const found = indices[i].get(keyOf(graph.network.nodes[index]));
    if (i !== own && found !== undefined) other.select(found, true);
  }));
}
