// The packed record as objects: sides, graphs, groups, nodes and tensors that know each other.

async function readRecord() {
  const packed = document.getElementById("data").textContent;
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

class Side {
  constructor(record, texts, number) {
    this.number = number;
    this.title = texts[record.title];
    this.torch = texts[record.torch];
    this.sizes = record.sizes.map((text) => texts[text]);
    this.mesh = record.mesh.map((text) => texts[text]).join(", ");
    this.graphs = record.graphs.map((graph, at) => new Graph(graph, texts, `${number}.${at}`));
    for (const graph of this.graphs) graph.join(this.graphs);
    this.entries = record.entries.map(([name, at]) => ({ name: texts[name], graph: this.graphs[at] }));
    this.weights = record.weights;
    const main = this.graphs.at(-1);
    const named = main.nodes.filter((node) => node.outputs.length);
    record.python.forEach((text, at) => (named[at].python = texts[text]));
    record.lines.forEach((text, at) => (named[at].line = texts[text]));
    const nodes = this.graphs.flatMap((graph) => graph.nodes);
    this.runtimes = record.runtimes.map((runtime) => new Runtime(runtime, texts, nodes));
  }

  // How large an amount is, for comparing: sizes that are open have been assumed.
  weigh(amount) {
    return typeof amount === "number" ? amount : (this.weights[amount] ?? 0);
  }
}

class Graph {
  constructor(record, texts, id) {
    this.id = id;
    this.name = texts[record.name];
    this.functions = record.functions;
    this.callers = [];
    this.tensors = rows(record.tensors).map((row) => tensorOf(row, texts));
    this.nodes = rows(record.nodes).map((row, at) => nodeOf(row, texts, this, at));
    for (const at of record.once) this.nodes[at].isOnce = true;
    this.groups = record.groups.map((row, at) => groupOf(row, texts, this, at));
    this.root = this.groups.at(-1);
    this.inputs = record.inputs.map((at) => this.tensors[at]);
    this.outputs = record.outputs.map((at) => this.tensors[at]);
    this.changes = record.changes.map((pair) => pair.map((at) => this.tensors[at]));
    for (const tensor of this.outputs) tensor.isResult = tensor.isOutput = true;
    for (const [target, value] of this.changes) {
      value.isResult = true;
      value.updates.push(target.keys || target.name);
    }
  }

  // Numbers become what they stand for.
  join(graphs) {
    for (const node of this.nodes) {
      node.inputs = node.inputs.map((at) => this.tensors[at]);
      node.outputs = node.outputs.map((at) => this.tensors[at]);
      node.calls = node.calls.map(([name, body]) => ({ name, graph: graphs[this.functions[body]] }));
      for (const { name, graph } of node.calls) {
        graph?.callers.push(node);
        if (graph) graph.root.name ||= name;
      }
      for (const tensor of node.outputs) tensor.maker = node;
      for (const tensor of new Set(node.inputs)) tensor.readers.push(node);
    }
    for (const group of this.groups) {
      group.items = group.items.map((at) => (at >= 0 ? this.nodes[at] : this.groups[-1 - at]));
      for (const item of group.items) item.parent = group;
      group.nodes = group.items.flatMap((item) => (item.isNode ? [item] : item.nodes));
      group.isOnce = group.nodes.length > 0 && group.nodes.every((node) => node.isOnce);
    }
    for (const group of this.root.items) if (group.kind === "once") fixValues(group);
  }
}

// The values of a prologue are named at their readers, like weights: a link to each of many would cover the graph.
function fixValues(once) {
  const inside = new Set(once.nodes);
  const made = once.nodes.flatMap((node) => node.outputs);
  const leaving = made.filter((tensor) => tensor.readers.some((reader) => !inside.has(reader)));
  if (leaving.length > MOST_PORTS) for (const tensor of leaving) tensor.isFixed = true;
}

function rows(columns) {
  const names = Object.keys(columns);
  const count = names.length ? columns[names[0]].length : 0;
  return Array.from({ length: count }, (_, at) => Object.fromEntries(names.map((name) => [name, columns[name][at]])));
}

function tensorOf(row, texts) {
  return {
    name: texts[row.name],
    shape: texts[row.shape],
    dtype: texts[row.dtype],
    keys: row.keys < 0 ? "" : texts[row.keys],
    kind: row.kind < 0 ? "" : texts[row.kind],
    placement: row.placement < 0 ? "" : texts[row.placement],
    strides: row.stride < 0 ? null : texts[row.stride],
    isWeight: row.kind >= 0,
    isFixed: row.kind >= 0,
    isResult: false, // leaves the graph, as an output or as the new value of what it updates
    isOutput: false,
    updates: [],
    maker: null,
    readers: [],
  };
}

function nodeOf(row, texts, graph, at) {
  const told = ["name", "op", "label", "family", "kind", "module", "class", "source", "function"];
  const node = Object.fromEntries(told.map((name) => [name, texts[row[name]]]));
  return Object.assign(node, {
    isNode: true,
    isCheck: node.kind === "check",
    graph,
    key: `n${at}`,
    args: row.args.map((text) => texts[text]),
    attrs: row.attrs.map(([name, value]) => [texts[name], texts[value]]),
    calls: row.calls.map(([name, body]) => [texts[name], texts[body]]),
    origins: row.origins.map((text) => texts[text]),
    inputs: row.inputs,
    outputs: row.outputs,
    call: row.call,
    work: workOf(row.work),
    change: row.change < 0 ? "" : texts[row.change],
  });
}

function groupOf(row, texts, graph, at) {
  return {
    isNode: false,
    graph,
    key: `g${at}`,
    kind: row.kind,
    name: texts[row.name],
    path: texts[row.path],
    class: texts[row.class],
    call: row.call,
    items: row.items,
    form: row.form,
    isChain: row.chain,
    work: workOf(row.work),
  };
}

function workOf([macs, flops, read, written, sent]) {
  return { macs, flops, read, written, sent };
}
