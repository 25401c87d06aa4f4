// Numbers and names as people read them, and how wide they are on the screen.

const FONTS = {
  title: "600 12px system-ui, sans-serif",
  plain: "11px system-ui, sans-serif",
  code: "11px ui-monospace, monospace",
};
const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

function widthOf(text, font) {
  const key = `${font}${text}`;
  if (!widths.has(key)) {
    pen.font = FONTS[font];
    widths.set(key, Math.ceil(pen.measureText(text).width));
  }
  return widths.get(key);
}

// The text, cut so that it is at most so wide.
function cut(text, font, most) {
  if (widthOf(text, font) <= most) return text;
  let [short, long] = [0, text.length];
  while (long - short > 1) {
    const middle = (short + long) >> 1;
    if (widthOf(`${text.slice(0, middle)}…`, font) <= most) short = middle;
    else long = middle;
  }
  return `${text.slice(0, short)}…`;
}

const STEPS = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

// 1814073344 as "1.81 G"; an expression has numbers of the same kind in it.
function scaled(amount, unit) {
  if (typeof amount !== "number") return unit ? `${shortened(amount)} ${unit}` : shortened(amount);
  const [step, sign] = STEPS.find(([size]) => amount >= size) ?? [1, ""];
  const number = amount / step;
  const digits = step === 1 || number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return `${number.toFixed(digits)} ${sign}${unit}`.trim();
}

// "1536*batch*seq*seq" as "1.54k·batch·seq²".
function shortened(expression) {
  return expression
    .replace(/\b\d{4,}\b/g, (number) => scaled(Number(number), "").replace(" ", ""))
    .replace(/\b([A-Za-z_]\w*)\*\1\b(?!\*\1\b)/g, "$1²")
    .replaceAll("*", "·");
}

function grouped(amount) {
  return typeof amount === "number" ? amount.toLocaleString("en") : amount;
}

function percent(share) {
  if (!share) return "0 %";
  return share < 0.001 ? "<0.1 %" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

function plural(count, word) {
  return `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;
}

// Whether a dtype has at most eight bits, as quantised values do.
function isQuantized({ dtype }) {
  return /^(u?int[48]|float8)/.test(dtype);
}

function shapeText(tensor) {
  return isQuantized(tensor) ? `${tensor.dtype} ${tensor.shape}` : tensor.shape;
}

// What tensors are, and how they lie on the ranks of a sharded graph.
function toldText(tensors) {
  const laid = ({ placement }) => (placement ? ` on ${placement}` : "");
  return tensors.map((tensor) => `${tensor.name}: ${tensor.dtype} ${tensor.shape}${laid(tensor)}`).join("\n");
}

// The name at the end of a path, seen from a module around it; a number in a list has the name of the list before it.
function lastName(path, outer) {
  const inner = outer && path.startsWith(`${outer}.`) ? path.slice(outer.length + 1) : path;
  return /[^.]*(\.\d+)*$/.exec(inner)[0];
}
