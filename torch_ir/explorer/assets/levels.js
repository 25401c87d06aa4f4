// What is inside a thing that can be opened: its items, the values that come in and go out, and who reads what.

const MANY_READERS = 4; // a value with more readers than these is named at each of them, and drawn to the first alone
const MOST_PORTS = 6; // values that come in, or go out, at the same item
let levels = new WeakMap();

function forgetLevels() {
  levels = new WeakMap();
}

function canOpen(item) {
  return item.isNode ? item.calls.some((call) => call.graph) : item.items.length > 0;
}

function nodesOf(item) {
  return item.isNode ? [item] : item.nodes;
}

// The level that shows when an item is open; a run shows its first part for all, unless it is unfolded.
function levelOf(item) {
  if (!levels.has(item)) levels.set(item, item.isNode ? levelOfCalls(item) : levelOfGroup(item));
  return levels.get(item);
}

function levelOfCalls(node) {
  const bodies = node.calls.filter((call) => call.graph).map((call) => call.graph.root);
  if (bodies.length === 1) return levelOf(bodies[0]);
  return { items: bodies, ins: [], outs: [], links: [], wiring: "", tags: bodies.map(() => []) };
}

function levelOfGroup(group) {
  const items = group.items.filter((item) => !isHidden(item));
  const owners = new Map(items.flatMap((item, at) => shownNodes(item).map((node) => [node, at])));
  const isEntry = group.kind === "graph" && !group.graph.callers.length; // which also shows unread inputs
  const given = new Set(isEntry ? group.graph.inputs : []);
  const leaving = new Set();
  const reads = new Map(); // tensor -> the items that read it, but for the one that makes it
  for (const [node, at] of owners) {
    for (const tensor of node.inputs) noteRead(tensor, at, owners, given, reads, items);
    for (const tensor of node.outputs) {
      const isRead = tensor.readers.some((reader) => !isHidden(reader) && !owners.has(reader));
      if (tensor.isResult || (isRead && !tensor.isFixed)) leaving.add(tensor);
    }
  }
  const ins = ports(given, (tensor) => [...(reads.get(tensor) ?? [])].join());
  const outs = ports(leaving, (tensor) => `${owners.get(tensor.maker)}`);
  return { items, ins, outs, ...wired(items, owners, ins, outs, reads) };
}

function noteRead(tensor, at, owners, given, reads, items) {
  const from = owners.get(tensor.maker);
  if (from === at || (tensor.isFixed && (from === undefined || items[from].kind === "once"))) return;
  if (from === undefined) given.add(tensor);
  if (!reads.has(tensor)) reads.set(tensor, new Set());
  reads.get(tensor).add(at);
}

// Values that come in or go out, one for each end; many that have the same end, such as caches, are one.
function ports(tensors, endOf) {
  const byEnd = new Map();
  for (const tensor of tensors) byEnd.set(endOf(tensor), [...(byEnd.get(endOf(tensor)) ?? []), tensor]);
  return [...byEnd.values()].flatMap((bundle) =>
    bundle.length > MOST_PORTS ? [bundle] : bundle.map((tensor) => [tensor]),
  );
}

// Links between ends: `i3` is an item, `in0` a value that comes in, `out1` one that goes out.
function wired(items, owners, ins, outs, reads) {
  const links = new Map();
  const tags = items.map(() => []);
  const link = (from, to, tensor) => {
    const key = `${from} ${to}`;
    if (!links.has(key)) links.set(key, { from, to, tensors: [] });
    links.get(key).tensors.push(tensor);
  };
  const portOf = new Map(ins.flatMap((port, at) => port.map((tensor) => [tensor, `in${at}`])));
  for (const [tensor, readers] of reads) {
    const from = portOf.get(tensor) ?? `i${owners.get(tensor.maker)}`;
    const [first, ...others] = readers;
    link(from, `i${first}`, tensor);
    for (const at of others) {
      if (readers.size > MANY_READERS) tags[at].push(tensor);
      else link(from, `i${at}`, tensor);
    }
  }
  outs.forEach((port, at) => port.forEach((tensor) => link(`i${owners.get(tensor.maker)}`, `out${at}`, tensor)));
  for (const one of links.values()) {
    const source = items[owners.get(one.tensors[0].maker)];
    one.unchangedBy = source && one.tensors.every((tensor) => isPassedOn(source, tensor)) ? source : null;
  }
  return { links: [...links.values()], wiring: [...links.keys()].join(), tags };
}

// Operators that give what they are given, where neither shape nor type changes.
const IDLE = /^aten\.(to|_to_copy|alias|detach|clone|contiguous|lift_fresh|lift_fresh_copy|view|reshape|expand)\./;

function isIdle({ op, inputs: [given], outputs: [made] }) {
  return IDLE.test(op) && given && given.shape === made.shape && given.dtype === made.dtype;
}

// Whether a group gives on a value that came in: a residual that a norm reads through an idle cast was not made there.
function isPassedOn(group, tensor) {
  if (group.isNode) return false;
  let origin = tensor;
  while (origin.maker && isIdle(origin.maker) && group.nodes.includes(origin.maker)) [origin] = origin.maker.inputs;
  return origin !== tensor && !origin.isWeight && !group.nodes.includes(origin.maker);
}
