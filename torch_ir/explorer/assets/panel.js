// What is known about the thing that is selected.

class Panel {
  constructor(app) {
    this.app = app;
    this.element = html("aside", { class: "panel", "aria-label": "details", "aria-live": "polite" });
  }

  show(view, place) {
    const item = place?.item ?? view.graph.root;
    this.copies = place ? view.copies(place) : 1;
    const parts = item.isNode ? this.node(view, item) : this.group(view, item);
    this.element.replaceChildren(...parts);
    this.element.scrollTop = 0;
  }

  node(view, node) {
    return [
      html("h2", null, node.label),
      html("p", { class: "code dim" }, node.op),
      signsRow(node),
      section("Differs in", this.differences(node)),
      section("Error", errorsTable(view.side.runtimes, node)),
      this.place(view, node),
      section("Inputs", this.inputs(view, node)),
      section("Weights", weightsOf(node)),
      section("Attributes", table(node.attrs.map(([name, value]) => [name, code(value)]))),
      section("Outputs", table(node.outputs.map((tensor) => [tensor.name, typed(tensor)]))),
      section("Read by", this.readers(view, node)),
      section("Functions", this.functions(view, node)),
      this.costs(view, node),
      ...codeSections(node),
    ];
  }

  group(view, group) {
    const isRoot = group === view.graph.root;
    return [
      html("h2", null, isRoot ? group.name || "graph" : titleOf(group)),
      html("p", { class: "dim" }, isRoot ? rootText(view) : group.class || KINDS[group.kind]),
      signsRow(group, (sign) => this.app.listSigned(view, group, sign)),
      group.kind === "run" ? html("p", null, runText(group)) : "",
      isRoot ? section("Values", runtimesTable(view.side.runtimes, (node, text) => this.link(view, node, text))) : "",
      isRoot ? this.signature(view) : this.place(view, group),
      this.costs(view, group),
      section("Parameters", parametersRow(group)),
      section(`Operators: ${grouped(group.nodes.length)}`, this.operators(group)),
      section("Where the work is", this.hottest(view, group)),
    ];
  }

  operators(group) {
    const rows = counted(shownNodes(group), (node) => node.label);
    return [
      bars(rows.slice(0, SHOWN_ROWS), group.nodes.length),
      rows.length > SHOWN_ROWS ? html("p", { class: "dim" }, `and ${rows.length - SHOWN_ROWS} more kinds`) : "",
      checksRow(group.nodes.filter(isCheck).length, () => this.app.switchChecks()),
    ];
  }

  differences(node) {
    const details = this.app.comparison?.of.get(node)?.details ?? [];
    return details.map((text) => html("p", { class: "code" }, text));
  }

  signature(view) {
    const { inputs, outputs, changes } = view.graph;
    return html(
      "div",
      null,
      section("Inputs", table(inputs.map((tensor) => [tensor.name, typed(tensor)]))),
      section("Outputs", table(outputs.map((tensor) => [this.link(view, tensor.maker, tensor.name), typed(tensor)]))),
      section(
        "Changes",
        table(changes.map(([target, value]) => [target.keys || target.name, this.link(view, value.maker, value.name)])),
      ),
      section(
        "Open sizes",
        view.side.sizes.map((text) => html("p", { class: "code" }, text)),
      ),
    );
  }

  place(view, item) {
    const path = item.isNode ? item.module : item.path;
    const outer = item.isNode ? item.parent : item;
    return section(
      "Where",
      table(
        [
          ["name", item.isNode ? item.name : ""],
          ["module", path ? this.link(view, outer, path) : ""],
          ["class", item.class],
          ["call", item.call ? `number ${item.call + 1}` : ""],
          ["function", item.function],
          ["source", item.source && code(item.source)],
          ["replaces", item.origins?.length ? item.origins.join(", ") : ""],
        ].filter(([, value]) => value),
      ),
    );
  }

  inputs(view, node) {
    const values = argumentsOf(node).filter(([, tensor]) => !tensor.isWeight);
    const told = (tensor) => [this.link(view, tensor.maker, tensor.name), html("br"), typed(tensor)];
    return table(values.map(([name, tensor]) => [name, told(tensor)]));
  }

