// Where everything goes. Each level is laid out on its own, by dagre; levels of one form and size share their layout.

const BOX = { pad: 10, most: 264, line: 15, head: 30, gap: 14, port: 18, tag: 16, sheets: 6 };
const TURN = 116; // pixels for the name of the part of a run that is drawn, with a button at each side
const shapes = new Map();

// The shape of a closed box, of which only the size counts.
function closedShape(item, tags) {
  const lines = linesOf(item);
  const wide = lines.map(
    ([left, leftFont, right]) => widthOf(left, leftFont) + (right ? 10 + widthOf(right, "plain") : 0),
  );
  const marks = canOpen(item) ? 16 : 0;
  const w = Math.min(BOX.most, Math.max(64, ...wide) + 2 * BOX.pad + marks);
  const h = lines.length * BOX.line + 12;
  const lead = item.kind === "run" ? BOX.sheets : 0;
  const top = lead + (tags.length ? BOX.tag : 0);
  return known(`box ${w} ${h} ${top} ${lead}`, () => ({ w, h: h + top, top, lead }));
}

// The lines of a closed box: text, font, and what stands at the right.
function linesOf(item) {
  if (!item.isNode)
    return [
      [titleOf(item), "title", item.class],
      [sizeText(item), "plain", ""],
    ];
  const name = item.module && item.module !== item.parent.path ? lastName(item.module, item.parent.path) : "";
  const lines = [[item.label, "title", name]];
  if (item.outputs.length) lines.push([outputText(item), "code", cutText(item.outputs[0])]);
  const weights = item.inputs.filter((tensor) => tensor.isFixed && tensor.shape !== "scalar");
  if (weights.length && !item.calls.length) lines.push([weightText(item), "code", ""]);
  return lines;
}

function titleOf(item) {
  if (item.isNode) return item.label;
  return item.kind === "run" ? `${item.name}  ×${item.items.length}` : item.name || item.class || "graph";
}

function sizeText(group) {
  const { flops, sent } = group.work;
  const parts = [plural(group.nodes.length, "op")];
  if (flops && typeof flops === "number") parts.push(scaled(flops, "FLOPs"));
  if (sent && typeof sent === "number") parts.push(`${scaled(sent, "B")} sent`);
  return parts.join(" · ");
}

// How a tensor is cut among ranks, or of which sum it is a term; nothing where each rank has all of it.
function cutText(tensor) {
  const parts = tensor.placement.split(", ");
  return parts.filter((part) => !part.endsWith("replicate")).join(", ");
}

function outputText(node) {
  const more = node.outputs.length > 1 ? ` +${node.outputs.length - 1}` : "";
  return `${shapeText(node.outputs[0])}${more}`;
}

function weightText(node) {
  const at = node.inputs.findIndex((tensor) => tensor.isFixed);
  return `${node.args[at]} ${shapeText(node.inputs[at])}`;
}

function known(key, make) {
  if (!shapes.has(key)) shapes.set(key, Object.assign(make(), { id: shapes.size }));
  return shapes.get(key);
}

// The shape of a level whose items have these shapes.
function levelShape(item, level, inner) {
  const owner = item.isNode
    ? item.calls.map((call) => call.graph?.id).join()
    : item.form < 0
      ? item.key
      : `f${item.form}`;
  const sizes = inner.map((shape) => shape.id).join(); // the wiring of one form differs where one's reader is hidden
  const key = `${item.graph.id} ${owner} ${item.isNode} ${sizes} ${level.wiring}`;
  return known(key, () => arranged(item, level, inner));
}

function arranged(item, level, inner) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({
    nodesep: 22,
    edgesep: 12,
    ranksep: 24,
    ranker: inner.length > 150 ? "longest-path" : "network-simplex",
  });
  graph.setDefaultEdgeLabel(() => ({}));
  inner.forEach((shape, at) => graph.setNode(`i${at}`, { width: shape.w, height: shape.h }));
  level.ins.forEach((port, at) => graph.setNode(`in${at}`, { width: portWidth(item, port), height: BOX.port }));
  level.outs.forEach((port, at) => graph.setNode(`out${at}`, { width: portWidth(item, port), height: BOX.port }));
  const beside = boxesBeside(item, level);
  for (const link of level.links) if (!isAcross(beside, link)) graph.setEdge(link.from, link.to, { weight: 1 });
  const isEntry = item.kind === "graph" && !item.graph.callers.length;
  if (!isEntry) drawToFoot(graph, level.outs);
  dagre.layout(graph);
  graph.removeNode("foot");
  movedBeside(graph, beside);
  return placed(graph, level, inner, exitsOf(level, inner));
}

// Values leave a frame at its foot, where their links go on.
function drawToFoot(graph, outs) {
  graph.setNode("foot", { width: 0, height: 0 });
  outs.forEach((port, at) => graph.setEdge(`out${at}`, "foot", { weight: 8 }));
}

// For each link, how far from the left of an open box its value leaves it; nothing where that is all the same.
function exitsOf(level, inner) {
  return level.links.map(({ from, tensors }) => {
    const at = /^i\d/.test(from) ? +from.slice(1) : -1;
    const outs = inner[at]?.outs ?? [];
    const item = level.items[at];
    if (outs.length < 2 || item.isNode || item.kind === "run") return undefined; // the last two show another's ports
    const port = outs[levelOf(item).outs.findIndex((bundle) => bundle.includes(tensors[0]))];
    return port && port.x + port.w / 2;
  });
}

