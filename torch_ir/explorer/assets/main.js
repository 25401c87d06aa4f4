// The page: a bar of tools, the modules, one view or two, the details, the legend.

class App {
  constructor(record) {
    const { texts } = record;
    this.sides = record.sides.map((side, at) => new Side(side, texts, at));
    this.views = this.sides.map((side) => new View(side));
    this.view = this.views[0];
    this.mode = "family";
    this.checks = this.sides.flatMap((side) => side.graphs.flatMap((graph) => graph.nodes)).filter(isCheck).length;
    this.panel = new Panel(this);
    this.tree = new Tree(this);
    this.search = new Search(this);
    this.crumbs = html("nav", { class: "crumbs", "aria-label": "breadcrumbs" });
    this.message = html("p", { class: "message", role: "status" });
    this.footer = html("footer");
    this.comparison = this.sides.length > 1 ? new Comparison(this, record, texts) : null;
    document.title = `${this.sides.map((side) => side.title).join(" / ")} — torch-ir`;
    this.help = shortcuts();
    this.panels = new Panels(this.tree.element, this.middle(), this.right());
    document.body.append(this.bar(), this.panels.element, this.footer, this.help);
    for (const view of this.views) this.attend(view);
    listenToKeys(this);
  }

  start() {
    for (const view of this.views) view.start();
    this.attendTo(this.view);
    this.paint(this.mode);
    this.goToAddress();
    this.readyAt = performance.now();
    document.documentElement.dataset.ready = "yes";
  }

  // -- the parts -----------------------------------------------------------------------------------------------------------

  bar() {
    const button = (text, title, act) => html("button", { title, onclick: act }, text);
    const sign = (text, title, act) => html("button", { title, "aria-label": title, onclick: act }, text);
    return html(
      "header",
      null,
      this.panels.buttons.left,
      html("strong", { class: "model" }, this.sides.map((side) => side.title).join(" / ")),
      this.mesh(),
      this.chooser(),
      this.search.element,
      html(
        "span",
        { class: "set" },
        button("Expand", "open one more level (e)", () => this.openMore()),
        button("Collapse", "close everything (c)", () => this.view.closeAll()),
      ),
      html(
        "span",
        { class: "set" },
        sign("−", "smaller (-)", () => this.view.zoom(0.8)),
        sign("+", "larger (+)", () => this.view.zoom(1.25)),
        button("Fit", "show all of it (f)", () => this.view.fit()),
      ),
      this.modes(),
      this.firstWrong(),
      html(
        "span",
        { class: "set saves", role: "group", "aria-label": "save what is visible" },
        button("SVG", "save what is visible as SVG (s)", () => savePicture(this.view, "svg")),
        button("PNG", "save what is visible as PNG", () => savePicture(this.view, "png")),
      ),
      sign("?", "keyboard shortcuts (?)", () => this.help.showModal()),
      sign("◐", "light or dark", () => this.switchTheme()),
      this.panels.buttons.right,
    );
  }

  // How many ranks there are along each axis, of a graph that one of them runs.
  mesh() {
    const told = [...new Set(this.sides.map((side) => side.mesh))].filter(Boolean).join(" / ");
    return told && html("span", { class: "mesh", title: "a sharded graph: each rank runs it" }, `mesh ${told}`);
  }

  chooser() {
    const { entries } = this.sides[0];
    if (entries.length < 2) return "";
    this.entry = html(
      "select",
      { "aria-label": "entry point", onchange: (event) => this.enter(entries[event.target.selectedIndex].name) },
      entries.map((entry) => html("option", null, entry.name)),
    );
    return this.entry;
  }

  modes() {
    const choice = (mode, text) =>
      html("button", { "data-mode": mode, title: `colour by ${text} (h)`, onclick: () => this.paint(mode) }, text);
    this.buttons = modesFor(this.sides).map((mode) => choice(mode, modeText(mode, this.sides)));
    return html("span", { class: "set", role: "group", "aria-label": "colour by" }, this.buttons);
  }

  // A button that goes to the first wrong node of the runtime that the colours show, or else of the first runtime.
  firstWrong() {
    if (!this.sides[0].runtimes.length) return "";
    const title = "go to the first wrong node (w)";
    return html("button", { class: "alone", title, onclick: () => this.goToWrong() }, "First wrong");
  }

  goToWrong() {
    const [side] = this.sides;
    const mode = runtimeOf(this.mode, side) ? this.mode : "error 0";
    const runtime = runtimeOf(mode, side);
    if (!runtime) return;
    this.paint(mode);
    if (runtime.first) this.go(this.views[0], runtime.first);
    else this.say(`no node of ${runtime.name} is wrong`);
  }

