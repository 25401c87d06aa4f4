// Two graphs side by side: which node of the one is which of the other, and the list of what differs.

const SHOWN_DIFFERENCES = 500; // rows below one heading
const FEW_DIFFERENCES = 12; // rows that are all shown at once, below their headings

class Comparison {
  constructor(app, record, texts) {
    this.app = app;
    const graphs = app.sides.map((side) => side.graphs.at(-1));
    this.pairs = record.differences.map(([status, first, second, details]) => ({
      status: texts[status],
      nodes: [first < 0 ? null : graphs[0].nodes[first], second < 0 ? null : graphs[1].nodes[second]],
      details: details.map((text) => texts[text]),
    }));
    this.byOrigin = graphs.map(
      (graph) => new Map(graph.nodes.flatMap((node) => originsOf(node).map((name) => [name, node]))),
    );
    this.of = new Map(this.pairs.flatMap((pair) => pair.nodes.map((node) => [node, pair])));
    this.events = record.events.map(([title, rows]) => ({ title: texts[title], pairs: rows.map((at) => this.pairs[at]) }));
    this.list = html("ol", { class: "differences" });
    this.element = html("section", { class: "compare", "aria-label": "differences" }, this.choices(), this.list);
    this.show("");
  }

  // A button for each kind of difference, which shows that kind alone; once more, all of them.
  choices() {
    const counts = counted(
      this.events.flatMap((event) => event.pairs),
      (pair) => pair.status,
    );
    if (!counts.length) return html("h3", null, "no differences");
    this.buttons = counts.map(([status, count]) =>
      html(
        "button",
        { "data-status": status, onclick: () => this.show(this.status === status ? "" : status) },
        `${grouped(count)} ${status}`,
      ),
    );
    return html("span", { class: "set", role: "group", "aria-label": "show" }, this.buttons);
  }

  show(status) {
    this.status = status;
    this.at = -1;
    const asked = (pair) => !status || pair.status === status;
    const all = this.events.map((event) => ({ title: event.title, pairs: event.pairs.filter(asked) }));
    this.shown = all.map(({ title, pairs }) => eventOf(title, pairs)).filter((event) => event.folds.length);
    const rows = this.shown.reduce((sum, event) => sum + event.folds.length, 0);
    const hidden = all.reduce((sum, { pairs }) => sum + pairs.filter((pair) => isHidden(shownNode(pair))).length, 0);
    this.list.replaceChildren(
      ...this.shown.map((event) => this.event(event, this.shown.length === 1 || rows <= FEW_DIFFERENCES)),
      html("li", { hidden: checksAreShown }, checksRow(hidden, () => this.app.switchChecks())),
    );
    for (const button of this.buttons ?? []) button.setAttribute("aria-pressed", button.dataset.status === status);
  }

  // Go to the next difference that the list shows; one that is closed is one stop.
  step(by) {
    const inFold = (fold) => (fold.isOpen ? fold.pairs : [fold.pairs[0]]);
    const stops = this.shown.flatMap(({ isOpen, folds }) => (isOpen ? folds.flatMap(inFold) : [folds[0].pairs[0]]));
    if (!stops.length) return;
    this.at = (this.at + by + stops.length) % stops.length;
    this.go(stops[this.at]);
  }

  // What happened, such as `folded 20 batch_norm into conv2d`; it opens into the nodes that it happened to.
  event(event, isOpen) {
    const list = html("ol", { hidden: true });
    const open = () => {
      event.isOpen = !event.isOpen;
      if (!list.childElementCount) list.append(...this.folds(event.folds));
      list.hidden = !event.isOpen;
      heading.setAttribute("aria-expanded", event.isOpen);
    };
    const heading = html("button", { class: "event", "aria-expanded": "false", onclick: open }, event.title);
    if (isOpen) open();
    return html("li", null, heading, list);
  }

  folds(folds) {
    const more = folds.length - SHOWN_DIFFERENCES;
    const shown = folds.slice(0, SHOWN_DIFFERENCES).map((fold) => this.fold(fold));
    return more > 0 ? [...shown, html("li", { class: "dim" }, `and ${grouped(more)} more`)] : shown;
  }

  // One row for the same change in layer after layer; it opens into a row for each.
  fold(fold) {
    const { pairs, place } = fold;
    const count = pairs.length;
    if (count === 1) return html("li", null, this.row(pairs[0], this.told(pairs[0], placeOfPair(pairs[0]))));
    const list = html("ol", { hidden: true });
    const open = () => {
      fold.isOpen = !fold.isOpen;
      if (!list.childElementCount) list.append(...pairs.map((pair) => this.part(pair)));
      list.hidden = !fold.isOpen;
      arrow.textContent = fold.isOpen ? "▾" : "▸";
      arrow.setAttribute("aria-expanded", fold.isOpen);
    };
    const name = `each of ${count}`;
    const arrow = html("button", { class: "arrow", "aria-expanded": "false", "aria-label": name, onclick: open }, "▸");
    const row = this.row(pairs[0], this.told(pairs[0], `${count} times in ${place}`));
    return html("li", { class: "fold" }, arrow, row, list);
  }

  part(pair) {
    return html("li", null, this.row(pair, [html("span", { class: "dim" }, placeOfPair(pair))]));
  }

  told(pair, where) {
    return [
      html("i", { class: `swatch s-${pair.status}` }, CHANGES[pair.status]),
      html("b", null, shownNode(pair).label),
      html("span", { class: "dim" }, where),
      html("small", null, pair.details[0] ?? ""),
    ];
  }

  row(pair, content) {
    const title = [placeOfPair(pair), ...pair.details].join("\n");
    return html("button", { onclick: () => this.go(pair), title }, content);
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

  // The node that is the same, or else one that replaces the same captured nodes.
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

function shownNode(pair) {
  return pair.nodes[1] ?? pair.nodes[0];
}

function placeOfPair(pair) {
  return moduleOf(pair) || shownNode(pair).name;
}

// A node that replaces those of several modules is in none of them; the one that it replaces is.
function moduleOf(pair) {
  return pair.nodes[1]?.module || pair.nodes[0]?.module || "";
}

function eventOf(title, pairs) {
  return { title, folds: foldsOf(pairs.filter((pair) => !isHidden(shownNode(pair)))), isOpen: false };
}

// Differences that are the same in one layer after another, together: `model.layers.*.mlp`.
function foldsOf(pairs) {
  const folds = new Map();
  const seen = new Map(); // how often a change has come in one module: what comes twice in each layer is two rows
  for (const pair of pairs) {
    const { op } = shownNode(pair);
    const module = moduleOf(pair);
    const place = module.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
    const change = [pair.status, op, ...pair.details.map(withoutNumbers)].join("\n");
    const here = `${module}\n${change}`;
    seen.set(here, (seen.get(here) ?? 0) + 1);
    const key = `${seen.get(here)}\n${place}\n${change}`;
    if (!folds.has(key)) folds.set(key, { place, pairs: [], isOpen: false });
    folds.get(key).pairs.push(pair);
  }
  return [...folds.values()].sort((one, other) => other.pairs.length - one.pairs.length);
}

// A detail without what is another in every layer: `self is 'to_18' / 'add_20'`, `now in reshape_3_4`.
function withoutNumbers(text) {
  return text.replace(/ is '[^']*' \/ '[^']*'/g, " is another").replace(/(?<=\w)_\d+/g, "");
}
