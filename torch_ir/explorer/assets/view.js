// One graph on the screen: what is open, what is selected, and which part of it is seen.

const MOST_BOXES = 4000; // what `expand all` opens at most
const ZOOM = { least: 0.02, most: 4, legible: 0.8, readable: 0.5 };

class View extends Places {
  constructor(side) {
    super(side);
    this.selected = null;
    this.eye = { x: 0, y: 0, k: 1 };
    this.mode = "family";
    this.world = svg("g", { class: "world" });
    this.canvas = svg(
      "svg",
      { class: "canvas", role: "tree", tabindex: 0, "aria-label": `graph ${side.title}` },
      tip(),
      this.world,
    );
    this.map = new Minimap(this);
    this.element = html("div", { class: "view" }, this.canvas, this.map.element);
    listen(this);
    new ResizeObserver(() => this.resized()).observe(this.canvas);
  }

  // -- opening and closing ---------------------------------------------------------------------------------------------

  toggle(place) {
    if (!canOpen(place.item) || place === this.root) return;
    if (!this.opened.delete(place.id)) this.opened.add(place.id);
    this.draw(place);
  }

  toggleRun(place) {
    if (!this.unfolded.delete(place.id)) this.unfolded.add(place.id);
    this.draw(place);
  }

  turnRun(place, by) {
    this.turn(place, by);
    this.draw(place);
  }

  // Open all that is closed at the outermost level that has anything closed; say if that would be too much.
  openMore() {
    const closed = [];
    let level = [this.root];
    while (level.length && !closed.length) {
      level = level.filter((place) => this.isOpen(place)).flatMap((place) => this.children(place));
      closed.push(...level.filter((place) => canOpen(place.item) && !this.isOpen(place)));
    }
    if (!closed.length) return "everything is open";
    const count = closed.reduce((sum, place) => sum + this.children(place).length, this.drawing.frames.size);
    if (count > MOST_BOXES) return `that would be ${grouped(count)} boxes; open what you need`;
    const { w } = this.size();
    for (const place of closed) this.opened.add(place.id);
    this.eye.x += ((w - this.size().w) / 2) * this.eye.k; // what was in the middle stays there
    this.draw();
    return "";
  }

  closeAll() {
    this.opened = new Set([this.root.id]);
    this.unfolded.clear();
    this.draw();
    this.fit();
  }

  // -- drawing -----------------------------------------------------------------------------------------------------------

  // Redraw; a place that did not move keeps its position on the screen.
  draw(anchor) {
    const before = anchor && this.drawing?.frames.get(anchor.id);
    this.drawing = new Drawing(this);
    this.world.replaceChildren(this.drawing.root);
    const after = anchor && this.drawing.frames.get(anchor.id);
    if (before && after) {
      this.eye.x += (before.x + before.w / 2 - after.x - after.w / 2) * this.eye.k;
      this.eye.y += (before.y - after.y) * this.eye.k;
    }
    this.paint();
    this.light();
    this.move(this.eye);
  }

  // Colour closed boxes by what they cost, if asked; the largest of those that are seen is the hottest.
  paint(mode = this.mode) {
    this.mode = mode;
    this.canvas.classList.toggle("heat", mode !== "family");
    for (const share of this.world.querySelectorAll(".share")) share.remove();
    for (const place of this.world.querySelectorAll(".wrong, .pale")) place.classList.remove("wrong", "pale");
    const runtime = runtimeOf(mode, this.side);
    if (runtime) return paintErrors(this, runtime);
    if (mode === "family" || mode.startsWith("error ")) return;
    const total = amountIn(mode, this.graph.root.work, this.side);
    const closed = [...this.drawing.frames].filter(([, frame]) => !frame.isOpen).map(([id]) => this.places.get(id));
    const amounts = closed.map(({ item }) => (item.isOnce ? 0 : amountIn(mode, item.work, this.side)));
    const most = amounts.reduce((one, other) => Math.max(one, other), 0) || 1;
    closed.forEach((place, at) => {
      const element = this.drawing.elements.get(place.id);
      element.style.setProperty("--heat", `${Math.round(70 * Math.sqrt(amounts[at] / most))}%`);
      const taken = [...element.querySelectorAll(".chip")].reduce((sum, chip) => sum + chip.width + 3, 4);
      const { w } = this.drawing.frames.get(place.id);
      if (amounts[at]) element.append(chipOf(percent(amounts[at] / total), "share", w - taken, -8));
    });
  }

  // -- selecting ---------------------------------------------------------------------------------------------------------

  select(place) {
    if (place === this.selected) return;
    this.selected = place;
    this.light();
    this.dispatchEvent(new CustomEvent("select", { detail: place }));
  }

