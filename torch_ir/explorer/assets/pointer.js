// The mouse and the finger on a view: drag to pan, wheel or two fingers to zoom, click to select, double click to open.

const STILL = 4; // pixels that a click may move

function listen(view) {
  const { canvas } = view;
  const fingers = new Map(); // id of a pointer that is down -> where it is
  let drag = null;
  const begin = () => {
    const [first, second] = [...fingers.values()];
    drag = first && { ...centreOf(first, second), apart: apartness(first, second), eye: view.eye, isMoving: drag?.isMoving };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (!fingers.size) drag = null;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    begin();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag || !fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    const [first, second] = [...fingers.values()];
    const now = centreOf(first, second);
    const [x, y] = [now.x - drag.x, now.y - drag.y];
    if (!drag.isMoving && Math.hypot(x, y) < STILL && !second) return;
    if (!drag.isMoving) canvas.setPointerCapture(event.pointerId);
    drag.isMoving = true;
    canvas.classList.add("dragging");
    view.move({ x: drag.eye.x + x, y: drag.eye.y + y, k: drag.eye.k });
    if (second && drag.apart) zoomAt(view, apartness(first, second) / drag.apart, now);
  });
  const stop = (event) => {
    fingers.delete(event.pointerId);
    if (fingers.size) return begin();
    canvas.classList.remove("dragging");
    setTimeout(() => (drag = null)); // the click that follows a drag must see that it was one
  };
  canvas.addEventListener("pointerup", stop);
  canvas.addEventListener("pointercancel", stop);
  canvas.addEventListener("click", (event) => drag?.isMoving || clicked(view, event));
  canvas.addEventListener("dblclick", (event) => {
    const place = placeAt(view, event);
    if (place && !event.target.closest(".chevron, .unfold, .turn, .tag")) view.toggle(place);
  });
  canvas.addEventListener("wheel", (event) => wheeled(view, event), { passive: false });
}

function centreOf(first, second = first) {
  return { x: (first.x + second.x) / 2, y: (first.y + second.y) / 2 };
}

function apartness(first, second) {
  return second ? Math.hypot(first.x - second.x, first.y - second.y) : 0;
}

function zoomAt(view, factor, { x, y }) {
  const box = view.canvas.getBoundingClientRect();
  view.zoom(factor, x - box.left, y - box.top);
}

function wheeled(view, event) {
  event.preventDefault();
  const speed = event.ctrlKey ? 0.01 : event.deltaMode ? 0.05 : 0.0016;
  zoomAt(view, Math.exp(-event.deltaY * speed), { x: event.clientX, y: event.clientY });
}

function placeAt(view, event) {
  return view.places.get(event.target.closest("[data-id]")?.dataset.id);
}

function clicked(view, event) {
  view.canvas.focus({ preventScroll: true });
  const place = placeAt(view, event);
  const value = view.drawing.values.get(event.target.closest(".port, .tag")); // a click goes to its producer
  const turn = event.target.closest(".turn");
  const chip = event.target.closest(".chip");
  if (chip && !place.item.isNode) view.dispatchEvent(new CustomEvent("list", { detail: { item: place.item, sign: chip.sign } }));
  else if (turn) view.turnRun(place, Number(turn.dataset.by));
  else if (event.target.closest(".unfold")) view.toggleRun(place);
  else if (event.target.closest(".chevron")) view.toggle(place);
  else if (value?.maker?.graph === view.graph) view.reveal(value.maker);
  else view.select(place ?? null);
}
