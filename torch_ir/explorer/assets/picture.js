// What a view shows, as a file: SVG that needs no style sheet, or PNG of it.

const PAINT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight"];
const SHARP = 2; // pixels of a PNG for one of the screen

async function savePicture(view, kind) {
  const text = pictureOf(view);
  const name = `${view.side.title.replace(/[^\w.-]+/g, "_") || "graph"}.${kind}`;
  if (kind === "svg") save(new Blob([text], { type: "image/svg+xml" }), name);
  else save(await pixelsOf(text), name);
}

// The visible part: places and links outside the view are left out, and styles become attributes.
function pictureOf(view) {
  const { canvas } = view;
  const { width, height } = canvas.getBoundingClientRect();
  const copy = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, xmlns: "http://www.w3.org/2000/svg" });
  const ground = getComputedStyle(document.body).backgroundColor;
  copy.append(svg("rect", { width, height, fill: ground }), ...[...canvas.children].map((child) => painted(child, canvas)));
  return new XMLSerializer().serializeToString(copy);
}

function painted(element, canvas) {
  const style = getComputedStyle(element);
  if (style.display === "none" || element.matches(".hit, .chevron > rect") || isOutside(element, canvas)) return "";
  const copy = element.cloneNode(false);
  for (const name of ["class", "data-id", "tabindex", "aria-label", "aria-expanded", "role", "style"]) copy.removeAttribute(name);
  if (element.matches("rect, path, text")) paint(copy, style);
  copy.append(
    ...[...element.childNodes].map((child) => (child.nodeType === Node.TEXT_NODE ? child.data : painted(child, canvas))),
  );
  return copy;
}

function paint(copy, style) {
  for (const name of PAINT) {
    const value = style.getPropertyValue(name);
    if (value && value !== "normal") copy.setAttribute(name, value === "context-stroke" ? "#888" : plainColour(value));
  }
}

// Mixed colours are computed as "color(srgb 0.97 0.9 0.85)", which is black in an attribute.
function plainColour(value) {
  const [, parts, alpha] = /^color\(srgb ([^/)]+)(?:\/ ([^)]+))?\)$/.exec(value) ?? [];
  if (!parts) return value;
  const numbers = parts.trim().split(" ").map((part) => Math.round(255 * part));
  return alpha ? `rgba(${numbers.join(", ")}, ${alpha})` : `rgb(${numbers.join(", ")})`;
}

function isOutside(element, canvas) {
  if (!element.matches(".place, .wire, .port")) return false;
  const [one, whole] = [element.getBoundingClientRect(), canvas.getBoundingClientRect()];
  return one.right < whole.left || one.left > whole.right || one.bottom < whole.top || one.top > whole.bottom;
}

async function pixelsOf(text) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const sheet = html("canvas", { width: image.width * SHARP, height: image.height * SHARP });
  sheet.getContext("2d").drawImage(image, 0, 0, sheet.width, sheet.height);
  return new Promise((done) => sheet.toBlob(done, "image/png"));
}

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  html("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