  // Show what is selected, and the links that lead to it and from it.
  light() {
    for (const lit of this.world.querySelectorAll(".selected, .lit")) {
      lit.classList.remove("selected", "lit");
      lit.removeAttribute("id");
    }
    this.canvas.removeAttribute("aria-activedescendant");
    if (!this.selected) return;
    const place = this.drawn(this.selected);
    const element = this.drawing.elements.get(place.id);
    if (element) {
      element.classList.add("selected");
      element.id = `selected-${this.side.number}`;
      this.canvas.setAttribute("aria-activedescendant", element.id);
    }
    for (const { element, from, to } of this.drawing.wires) {
      if (from === place.id || to === place.id) element.classList.add("lit");
    }
  }

  // The place that is drawn for another: the frame of a run is that of its part, too.
  drawn(place) {
    let found = place;
    while (found.parent && !this.drawing.frames.has(found.id)) found = found.parent;
    return found;
  }

  // Open what is around an item and go there.
  reveal(item) {
    if (isHidden(item)) this.dispatchEvent(new CustomEvent("uncover"));
    const place = this.placeOf(item);
    let outer = place.parent;
    let inner = place;
    while (outer) {
      this.opened.add(outer.id);
      if (outer.item.kind === "run") this.parts.set(outer.id, inner.item);
      [inner, outer] = [outer, outer.parent];
    }
    this.draw();
    this.select(place);
    this.centre(place);
  }

  // -- looking -----------------------------------------------------------------------------------------------------------

  move(eye) {
    this.eye = eye;
    this.isFitted = false;
    this.world.setAttribute("transform", `translate(${eye.x} ${eye.y}) scale(${eye.k})`);
    this.canvas.classList.toggle("far", eye.k < 0.3);
    this.map.draw();
    this.width = this.canvas.clientWidth;
  }

  // What was in the middle stays there when a column beside the view comes, goes or is dragged.
  resized() {
    const by = this.canvas.clientWidth - (this.width ?? this.canvas.clientWidth);
    if (by) this.move({ ...this.eye, x: this.eye.x + by / 2 });
    else this.map.draw();
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const { eye } = this;
    const k = Math.min(ZOOM.most, Math.max(ZOOM.least, eye.k * factor));
    this.move({ x: x - ((x - eye.x) * k) / eye.k, y: y - ((y - eye.y) * k) / eye.k, k });
  }

  size() {
    return this.arrange(this.root, []);
  }

  // All of it; where that would be too small to read, its width, and all of it when asked once more.
  fit() {
    const { w, h } = this.size();
    const wide = () => Math.min(1, (this.canvas.clientWidth - 24) / w);
    const whole = () => Math.min(wide(), (this.canvas.clientHeight - 24) / h);
    if (whole() >= ZOOM.readable || this.isFitted) return this.settle(whole, 0.5);
    this.settle(() => Math.max(ZOOM.readable, wide()), (this.canvas.clientHeight / 2 - this.eye.y) / this.eye.k / h);
    this.isFitted = true;
  }

  // The first look: all of it, or its head where all of it would be too small to read.
  start() {
    this.draw();
    const { w, h } = this.size();
    const wide = () => Math.min(1, (this.canvas.clientWidth - 24) / w);
    const whole = () => Math.min(wide(), (this.canvas.clientHeight - 24) / h);
    if (whole() >= ZOOM.legible) this.settle(whole, 0.5);
    else this.settle(() => Math.max(ZOOM.legible, wide()), 0);
  }

  // Zoom, with so much of the height above the middle; twice, as the map may come or go and leave another width.
  settle(zoomOf, share) {
    const { w, h } = this.size();
    for (let [turn, width] = [0, -1]; turn < 2 && width !== this.canvas.clientWidth; turn++) {
      width = this.canvas.clientWidth;
      const k = zoomOf();
      const [room, tall] = [this.canvas.clientHeight, h * k];
      const top = tall < room ? (room - tall) / 2 : Math.min(0, Math.max(room - tall, room / 2 - share * tall));
      this.move({ x: (this.canvas.clientWidth - w * k) / 2, y: top, k });
    }
  }

  centre(place) {
    const frame = this.drawing.frames.get(this.drawn(place).id);
    if (!frame) return;
    const k = Math.max(this.eye.k, ZOOM.legible);
    const tall = Math.min(frame.h, (this.canvas.clientHeight * 0.8) / k);
    const x = this.canvas.clientWidth / 2 - (frame.x + frame.w / 2) * k;
    this.move({ x, y: this.canvas.clientHeight / 2 - (frame.y + tall / 2) * k, k });
  }
}

function tip() {
  const path = svg("path", { d: "M0 0L7 3.5L0 7z" });
  return svg(
    "defs",
    null,
    svg(
      "marker",
      {
        id: "tip",
        viewBox: "0 0 7 7",
        refX: 6.5,
        refY: 3.5,
        markerWidth: 8,
        markerHeight: 8,
        orient: "auto",
        markerUnits: "userSpaceOnUse",
      },
      path,
    ),
  );
}