  middle() {
    const panes = this.views.map((view) =>
      html("div", { class: "pane" }, this.views.length > 1 ? html("h1", null, view.side.title) : "", view.element),
    );
    return html("div", { class: "middle" }, this.crumbs, html("div", { class: "panes" }, panes), this.message);
  }

  right() {
    return html("div", { class: "right" }, this.comparison?.element ?? "", this.panel.element);
  }

  attend(view) {
    view.addEventListener("select", (event) => this.selected(view, event.detail));
    view.addEventListener("uncover", () => this.switchChecks());
    view.addEventListener("list", ({ detail }) => this.listSigned(view, detail.item, detail.sign));
    view.element.addEventListener("pointerdown", () => this.attendTo(view), true);
    view.element.addEventListener("pointerdown", () => this.search.close());
  }

  // -- what people do ------------------------------------------------------------------------------------------------------

  attendTo(view) {
    if (view !== this.tree.view || view.graph.root !== this.shownRoot) {
      this.view = view;
      this.shownRoot = view.graph.root;
      this.tree.show(view);
      this.selected(view, view.selected);
    }
    for (const one of this.views) one.element.classList.toggle("attended", this.views.length > 1 && one === view);
  }

  selected(view, place) {
    if (view !== this.view) return;
    this.panel.show(view, place);
    this.tree.mark(place?.item ?? view.graph.root);
    this.showCrumbs(view, place);
    if (place) this.comparison?.follow(view, place.item);
  }

  showCrumbs(view, place) {
    const around = [];
    for (let outer = place ?? view.root; outer; outer = outer.parent) around.unshift(outer);
    const crumb = ({ item }) =>
      html("button", { onclick: () => this.go(view, item) }, item.isNode ? item.name : titleOf(item));
    this.crumbs.replaceChildren(...around.map(crumb));
  }

  go(view, item, opens) {
    this.attendTo(view);
    view.reveal(item);
    if (opens && !view.isOpen(view.selected)) view.toggle(view.selected);
  }

  // List the nodes of an item that carry a sign, such as its placeholders, and go to the first.
  listSigned(view, item, sign) {
    this.attendTo(view);
    this.search.list(nodesOf(item).filter((node) => node.kind === sign || node.change === sign), sign);
  }

  // What the address names after `#`, such as `model.html#layers.0.mlp`: a node or a module.
  goToAddress() {
    const name = nameInAddress();
    const { nodes, groups } = this.view.graph;
    const found =
      name &&
      (nodes.find((node) => node.name === name) ??
        groups.find((group) => group.kind === "module" && group.path === name) ??
        nodes.find((node) => node.module === name));
    if (found) this.go(this.view, found);
  }

  enter(name) {
    if (this.entry) this.entry.value = name;
    for (const view of this.views) {
      const found = view.side.entries.find((entry) => entry.name === name);
      if (!found) continue;
      view.selected = null;
      view.enter(found.graph);
      view.start();
    }
    this.attendTo(this.view);
  }

  openMore() {
    this.say(this.view.openMore());
  }

  say(text) {
    this.message.textContent = text;
    this.message.hidden = !text;
    clearTimeout(this.silence);
    this.silence = setTimeout(() => (this.message.hidden = true), 4000);
  }

  paint(mode) {
    this.mode = mode;
    for (const view of this.views) view.paint(mode);
    for (const button of this.buttons) button.setAttribute("aria-pressed", button.dataset.mode === mode);
    this.footer.replaceChildren(legend(mode, this.sides, checksRow(this.checks, () => this.switchChecks())));
  }

  nextMode() {
    const modes = modesFor(this.sides);
    this.paint(modes[(modes.indexOf(this.mode) + 1) % modes.length]);
  }

  // Show nodes that only assert, or hide them again.
  switchChecks() {
    showChecks(!checksAreShown);
    for (const view of this.views) {
      if (view.selected && isHidden(view.selected.item)) view.select(null);
      view.draw(view.selected);
    }
    this.paint(this.mode);
    this.tree.show(this.view);
    this.panel.show(this.view, this.view.selected);
    this.comparison?.show(this.comparison.status);
  }

  switchTheme() {
    const { dataset } = document.documentElement;
    const isDark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    dataset.theme = isDark ? "light" : "dark";
    for (const view of this.views) view.map.draw();
  }
}

function nameInAddress() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return ""; // a lone percent sign in the address
  }
}

if ("DecompressionStream" in window) {
  readRecord().then((record) => {
    window.app = new App(record);
    window.app.start();
  });
} else {
  document.body.append("This browser is too old to unpack the graph.");
}