function portWidth(item, port) {
  return Math.min(210, widthOf(portText(item, port), "code") + 14);
}

// Inputs and outputs of a graph are labelled with their names, values between modules with their shapes.
function portText(item, [tensor, ...others]) {
  const isWhole = item.isNode || item.kind === "graph";
  if (others.length) return `${tensor.name} and ${others.length} more`;
  if (isWhole && tensor.updates.length && !tensor.isOutput) return `updates ${tensor.updates.join(", ")}`;
  return isWhole ? `${tensor.name} ${shapeText(tensor)}` : shapeText(tensor);
}

function placed(graph, level, inner, exits) {
  const boxes = new Map(graph.nodes().map((name) => [name, cornered(graph.node(name))]));
  const left = Math.min(0, ...[...boxes.values()].map((box) => box.x));
  const top = Math.min(...[...boxes.values()].map((box) => box.y), Infinity);
  for (const box of boxes.values()) Object.assign(box, { x: box.x - left + BOX.gap, y: box.y - top + BOX.head + 4 });
  const shift = { x: BOX.gap - left, y: BOX.head + 4 - top };
  const all = [...boxes.values()];
  return {
    w: Math.max(80, ...all.map((box) => box.x + box.w)) + BOX.gap,
    h: Math.max(BOX.head, ...all.map((box) => box.y + box.h)) + BOX.gap,
    top: 0,
    spots: inner.map((shape, at) => boxes.get(`i${at}`)),
    ins: level.ins.map((port, at) => boxes.get(`in${at}`)),
    outs: level.outs.map((port, at) => boxes.get(`out${at}`)),
    paths: routed(graph, level, boxes, inner, shift, exits),
  };
}

function cornered(node) {
  return { x: node.x - node.width / 2, y: node.y - node.height / 2, w: node.width, h: node.height };
}

// Links as curves that leave a box at its foot and enter at its head, side by side in the order in which they come.
function routed(graph, level, boxes, inner, shift, exits) {
  const bands = bandsOf(graph, shift);
  const bends = level.links.map(({ from, to }) => {
    const points = graph.edge(from, to)?.points.slice(1, -1) ?? [];
    return points.length < 2 ? [] : points.flatMap((point) => straight(bands, point.x + shift.x, point.y + shift.y));
  });
  const starts = ends(level.links, "from", boxes, (at) => bends[at][0] ?? middleOf(boxes.get(level.links[at].to)));
  const stops = ends(level.links, "to", boxes, (at) => bends[at].at(-1) ?? middleOf(boxes.get(level.links[at].from)));
  const head = (name) => (/^i\d/.test(name) ? inner[+name.slice(1)].top - (inner[+name.slice(1)].lead ?? 0) : 0);
  const across = new Map();
  return level.links.map(({ from, to }, at) => {
    const [source, target] = [boxes.get(from), boxes.get(to)];
    if (!graph.hasEdge(from, to)) {
      across.set(to, (across.get(to) ?? -1) + 1);
      return pathAcross(source, target, across.get(to));
    }
    const start = { x: exits[at] === undefined ? starts[at] : source.x + exits[at], y: source.y + source.h };
    const stop = { x: stops[at], y: target.y + head(to) };
    const below = { x: start.x, y: bands.get(graph.node(from).rank).bottom };
    const above = { x: stop.x, y: bands.get(graph.node(to).rank).top };
    return curve(below.y < above.y ? [start, below, ...bends[at], above, stop] : [start, ...bends[at], stop]);
  });
}

// From where to where the boxes of each rank reach: between, links may bend; within, they must run straight.
function bandsOf(graph, shift) {
  const bands = new Map();
  for (const name of graph.nodes()) {
    const { rank, y, height } = graph.node(name);
    const band = bands.get(rank) ?? { top: Infinity, bottom: -Infinity };
    band.top = Math.min(band.top, y - height / 2 + shift.y);
    band.bottom = Math.max(band.bottom, y + height / 2 + shift.y);
    bands.set(rank, band);
  }
  return bands;
}

function straight(bands, x, y) {
  const band = [...bands.values()].find(({ top, bottom }) => top <= y && y <= bottom);
  return band
    ? [
        { x, y: band.top },
        { x, y: band.bottom },
      ]
    : [];
}

function middleOf(box) {
  return { x: box.x + box.w / 2, y: box.y + box.h / 2 };
}

function ends(links, end, boxes, towards) {
  const byBox = new Map();
  links.forEach((link, at) => byBox.set(link[end], [...(byBox.get(link[end]) ?? []), at]));
  const found = new Array(links.length);
  for (const [name, numbers] of byBox) {
    const box = boxes.get(name);
    const step = Math.min(16, (box.w - 16) / numbers.length);
    numbers.sort((one, other) => towards(one).x - towards(other).x);
    numbers.forEach((at, place) => (found[at] = box.x + box.w / 2 + (place - (numbers.length - 1) / 2) * step));
  }
  return found;
}

function curve(points) {
  const [first, ...others] = points.map(({ x, y }) => ({ x: Math.round(x), y: Math.round(y) }));
  let [path, from] = [`M${first.x} ${first.y}`, first];
  for (const to of others) {
    if (from.x === to.x && from.y === to.y) continue; // a line of no length would turn the tip of the arrow
    const middle = (from.y + to.y) / 2;
    path += from.x === to.x ? `V${to.y}` : `C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${to.y}`;
    from = to;
  }
  return path;
}
