// Where items are seen, and which of them are open. The body of a function is one item that is seen in many places.

const FIRST_BOXES = 26; // what a page opens with

class Places extends EventTarget {
  constructor(side) {
    super();
    this.side = side;
    this.places = new Map();
    this.opened = new Set();
    this.unfolded = new Set();
    this.parts = new Map(); // id of a run -> the part that is drawn for all; the first, if there is none
    this.enter(side.entries[0].graph);
  }

  enter(graph) {
    this.graph = graph;
    this.root = this.place(null, graph.root);
    this.opened.add(this.root.id);
    this.openUpTo(FIRST_BOXES);
  }

  place(parent, item) {
    const id = parent ? `${parent.id}/${item.graph.id}${item.key}` : `${item.graph.id}${item.key}`;
    if (!this.places.has(id)) this.places.set(id, { id, item, parent });
    return this.places.get(id);
  }

  isOpen(place) {
    return this.opened.has(place.id);
  }

  isUnfolded(place) {
    return this.unfolded.has(place.id);
  }

  // The level inside an open place, and the place that its items belong to.
  content(place) {
    const { item } = place;
    if (item.kind === "run" && !this.isUnfolded(place)) return this.content(this.place(place, this.part(place)));
    return { owner: place, level: levelOf(item) };
  }

  // The part of a run that is drawn for all of them.
  part(place) {
    return this.parts.get(place.id) ?? place.item.items[0];
  }

  // Draw the part of a run before or after the one that is drawn.
  turn(place, by) {
    const { items } = place.item;
    this.parts.set(place.id, items[(items.indexOf(this.part(place)) + by + items.length) % items.length]);
  }

  children(place) {
    const { owner, level } = this.content(place);
    return level.items.map((item) => this.place(owner, item));
  }

  // The number of equal items that a place represents, because it is inside runs that are drawn once.
  copies(place) {
    let count = 1;
    for (let outer = place.parent; outer; outer = outer.parent) {
      if (outer.item.kind === "run" && !this.isUnfolded(outer)) count *= outer.item.items.length;
    }
    return count;
  }

  arrange(place, tags) {
    const base = this.isOpen(place) ? this.openShape(place) : closedShape(place.item, tags);
    if (!tags.length || base.top) return base;
    return known(`tagged ${base.id}`, () => ({ ...base, h: base.h + BOX.tag, top: BOX.tag }));
  }

  openShape(place) {
    const { owner, level } = this.content(place);
    const inner = level.items.map((item, at) => this.arrange(this.place(owner, item), level.tags[at]));
    const shape = levelShape(owner.item, level, inner);
    const least = headWidth(place.item);
    return shape.w >= least ? shape : known(`wide ${shape.id} ${least}`, () => widened(shape, least));
  }

  // Open level after level while there is room for all that the next one holds.
  openUpTo(most) {
    let level = this.children(this.root);
    let count = level.length;
    while (level.length) {
      const closed = level.filter((place) => worthOpening(place.item));
      level = closed.flatMap((place) => this.children(place));
      count += level.length;
      if (count > (closed.length === 1 ? 2 * most : most)) return;
      for (const place of closed) this.opened.add(place.id);
    }
  }

  // The place of an item: of what is in a function, the one in its first call.
  placeOf(item) {
    if (item === this.graph.root) return this.root;
    if (item.parent) return this.place(this.placeOf(item.parent), item);
    const [caller] = item.graph.callers;
    const around = this.placeOf(caller);
    const bodies = caller.calls.filter((call) => call.graph);
    return bodies.length === 1 ? around : this.place(around, item);
  }
}

function headWidth(item) {
  const button = item.kind === "run" ? 84 + TURN : 0;
  return Math.min(
    420,
    widthOf(titleOf(item), "title") + (item.class ? widthOf(item.class, "plain") + 8 : 0) + 44 + button,
  );
}

// A shape that is wider than what it holds, which stays in the middle.
function widened(shape, w) {
  const by = (w - shape.w) / 2;
  const moved = (spot) => ({ ...spot, x: spot.x + by });
  return {
    ...shape,
    w,
    spots: shape.spots.map(moved),
    ins: shape.ins.map(moved),
    outs: shape.outs.map(moved),
    shift: by,
  };
}

function worthOpening(item) {
  return !item.isNode && item.kind !== "once" && item.kind !== "line";
}
