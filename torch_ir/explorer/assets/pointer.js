// The mouse and the finger on a view: drag to pan, wheel to zoom, click to select, double click to open.

const STILL = 4; // pixels that a click may move

function listen(view) {
  const { canvas } = view;
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button === 0) drag = { x: event.clientX, y: event.clientY, eye: view.eye, isMoving: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.isMoving && Math.hypot(x, y) < STILL) return;
    if (!drag.isMoving) canvas.setPointerCapture(event.pointerId);
    drag.isMoving = true;
    canvas.classList.add("dragging");
    view.move({ x: drag.eye.x + x, y: drag.eye.y + y, k: view.eye.k });
  });
  const stop = () => {
    canvas.classList.remove("dragging");
    setTimeout(() => (drag = null)); // the click that follows a drag must see that it was one
  };
  canvas.addEventListener("pointerup", stop);
  canvas.addEventListener("pointercancel", stop);
  canvas.addEventListener("click", (event) => drag?.isMoving || clicked(view, event));
  canvas.addEventListener("dblclick", (event) => {
    const place = placeAt(view, event);
    if (place && !event.target.closest(".chevron, .unfold, .tag")) view.toggle(place);
  });
  canvas.addEventListener("wheel", (event) => wheeled(view, event), { passive: false });
}

function wheeled(view, event) {
  event.preventDefault();
  const box = view.canvas.getBoundingClientRect();
  const speed = event.ctrlKey ? 0.01 : event.deltaMode ? 0.05 : 0.0016;
  view.zoom(Math.exp(-event.deltaY * speed), event.clientX - box.left, event.clientY - box.top);
}

function placeAt(view, event) {
  return view.places.get(event.target.closest("[data-id]")?.dataset.id);
}

function clicked(view, event) {
  view.canvas.focus({ preventScroll: true });
  const place = placeAt(view, event);
  const value = view.drawing.values.get(event.target.closest(".port, .tag")); // a click goes to whoever makes it
  if (event.target.closest(".unfold")) view.toggleRun(place);
  else if (event.target.closest(".chevron")) view.toggle(place);
  else if (value?.maker?.graph === view.graph) view.reveal(value.maker);
  else view.select(place ?? null);
}
