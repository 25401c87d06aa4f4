// Finding nodes by name, operator, module, shape or weight; all words must occur.

const SHOWN_HITS = 100;

class Search {
  constructor(app) {
    this.app = app;
    this.hits = [];
    this.at = -1;
    this.input = html("input", {
      type: "search",
      placeholder: "Search  /",
      "aria-label": "search nodes",
      spellcheck: "false",
      role: "searchbox",
      oninput: () => this.find(),
      onkeydown: (event) => this.key(event),
      onfocus: () => this.open(),
    });
    this.count = html("span", { class: "count", role: "status" });
    this.rows = html("ul", { class: "hits", "aria-label": "matches", hidden: true });
    this.element = html(
      "div",
      { class: "search" },
      this.input,
      this.count,
      html(
        "button",
        { title: "previous hit (Shift Enter)", "aria-label": "previous hit", onclick: () => this.step(-1) },
        "↑",
      ),
      html("button", { title: "next hit (Enter)", "aria-label": "next hit", onclick: () => this.step(1) }, "↓"),
      this.rows,
    );
  }

  find() {
    const words = this.input.value
      .toLowerCase()
      .replace(/(\d)x(?=\d)/g, "$1×")
      .split(/\s+/)
      .filter(Boolean);
    const { view } = this.app;
    const nodes = words.length ? reachable(view.graph).flatMap((graph) => graph.nodes) : [];
    this.show(nodes.filter((node) => words.every((word) => textOf(node).includes(word))), words.length > 0);
  }

  // Show these nodes as if they had been searched for, and go to the first.
  list(nodes, text) {
    this.input.value = text;
    this.show(nodes, true);
    this.step(1);
  }

  show(nodes, isAsked) {
    this.hits = nodes;
    this.at = -1;
    this.count.textContent = isAsked ? grouped(nodes.length) : "";
    this.rows.replaceChildren(...nodes.slice(0, SHOWN_HITS).map((node, at) => this.row(node, at)));
    const more = nodes.length - SHOWN_HITS;
    const told = isAsked && !nodes.length ? "no node matches all of these words" : more > 0 ? `and ${grouped(more)} more` : "";
    if (told) this.rows.append(html("li", { class: "dim", role: "status" }, told));
    this.open();
  }

  row(node, at) {
    return html(
      "li",
      null,
      html(
        "button",
        { onclick: () => this.go(at) },
        html("b", null, node.label),
        html("span", { class: "dim" }, node.module || node.name),
        html("span", { class: "code dim" }, node.outputs[0] ? shapeText(node.outputs[0]) : ""),
      ),
    );
  }

  step(by) {
    if (this.hits.length) this.go((this.at + by + this.hits.length) % this.hits.length);
  }

  go(at) {
    this.at = at;
    this.count.textContent = `${grouped(at + 1)} of ${grouped(this.hits.length)}`;
    [...this.rows.children].forEach((row, place) => row.classList.toggle("current", place === at));
    this.rows.children[at]?.scrollIntoView({ block: "nearest" });
    this.app.go(this.app.view, this.hits[at]);
  }

  open() {
    this.rows.hidden = !this.rows.childElementCount;
  }

  close() {
    this.rows.hidden = true;
    this.input.blur();
  }

  key(event) {
    event.stopPropagation();
    if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
  }
}

function textOf(node) {
  if (node.text === undefined) {
    const shapes = node.outputs.flatMap((tensor) => [tensor.shape, tensor.placement]);
    const keys = node.inputs.map((tensor) => tensor.keys);
    node.text = [node.name, node.op, node.module, node.class, ...shapes, ...keys].join("\n").toLowerCase();
  }
  return node.text;
}

// A graph and the functions that its nodes call, and theirs.
function reachable(graph) {
  const found = new Set([graph]);
  for (const one of found) {
    for (const node of one.nodes) for (const call of node.calls) if (call.graph) found.add(call.graph);
  }
  return [...found];
}
