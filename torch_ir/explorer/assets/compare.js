// Two graphs side by side: which node of the one is which of the other, and the list of what differs.

const SHOWN_DIFFERENCES = 500;

class Comparison {
  constructor(app, record, texts) {
    this.app = app;
    const graphs = app.sides.map((side) => side.graphs.at(-1));
    this.pairs = record.map(([status, first, second, details]) => ({
      status: texts[status],
      nodes: [first < 0 ? null : graphs[0].nodes[first], second < 0 ? null : graphs[1].nodes[second]],
      details: details.map((text) => texts[text]),
    }));
    this.byOrigin = graphs.map(
      (graph) => new Map(graph.nodes.flatMap((node) => originsOf(node).map((name) => [name, node]))),
    );
    this.of = new Map(this.pairs.flatMap((pair) => pair.nodes.map((node) => [node, pair])));
    this.all = this.pairs.filter((pair) => pair.status !== "same");
    this.list = html("ol", { class: "differences" });
    this.element = html("section", { class: "compare", "aria-label": "differences" }, this.choices(), this.list);
    this.show("");
  }

  // A button for each kind of difference, which shows that kind alone; once more, all of them.
  choices() {
    const counts = counted(this.all, (pair) => pair.status);
    if (!counts.length) return html("h3", null, "no differences");
    this.buttons = counts.map(([status, count]) =>
      html(
        "button",
        { "data-status": status, onclick: () => this.show(this.status === status ? "" : status) },
        `${grouped(count)} ${status}`,
      ),
    );
    return html("span", { class: "set" }, this.buttons);
  }

  show(status) {
    this.status = status;
    this.at = -1;
    this.shown = this.all.filter((pair) => !status || pair.status === status);
    this.list.replaceChildren(...this.shown.slice(0, SHOWN_DIFFERENCES).map((pair) => this.row(pair)));
    for (const button of this.buttons ?? []) button.setAttribute("aria-pressed", button.dataset.status === status);
  }

  step(by) {
    if (!this.shown.length) return;
    this.at = (this.at + by + this.shown.length) % this.shown.length;
    this.go(this.shown[this.at]);
  }

  row(pair) {
    const node = pair.nodes[1] ?? pair.nodes[0];
    return html(
      "li",
      null,
      html(
        "button",
        { onclick: () => this.go(pair), title: pair.details.join("\n") },
        html("i", { class: `swatch s-${pair.status}` }, CHANGES[pair.status]),
        html("b", null, node.label),
        html("span", { class: "dim" }, node.module || node.name),
        html("small", null, pair.details[0] ?? ""),
      ),
    );
  }

  go(pair) {
    const at = pair.nodes[1] ? 1 : 0;
    const view = this.app.views[at];
    if (view.graph !== pair.nodes[at].graph) this.app.enter(view.side.entries[0].name);
    this.app.go(view, pair.nodes[at]);
  }

  // Go, on the other side, to what is selected on this one.
  follow(view, item) {
    const other = this.app.views[1 - view.side.number];
    const found = item.isNode ? this.counterpart(view.side.number, item) : sameModule(other.graph, item);
    if (found?.graph === other.graph) other.reveal(found);
    else other.select(null);
  }

  // The node that is the same, or else one that stands for the same captured nodes.
  counterpart(side, node) {
    const stands = originsOf(node).map((name) => this.byOrigin[1 - side].get(name));
    return this.of.get(node)?.nodes[1 - side] ?? stands.find((found) => found);
  }
}

function originsOf(node) {
  return node.origins.length ? node.origins : [node.name];
}

function sameModule(graph, group) {
  return graph.groups.find((one) => one.kind === group.kind && one.path === group.path && one.call === group.call);
}