  readers(view, node) {
    const readers = [...new Set(node.outputs.flatMap((tensor) => tensor.readers))];
    const rows = readers.map((reader) => [this.link(view, reader, reader.name), reader.module]);
    const updates = node.outputs.flatMap((tensor) => tensor.updates).map((key) => [`new value of ${key}`]);
    const results = node.outputs.some((tensor) => tensor.isOutput) ? [["result of the graph"]] : [];
    return table([...rows, ...updates, ...results]);
  }

  functions(view, node) {
    const known = node.calls.filter((call) => call.graph);
    const open = () => this.link(view, node, "open", true);
    return table(known.map(({ name, graph }) => [name, [`${plural(graph.nodes.length, "node")} inside: `, open()]]));
  }

  costs(view, item) {
    const { work } = item;
    const { side } = view;
    const total = view.graph.root.work;
    const moved = side.weigh(work.read) + side.weigh(work.written);
    const row = (name, amount, unit, share) => [
      name,
      html("span", { title: grouped(amount) }, scaled(amount, unit)),
      share,
    ];
    const shareOf = (one, all) => (all && work !== total && !item.isOnce ? percent(one / all) : "");
    return section(
      item.isOnce ? "Cost when weights are bound" : "Cost of one run",
      table(
        [
          row("MACs", work.macs, "", ""),
          row("FLOPs", work.flops, "", shareOf(side.weigh(work.flops), side.weigh(total.flops))),
          row("bytes read", work.read, "B", shareOf(side.weigh(work.read), side.weigh(total.read))),
          row("bytes written", work.written, "B", shareOf(side.weigh(work.written), side.weigh(total.written))),
          ...(total.sent
            ? [row("bytes sent", work.sent, "B", shareOf(side.weigh(work.sent), side.weigh(total.sent)))]
            : []),
          ["FLOPs per byte", moved ? (side.weigh(work.flops) / moved).toFixed(1) : "–", ""],
        ],
        "costs",
      ),
      this.copies > 1 ? html("p", { class: "dim" }, this.allCopies(side, work, total)) : "",
    );
  }

  allCopies(side, work, total) {
    const [flops, all] = [side.weigh(work.flops) * this.copies, side.weigh(total.flops)];
    const share = flops && all ? `, together ${percent(flops / all)} of the FLOPs` : "";
    return `One of ${this.copies} that are drawn once${share}.`;
  }

  hottest(view, group) {
    const flopsOf = (item) => (item.isOnce && !group.isOnce ? 0 : view.side.weigh(item.work.flops));
    const { level } = view.content(view.placeOf(group));
    const items = level.items.filter(flopsOf).sort((one, other) => flopsOf(other) - flopsOf(one));
    const row = (item) => {
      const name = item.isNode && item.module ? lastName(item.module, group.path) : titleOf(item);
      const share = flopsOf(item) / flopsOf(group);
      return bar(this.link(view, item, name), percent(share), share);
    };
    return items.length ? html("table", { class: "bars" }, items.slice(0, 8).map(row)) : "";
  }

  link(view, item, text, opens) {
    if (!item) return text;
    return html("button", { class: "link", title: text, onclick: () => this.app.go(view, item, opens) }, text);
  }
}

const KINDS = {
  graph: "the body of a function",
  module: "a module",
  run: "equal modules that follow each other",
  turn: "modules that repeat together",
  once: "depends on weights alone: computed when weights are bound",
  line: "nodes that one line of the model made",
  chunk: "nodes in a row",
};

function runText(run) {
  const how = run.isChain ? "each reads what the one before it gives" : "side by side";
  return `${run.items.length} equal parts, ${how}. The first is drawn for all of them.`;
}

function rootText(view) {
  const { side } = view;
  const told = [side.title, side.torch && `torch ${side.torch}`, side.mesh && `mesh ${side.mesh}`];
  return told.filter(Boolean).join(" · ");
}
