// Boxes, frames and links as SVG. A drawing is rebuilt when something opens; it keeps the position of every box.

class Drawing {
  constructor(view) {
    this.view = view;
    this.elements = new Map(); // id of a place -> its element
    this.frames = new Map(); // id of a place -> where it lies
    this.wires = []; // links with their elements and the places at their ends
    this.values = new Map(); // element of a port or a tag -> its value
    this.root = svg("g", null, this.content(view.root, view.arrange(view.root, []), { x: 0, y: 0 }));
  }

  place(place, shape, tags, x, y, corner) {
    const { item } = place;
    const isOpen = this.view.isOpen(place);
    const at = { x: corner.x + x, y: corner.y + y + shape.top };
    this.frames.set(place.id, { ...at, w: shape.w, h: shape.h - shape.top, isOpen });
    const group = svg("g", {
      class: ["place", isOpen ? "frame" : "box", ...classesOf(item)].join(" "),
      transform: `translate(${x} ${y + shape.top})`,
      role: "treeitem",
      tabindex: -1,
      "data-id": place.id,
      "aria-label": spoken(item),
      "aria-expanded": canOpen(item) ? String(isOpen) : null,
    });
    group.append(...(isOpen ? this.frame(place, shape, at) : this.box(place, shape)));
    if (tags.length) group.append(this.speaking(tagOf(tags, shape.w), tags[0]));
    this.elements.set(place.id, group);
    return group;
  }

  box(place, shape) {
    const { item } = place;
    const [w, h] = [shape.w, shape.h - shape.top];
    const isRun = item.kind === "run";
    return [
      ...(isRun ? [6, 3].map((by) => svg("rect", { class: "sheet", x: by, y: -by, width: w, height: h, rx: 6 })) : []),
      svg("rect", { class: "card", width: w, height: h, rx: 6 }, svg("title", null, spoken(item))),
      ...(canOpen(item) ? [chevron(BOX.pad - 3, 9, false)] : []),
      ...boxLines(item, w),
      ...(item.isNode ? [] : mixBar(item, w, h)),
      ...chips(item, w),
    ];
  }

  frame(place, shape, at) {
    const { item } = place;
    const [w, h] = [shape.w, shape.h - shape.top];
    const title = titleOf(item);
    const room = w - 34 - (item.kind === "run" ? 84 + TURN : 0);
    const left = 24 + Math.min(widthOf(title, "title"), room);
    return [
      svg("rect", { class: "card", width: w, height: h, rx: 8 }),
      svg("rect", { class: "head", width: w, height: BOX.head - 4, rx: 8 }, svg("title", null, spoken(item))),
      chevron(BOX.pad - 2, 9, true),
      label(title, 24, 17, "title", room),
      ...(item.class && room - left > 20 ? [label(item.class, left + 8, 17, "plain", room - left + 16, "dim")] : []),
      ...(item.kind === "run" ? this.runButtons(place, w) : []),
      ...this.content(place, shape, at),
    ];
  }

  runButtons(place, w) {
    const isUnfolded = this.view.isUnfolded(place);
    const turns = isUnfolded ? [] : turnButtons(partName(this.view.part(place)), w - 82 - TURN);
    return [unfoldButton(isUnfolded, w), ...turns];
  }

  content(place, shape, corner) {
    const { owner, level } = this.view.content(place);
    const inner = level.items.map((item, at) => [this.view.place(owner, item), shape.spots[at], level.tags[at]]);
    const wires = level.links.map((link, at) => this.wire(owner, level, link, shape.paths[at]));
    const ports = [
      ...this.ports(owner, level.ins, shape.ins, "in"),
      ...this.ports(owner, level.outs, shape.outs, "out"),
    ];
    const boxes = inner.map(([child, spot, tags]) =>
      this.place(child, this.view.arrange(child, tags), tags, spot.x, spot.y, corner),
    );
    return [
      svg("g", { class: "wires", transform: shape.shift ? `translate(${shape.shift} 0)` : null }, wires),
      ...ports,
      ...boxes,
    ];
  }

  wire(owner, level, link, path) {
    const endOf = (name) =>
      /^i\d/.test(name) ? this.view.place(owner, level.items[+name.slice(1)]).id : `${owner.id}:${name}`;
    const classes = [link.tensors.length > 1 ? "several" : "", link.unchangedBy ? "unchanged" : ""];
    const element = svg(
      "g",
      { class: ["wire", ...classes].join(" ") },
      svg("path", { class: "hit", d: path }, svg("title", null, wireText(link))),
      svg("path", { class: "line", d: path, "marker-end": "url(#tip)" }),
    );
    this.wires.push({ element, from: endOf(link.from), to: endOf(link.to) });
    return element;
  }

  ports(owner, bundles, spots, name) {
    return bundles.map((port, at) => {
      const { x, y, w, h } = spots[at];
      const element = svg(
        "g",
        { class: `port ${name}`, transform: `translate(${x} ${y})` },
        svg("rect", { width: w, height: h, rx: h / 2 }),
        label(portText(owner.item, port), w / 2, 13, "code", w - 10, "", "middle"),
        svg("title", null, `${name === "in" ? "comes in" : "goes out"}\n${toldText(port)}`),
      );
      return this.speaking(element, port[0]);
    });
  }

