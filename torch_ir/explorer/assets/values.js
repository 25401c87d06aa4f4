// What runtimes computed, compared with a golden pack: how far each node is off, in functions at most of all calls, and
// which is the first wrong one.

class Runtime {
  constructor([name, places, errors, wrong], texts, nodes) {
    this.name = texts[name];
    this.errors = new Map(places.map((place, at) => [nodes[place], errors[at] < 0 ? Infinity : errors[at]]));
    this.wrong = new Set(wrong.map((place) => nodes[place]));
    this.most = Math.max(...[...this.errors.values()].filter(Number.isFinite), 0);
  }

  get first() {
    return [...this.wrong][0];
  }

  // The largest error inside an item; undefined where nothing was compared.
  errorOf(item) {
    const errors = nodesOf(item).map((node) => this.errors.get(node)).filter((error) => error !== undefined);
    return errors.length ? errors.reduce((one, other) => Math.max(one, other)) : undefined;
  }

  isWrong(item) {
    return nodesOf(item).some((node) => this.wrong.has(node));
  }

  // How red: the colour is by the power of ten of the error.
  heat(error) {
    if (!error || !this.most) return error ? 70 : 0;
    return Math.round(70 * Math.min(1, Math.max(0.05, 1 + Math.log10(error / this.most) / 6)));
  }
}

function errorText(error) {
  return error === undefined ? "not compared" : Number.isFinite(error) ? error.toPrecision(3) : "not finite";
}

// Colour closed boxes by the error of a runtime; wrong ones have a red edge, and those not compared are pale.
function paintErrors(view, runtime) {
  for (const [id, frame] of view.drawing.frames) {
    const { item } = view.places.get(id);
    const element = view.drawing.elements.get(id);
    const error = runtime.errorOf(item);
    element.classList.toggle("wrong", runtime.isWrong(item));
    element.classList.toggle("pale", error === undefined && !frame.isOpen);
    if (frame.isOpen) continue;
    element.style.setProperty("--heat", `${runtime.heat(error ?? 0)}%`);
    if (error) element.append(chipOf(errorText(error), "share", frame.w - 4, -8));
  }
}

// A row for each runtime: how many nodes are wrong, and a link to the first.
function runtimesTable(runtimes, link) {
  return table(
    runtimes.map((runtime) => [
      runtime.name,
      `${grouped(runtime.wrong.size)} of ${grouped(runtime.errors.size)} wrong`,
      runtime.first ? link(runtime.first, `first: ${runtime.first.name}`) : "",
    ]),
  );
}

function errorsTable(runtimes, node) {
  return table(
    runtimes.map((runtime) => [
      runtime.name,
      errorText(runtime.errors.get(node)),
      runtime.wrong.has(node) ? html("span", { class: "pill s-removed" }, "wrong") : "",
    ]),
  );
}
