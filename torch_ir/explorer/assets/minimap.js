// The whole drawing beside the view, where it covers nothing, with a frame around what is seen.

const MAP = 130; // pixels of its longer side, and at most a quarter of the view

const NEARLY = 0.04; // of the drawing that may be out of sight before the map is worth the room that it takes

class Minimap {
  constructor(view) {
    this.view = view;
    this.element = html("canvas", { class: "minimap", "aria-hidden": "true" });
    const go = (event) => event.buttons && this.go(event);
    for (const name of ["pointerdown", "pointermove"]) this.element.addEventListener(name, go);
  }

  scale() {
    const { w, h } = this.view.size();
    const { clientWidth, clientHeight } = this.view.element;
    const most = Math.min(MAP, clientWidth / 4, clientHeight / 4);
    return Math.min(most / w, most / h);
  }

  // Boxes have the colour of text, which contrasts with the background in every theme.
  draw() {
    const { view, element } = this;
    if (!view.drawing) return;
    const pen = element.getContext("2d");
    const { w, h } = view.size();
    const k = this.scale();
    [element.width, element.height] = [Math.max(24, w * k), Math.max(24, h * k)];
    const colours = getComputedStyle(element);
    pen.fillStyle = colours.color;
    for (const frame of view.drawing.frames.values()) {
      pen.globalAlpha = frame.isOpen ? 0.08 : 0.45;
      pen.fillRect(frame.x * k, frame.y * k, Math.max(1, frame.w * k), Math.max(1, frame.h * k));
    }
    const { x, y, k: zoom } = view.eye;
    const seen = [-x / zoom, -y / zoom, view.canvas.clientWidth / zoom, view.canvas.clientHeight / zoom].map(
      (at) => at * k,
    );
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.outlineColor;
    pen.lineWidth = 1.5;
    pen.strokeRect(...seen);
    const isSeen = (start, length, whole) => start <= NEARLY * whole && start + length >= (1 - NEARLY) * whole;
    const isAllSeen = isSeen(seen[0], seen[2], w * k) && isSeen(seen[1], seen[3], h * k);
    element.hidden = isAllSeen;
  }

  go(event) {
    const { eye, canvas } = this.view;
    const k = this.scale();
    const box = this.element.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / k, (event.clientY - box.top) / k];
    this.view.move({ x: canvas.clientWidth / 2 - x * eye.k, y: canvas.clientHeight / 2 - y * eye.k, k: eye.k });
  }
}
