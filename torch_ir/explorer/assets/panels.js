// The columns at the left and at the right: they can be hidden, and are as wide as people drag them.

const COLUMNS = { left: { least: 120, most: 520 }, right: { least: 200, most: 720 } };
const STEP = 24; // pixels for a press of an arrow key

class Panels {
  constructor(tree, middle, right) {
    this.columns = { left: tree, right };
    this.buttons = {
      left: this.button("left", "☰", "modules (m)"),
      right: this.button("right", "◨", "details (p)"),
    };
    const [before, after] = [this.edge("left", 1), this.edge("right", -1)];
    this.element = html("main", null, tree, before, middle, after, right);
    this.edges = { left: before, right: after };
    this.show("left", innerWidth > 900);
    this.show("right", true);
  }

  button(side, text, title) {
    return html("button", { title: `show or hide the ${title}`, "aria-label": title, onclick: () => this.switch(side) }, text);
  }

  switch(side) {
    this.show(side, this.columns[side].hidden);
  }

  show(side, isShown) {
    this.columns[side].hidden = !isShown;
    this.edges[side].hidden = !isShown;
    this.element.dataset[side] = isShown ? "shown" : "hidden";
    this.buttons[side].setAttribute("aria-pressed", isShown);
  }

  // A line between two columns; `way` is the side to which its column grows.
  edge(side, way) {
    const element = html("div", {
      class: "edge",
      role: "separator",
      tabindex: 0,
      "aria-orientation": "vertical",
      "aria-label": side === "left" ? "width of the modules" : "width of the details",
      "aria-valuemin": COLUMNS[side].least,
      "aria-valuemax": COLUMNS[side].most,
    });
    let from = null;
    element.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, width: this.columns[side].offsetWidth };
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener("pointermove", (event) => {
      if (from) this.widen(side, from.width + way * (event.clientX - from.x));
    });
    for (const name of ["pointerup", "pointercancel"]) element.addEventListener(name, () => (from = null));
    element.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
      if (by) this.widen(side, this.columns[side].offsetWidth + way * by);
    });
    return element;
  }

  widen(side, width) {
    const { least, most } = COLUMNS[side];
    const now = Math.round(Math.min(most, Math.max(least, width)));
    this.element.style.setProperty(`--${side}`, `${now}px`);
    this.edges[side].setAttribute("aria-valuenow", now);
  }
}
