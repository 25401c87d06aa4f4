// The modules of a graph as a tree at the left; branches are made when they are first opened.

class Tree {
  constructor(app) {
    this.app = app;
    this.element = html("nav", { class: "tree", "aria-label": "modules" });
  }

  show(view) {
    this.view = view;
    this.rows = new Map();
    this.element.replaceChildren(html("ul", { role: "tree" }, this.branch(view.graph.root, 0, true)));
  }

  branch(item, depth, isOpen) {
    const inner = item.isNode ? [] : item.items.filter((child) => canOpen(child) && !isHidden(child));
    const list = html("ul", { role: "group", hidden: true });
    const toggle = () => {
      if (!list.childElementCount) list.append(...inner.map((child) => this.branch(child, depth + 1, false)));
      list.hidden = !list.hidden;
      arrow.textContent = list.hidden ? "▸" : "▾";
      entry.setAttribute("aria-expanded", !list.hidden);
    };
    const arrow = html(
      "button",
      { class: "arrow", tabindex: -1, "aria-hidden": "true", onclick: () => toggle() },
      inner.length ? "▸" : "",
    );
    const name = item.isNode ? lastName(item.module, item.parent.path) || item.label : titleOf(item);
    const row = html(
      "button",
      { class: "name", title: item.isNode ? item.op : item.path || name, onclick: () => this.app.go(this.view, item) },
      html("b", null, name),
      html("span", { class: "dim" }, item.isNode ? item.label : item.class),
    );
    const count = html("span", { class: "count" }, item.isNode ? "" : grouped(item.nodes.length));
    const line = html("div", { class: "row" }, arrow, row, count);
    line.style.paddingLeft = `${depth * 12}px`;
    const entry = html("li", { role: "treeitem", "aria-expanded": inner.length ? "false" : null }, line, list);
    this.rows.set(item, { line, list, toggle });
    if (isOpen && inner.length) toggle();
    return entry;
  }

  // Open the branches around an item and mark its row.
  mark(item) {
    this.current?.classList.remove("current");
    const around = [];
    for (let outer = item.parent; outer; outer = outer.parent) around.unshift(outer);
    for (const outer of around) if (this.rows.get(outer)?.list.hidden) this.rows.get(outer).toggle();
    this.current = (this.rows.get(item) ?? this.rows.get(item.parent))?.line;
    this.current?.classList.add("current");
    this.current?.scrollIntoView({ block: "nearest" });
  }
}