  speaking(element, tensor) {
    this.values.set(element, tensor);
    return element;
  }
}

function classesOf(item) {
  const family = item.isNode ? [`f-${item.family}`] : [`g-${item.kind}`];
  return [...family, ...signsOf(item).map(([sign]) => `s-${sign}`)];
}

function boxLines(item, w) {
  const left = canOpen(item) ? BOX.pad + 14 : BOX.pad;
  return linesOf(item).flatMap(([text, font, right], at) => {
    const y = BOX.line * (at + 1) + 3;
    const room = w - left - BOX.pad;
    const free = room - Math.min(widthOf(text, font), room) - 8;
    const parts = [label(text, left, y, font, room, at ? "dim" : "")];
    const fits = widthOf(right, "plain") <= free || free > 48; // a few letters of a name are no help
    if (right && fits) parts.push(label(right, w - BOX.pad, y, "plain", free, "dim", "end"));
    return parts;
  });
}

function chevron(x, y, isOpen) {
  const path = isOpen ? `M${x} ${y + 2}l4 5 4 -5` : `M${x + 1} ${y}l5 4 -5 4`;
  return svg(
    "g",
    { class: "chevron" },
    svg("rect", { x: x - 6, y: y - 7, width: 22, height: 24 }),
    svg("path", { d: path }),
  );
}

function unfoldButton(isUnfolded, w) {
  const text = isUnfolded ? "fold" : "unfold all";
  const width = widthOf(text, "plain") + 14;
  return svg(
    "g",
    { class: "unfold", role: "button", "aria-label": text, transform: `translate(${w - width - 6} 5)` },
    svg("rect", { width, height: 17, rx: 8.5 }),
    svg("text", { class: "plain", x: width / 2, y: 12, "text-anchor": "middle" }, text),
  );
}

// Which part of a run is drawn for all, between buttons to the part before it and the one after it.
function turnButtons(name, x) {
  const button = (by, text, told, at) =>
    svg(
      "g",
      { class: "turn", role: "button", "data-by": by, "aria-label": told, transform: `translate(${x + at} 5)` },
      svg("rect", { width: 17, height: 17, rx: 8.5 }),
      svg("text", { class: "plain", x: 8.5, y: 12, "text-anchor": "middle" }, text),
      svg("title", null, told),
    );
  return [
    button(-1, "‹", "the part before", 0),
    label(name, x + TURN / 2 - 2, 17, "plain", TURN - 46, "dim", "middle"),
    button(1, "›", "the part after", TURN - 21),
  ];
}

function partName(part) {
  return part.isNode ? lastName(part.module, part.parent.path) || part.name : part.name;
}

// A thin bar at the foot of a closed group: which families its operators belong to.
function mixBar(item, w, h) {
  const [left, room] = [BOX.pad, w - 2 * BOX.pad];
  const mix = mixOf(item);
  const all = mix.reduce((sum, [, count]) => sum + count, 0);
  let x = left;
  return mix.map(([family, count]) => {
    const width = (room * count) / all;
    x += width;
    return svg("rect", { class: `mix f-${family}`, x: x - width, y: h - 5, width, height: 2.5 });
  });
}

function chips(item, w) {
  let right = w - 4;
  return signsOf(item).map(([sign, count]) => {
    const chip = chipOf(
      (ALERTS[sign] ?? CHANGES[sign]) + (item.isNode ? "" : ` ${count}`),
      `chip s-${sign}`,
      right,
      -8,
    );
    chip.append(svg("title", null, LEGEND[sign]));
    right -= chip.width + 3;
    return Object.assign(chip, { sign });
  });
}

// A small text on the edge of a box, which ends at `right`.
function chipOf(text, className, right, y) {
  const width = Math.max(15, widthOf(text, "plain") + 10);
  const chip = svg(
    "g",
    { class: className, transform: `translate(${right - width} ${y})` },
    svg("rect", { width, height: 15, rx: 7.5 }),
    svg("text", { class: "plain", x: width / 2, y: 11, "text-anchor": "middle" }, text),
  );
  return Object.assign(chip, { width });
}

// The values that a box reads besides its links, in one label at the left, as links come in at the middle.
function tagOf(tensors, w) {
  const text = `↳ ${tensors.map((tensor) => tensor.name).join(", ")}`;
  const width = Math.min(Math.max(60, w / 2 - 24), widthOf(text, "plain") + 14);
  return svg(
    "g",
    { class: "tag", transform: `translate(6 ${-BOX.tag})` },
    svg("path", { d: `M0 ${BOX.tag}V4a4 4 0 0 1 4 -4H${width - 4}a4 4 0 0 1 4 4V${BOX.tag}` }),
    label(text, 6, 12, "plain", width - 12),
    svg("title", null, `also reads\n${toldText(tensors)}`),
  );
}

function wireText({ tensors, unchangedBy }) {
  return toldText(tensors) + (unchangedBy ? `\npassed on unchanged by ${titleOf(unchangedBy)}` : "");
}

function spoken(item) {
  const told = item.isNode
    ? [item.label, item.module, ...item.outputs.flatMap((tensor) => [tensor.shape, tensor.placement])]
    : [titleOf(item), item.class, sizeText(item)];
  return [...told, ...signsOf(item).map(([sign]) => LEGEND[sign])].filter(Boolean).join(", ");
}
