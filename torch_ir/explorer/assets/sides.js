// A training step: forward at the left, and backward and the update beside it, with what backward reads drawn across.

const SIDES = new Set(["backward", "optimizer"]); // paths of the parts at the right
const ALLEY = 64; // pixels between the sides

// The names of the boxes at the right; none for graphs that are not training steps.
function boxesBeside(item, level) {
  const beside = new Set();
  if (item.kind !== "graph" || item.graph.callers.length) return beside;
  level.items.forEach((inner, at) => {
    if (SIDES.has((inner.isNode ? inner.module : inner.path).split(".")[0])) beside.add(`i${at}`);
  });
  if (beside.size === level.items.length) return new Set();
  for (const { from, to } of level.links) if (beside.has(from) && to.startsWith("out")) beside.add(to);
  return beside;
}

function isAcross(beside, { from, to }) {
  return beside.has(to) && !beside.has(from);
}

// Move the boxes at the right beside all others, once both are laid out.
function movedBeside(graph, beside) {
  if (!beside.size) return;
  const right = (name) => graph.node(name).x + graph.node(name).width / 2;
  const left = (name) => graph.node(name).x - graph.node(name).width / 2;
  const others = graph.nodes().filter((name) => !beside.has(name));
  const by = Math.max(...others.map(right)) + ALLEY - Math.min(...[...beside].map(left));
  for (const name of beside) graph.node(name).x += by;
  for (const { v, w } of graph.edges()) {
    if (beside.has(v) && beside.has(w)) for (const point of graph.edge(v, w).points) point.x += by;
  }
}

// A link across: from the right of a box to the left of another.
function pathAcross(source, target, place) {
  const [x, y] = [source.x + source.w, source.y + source.h / 2];
  const stop = { x: target.x, y: target.y + Math.min(target.h - 6, 8 + 7 * place) };
  const middle = (x + stop.x) / 2;
  const ends = [x, y, middle, stop.x, stop.y].map(Math.round);
  return `M${ends[0]} ${ends[1]}C${ends[2]} ${ends[1]} ${ends[2]} ${ends[4]} ${ends[3]} ${ends[4]}`;
}
