// What colours mean: families of operators, or how much of the work a box does.

const FAMILIES = [
  "matmul",
  "attention",
  "normalisation",
  "activation",
  "elementwise",
  "reduction",
  "movement",
  "communication",
  "other",
];
const MODES = { family: "Op family", flops: "FLOPs", bytes: "Bytes moved", sent: "Bytes sent" };
const CHANGES = { added: "+", removed: "−", changed: "~", renamed: "→", "computed once": "1" };
const ALERTS = { placeholder: "!", decision: "?" };
const LEGEND = {
  placeholder: "placeholder: no lowering, or not seen by the capture",
  decision: "decision assumed at capture",
  added: "added",
  removed: "removed",
  changed: "changed",
  renamed: "renamed",
};

function amountIn(mode, work, side) {
  return mode === "bytes" ? side.weigh(work.read) + side.weigh(work.written) : side.weigh(work[mode]);
}

// The ways to colour these graphs; nothing is sent where nothing is sharded.
function modesFor(sides) {
  const isSharded = sides.some((side) => side.graphs.some((graph) => graph.root.work.sent));
  const amounts = Object.keys(MODES).filter((mode) => mode !== "sent" || isSharded);
  return [...amounts, ...sides[0].runtimes.map((runtime, at) => `error ${at}`)];
}

// The runtime whose errors a way to colour shows; nothing for the others.
function runtimeOf(mode, side) {
  return mode.startsWith("error ") ? side.runtimes[Number(mode.slice(6))] : undefined;
}

function modeText(mode, sides) {
  return MODES[mode] ?? `Error of ${runtimeOf(mode, sides[0]).name}`;
}

// Families of the operators inside, with their counts, most first.
function mixOf(item) {
  item.mix ??= counted(
    nodesOf(item).filter((node) => !node.isCheck),
    (node) => node.family,
  );
  return item.mix;
}

function counted(things, keyOf) {
  const counts = new Map();
  for (const thing of things) counts.set(keyOf(thing), (counts.get(keyOf(thing)) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]);
}

// The signs that a box carries: what it is, or what of it differs; of a closed group, what there is inside.
function signsOf(item) {
  item.signs ??= counted(
    nodesOf(item)
      .flatMap((node) => [node.kind, node.change])
      .filter((sign) => sign in ALERTS || sign in CHANGES),
    (sign) => sign,
  );
  return item.signs;
}

function legend(mode, sides, ...others) {
  const nodes = sides.flatMap((side) => side.graphs.flatMap((graph) => graph.nodes));
  const rows = mode === "family" ? familyRows(nodes) : [heatRow(mode, sides)];
  const signs = counted(
    nodes.flatMap((node) => [node.kind, node.change]),
    (sign) => sign,
  ).map(([sign]) => sign);
  const more = Object.keys(LEGEND).filter((sign) => signs.includes(sign));
  const unchanged = html("span", { class: "key unchanged" }, html("i", { class: "dashes" }), "passed on unchanged");
  const all = [...rows, ...more.map(signRow), unchanged, ...others];
  return html("div", { class: "legend", role: "group", "aria-label": "legend" }, all);
}

function familyRows(nodes) {
  const present = new Set(nodes.filter((node) => !isHidden(node)).map((node) => node.family));
  return FAMILIES.filter((family) => present.has(family)).map((family) =>
    html("span", { class: "key" }, html("i", { class: `swatch f-${family}` }), family),
  );
}

function heatRow(mode, sides) {
  const runtime = runtimeOf(mode, sides[0]);
  const most = runtime ? `${errorText(runtime.most)}, the largest finite error` : `most ${MODES[mode]} in view`;
  return html("span", { class: "key" }, "none", html("i", { class: "ramp" }), most);
}

function signRow(sign) {
  const mark = ALERTS[sign] ?? CHANGES[sign];
  return html("span", { class: "key" }, html("i", { class: `swatch s-${sign}` }, mark), LEGEND[sign]);
}
