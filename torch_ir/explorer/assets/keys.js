// The keyboard: letters for what buttons do, arrows to walk along the links.

const KEYS = {
  "?": (app) => app.help.showModal(),
  "/": (app) => app.search.input.focus(),
  f: (app) => app.view.fit(),
  "+": (app) => app.view.zoom(1.25),
  "=": (app) => app.view.zoom(1.25),
  "-": (app) => app.view.zoom(0.8),
  n: (app) => app.search.step(1),
  N: (app) => app.search.step(-1),
  e: (app) => app.openMore(),
  c: (app) => app.view.closeAll(),
  h: (app) => app.nextMode(),
  a: (app) => app.switchChecks(),
  w: (app) => app.goToWrong(),
  m: (app) => app.panels.switch("left"),
  p: (app) => app.panels.switch("right"),
  s: (app) => savePicture(app.view, "svg"),
  d: (app) => app.comparison?.step(1),
  D: (app) => app.comparison?.step(-1),
  Escape: (app) => (app.search.rows.hidden ? app.view.select(null) : app.search.close()),
  Enter: (app) => app.view.selected && app.view.toggle(app.view.selected),
  ArrowDown: (app) => walk(app.view, "to"),
  ArrowUp: (app) => walk(app.view, "from"),
  ArrowRight: (app) => beside(app.view, 1),
  ArrowLeft: (app) => beside(app.view, -1),
};
const SHORTCUTS = [
  ["/", "search; Enter goes to the next match"],
  ["n  N", "next and previous match"],
  ["↓  ↑", "go to a consumer, to a producer"],
  ["←  →", "go to the neighbour at the left, at the right"],
  ["Enter", "open or close what is selected"],
  ["Esc", "select nothing"],
  ["f", "fit; once more, all of a tall graph"],
  ["+  -", "larger, smaller"],
  ["e  c", "open one more level, close everything"],
  ["h", "colour by the next amount"],
  ["a", "show or hide assertions"],
  ["d  D", "next and previous difference"],
  ["w", "go to the first wrong value"],
  ["m  p", "show or hide the modules, the details"],
  ["s", "save what is visible as SVG"],
  ["?", "this list"],
];

function shortcuts() {
  const close = html("button", { class: "close", onclick: () => dialog.close() }, "Close");
  const rows = SHORTCUTS.map(([keys, text]) => [keys.split("  ").map((key) => html("kbd", null, key)), text]);
  const list = html(
    "table",
    null,
    rows.map(([keys, text]) => html("tr", null, html("th", { scope: "row" }, keys), html("td", null, text))),
  );
  const dialog = html("dialog", { class: "help", "aria-label": "keyboard shortcuts" }, html("h2", null, "Keyboard"), list, close);
  return dialog;
}

// A ring around what has the focus is for people who move it by keys.
function listenToKeys(app) {
  const { dataset } = document.documentElement;
  document.addEventListener("pointerdown", () => (dataset.input = "pointer"), true);
  document.addEventListener("keydown", (event) => /^(Tab|Arrow)/.test(event.key) && (dataset.input = "keys"), true);
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input, select, textarea, dialog, dialog *, [role=separator]");
    const act = KEYS[event.key];
    if (!act || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("button, summary") && event.key === "Enter") return;
    event.preventDefault();
    act(app);
  });
}

// To the nearest producer or consumer of what is selected; out of a frame where its own links end.
function walk(view, end) {
  if (!view.selected) return goTo(view, view.children(view.root)[0]);
  const start = end === "to" ? "from" : "to";
  for (let place = view.drawn(view.selected); place && place !== view.root; place = place.parent) {
    const frame = view.drawing.frames.get(view.drawn(view.selected).id);
    const found = view.drawing.wires
      .filter((wire) => wire[start] === place.id && view.drawing.frames.has(wire[end]))
      .map((wire) => view.places.get(wire[end]))
      .sort((one, other) => distance(view, frame, one) - distance(view, frame, other));
    if (found.length) return goTo(view, found[0]);
  }
}

function beside(view, way) {
  if (!view.selected) return;
  const { id, parent } = view.drawn(view.selected);
  const frame = view.drawing.frames.get(id);
  if (!frame) return;
  const found = [...view.drawing.frames.keys()]
    .map((id) => view.places.get(id))
    .filter((place) => place.parent === parent && (view.drawing.frames.get(place.id).x - frame.x) * way > 0)
    .sort((one, other) => distance(view, frame, one) - distance(view, frame, other));
  if (found.length) goTo(view, found[0]);
}

function distance(view, frame, place) {
  const other = view.drawing.frames.get(place.id);
  return Math.hypot(other.x + other.w / 2 - frame.x - frame.w / 2, other.y - frame.y);
}

function goTo(view, place) {
  if (!place) return;
  view.select(place);
  view.centre(place);
}
