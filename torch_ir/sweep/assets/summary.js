"use strict";
const rows = JSON.parse(document.getElementById("data").textContent);
const STATUSES = ["ok", "refused", "failed", "crashed", "timeout", "out of memory"];
const COLUMNS = [
  ["model", "model", "name"], ["status", "status", "word"], ["step", "step", "word"], ["nodes", "nodes", "count"],
  ["nodes_after", "optimised", "count"], ["parameters", "parameters", "count"], ["flops", "FLOPs", "amount"],
  ["bytes", "bytes", "amount"], ["max_diff", "max diff", "small"], ["seconds", "seconds", "time"],
  ["peak_bytes", "peak memory", "amount"], ["graph_bytes", "file", "amount"], ["diagnosis", "diagnosis", "told"],
];
const SHOWN = 500, SLOWEST = 10;
const state = { status: null, words: "", column: null, down: true, all: false };

function make(tag, kind, text) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text !== undefined) element.textContent = text;
  return element;
}

function amount(number) {
  const units = ["", " k", " M", " G", " T", " P"];
  let at = 0;
  while (Math.abs(number) >= 1000 && at < units.length - 1) { number /= 1000; at += 1; }
  return (at ? number.toPrecision(3) : String(number)) + units[at];
}

function shown(value, kind) {
  if (value === null || value === undefined || value === "") return "";
  if (kind === "count") return value.toLocaleString("en");
  if (kind === "amount") return amount(value);
  if (kind === "small") return value === 0 ? "0" : value.toExponential(1);
  if (kind === "time") return value.toFixed(2);
  return String(value);
}

function shortName(model) { return model.split("?")[0]; }

function dot(status) { return make("span", "dot " + (status === "out of memory" ? "memory" : status)); }

function cell(row, [key, , kind]) {
  const isNumber = ["count", "amount", "small", "time"].includes(kind);
  const found = make("td", isNumber ? "number" : kind);
  if (key === "status") found.append(dot(row.status), row.status);
  else if (key === "model") { found.textContent = shortName(row.model); found.title = [row.model, row.input, row.dim].filter(Boolean).join("  "); }
  else found.textContent = shown(row[key], kind);
  return found;
}

function table(chosen, columns, sortable) {
  const frame = make("div", "frame"), made = make("table"), head = make("tr"), body = make("tbody");
  for (const [key, title, kind] of columns) {
    const th = make("th", ["count", "amount", "small", "time"].includes(kind) ? "number" : "");
    th.scope = "col";
    if (sortable) {
      const mark = state.column === key ? (state.down ? " ▾" : " ▴") : "";
      const button = make("button", "", title + mark);
      th.ariaSort = state.column === key ? (state.down ? "descending" : "ascending") : "none";
      button.addEventListener("click", () => { state.down = state.column === key ? !state.down : true; state.column = key; draw(); });
      th.append(button);
    } else th.textContent = title;
    head.append(th);
  }
  for (const row of chosen) {
    const line = make("tr");
    line.append(...columns.map((column) => cell(row, column)));
    body.append(line);
  }
  const top = make("thead");
  top.append(head);
  made.append(top, body);
  frame.append(made);
  return frame;
}

function chosenRows() {
  const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = rows.filter((row) => (state.status === null || row.status === state.status)
    && words.every((word) => (row.model + " " + row.diagnosis).toLowerCase().includes(word)));
  if (state.column === null) return found;
  const sign = state.down ? -1 : 1, key = state.column;
  const empty = (value) => value === null || value === "";
  return found.sort((a, b) => empty(a[key]) - empty(b[key])
    || sign * (typeof a[key] === "number" ? a[key] - b[key] : String(a[key]).localeCompare(String(b[key]))));
}

// with names, places, numbers and what stands in brackets left out, equal reasons read alike
function reason(row) {
  return row.diagnosis.replace(/\(.*\)/g, "").replace(/cannot capture \w+|building \S+|OpNode/g, "")
    .replace(/hf:\w+|'[^']*'|\S+\.py:\d+/g, "").replace(/\d+/g, "N");
}

function groups() {
  const found = new Map();
  for (const row of rows) {
    if (row.status === "ok") continue;
    const key = row.status + " " + reason(row);
    found.set(key, [...(found.get(key) || []), row]);
  }
  return [...found.values()].sort((a, b) => b.length - a.length);
}

function failures() {
  const frame = make("div", "frame"), made = make("table"), body = make("tbody");
  for (const group of groups()) {
    const line = make("tr"), names = group.map((row) => shortName(row.model));
    const status = make("td", "word");
    status.append(dot(group[0].status), group[0].status);
    line.append(make("td", "number", group.length), status, make("td", "told", group[0].diagnosis));
    line.append(make("td", "told dim", names.slice(0, 6).join(", ") + (names.length > 6 ? ", …" : "")));
    body.append(line);
  }
  made.append(body);
  frame.append(made);
  return frame;
}

function counted() {
  const counts = new Map(STATUSES.map((status) => [status, 0]));
  for (const row of rows) counts.set(row.status, (counts.get(row.status) || 0) + 1);
  return [...counts].filter(([, count]) => count);
}

function bar() {
  const found = make("div", "bar");
  for (const [status, count] of counted()) {
    const part = dot(status);
    part.classList.remove("dot");
    part.style.flexGrow = count;
    part.title = count + " " + status;
    found.append(part);
  }
  return found;
}

function choice(text, status) {
  const button = make("button");
  if (status) button.append(dot(status));
  button.append(text);
  button.ariaPressed = String(state.status === status);
  button.addEventListener("click", () => { state.status = status; draw(); });
  return button;
}

function draw() {
  const chosen = chosenRows(), cut = state.all ? chosen : chosen.slice(0, SHOWN);
  filters.replaceChildren(choice("all " + rows.length, null),
    ...counted().map(([status, count]) => choice(status + " " + count, status)), search);
  const parts = [table(cut, COLUMNS, true)];
  if (cut.length < chosen.length) {
    const more = make("button", "", "show all " + chosen.length);
    more.addEventListener("click", () => { state.all = true; draw(); });
    parts.push(more);
  }
  list.replaceChildren(...parts);
}

const filters = make("div", "filters"), list = make("div"), search = make("input");
search.type = "search";
search.placeholder = "filter by model or diagnosis";
search.ariaLabel = search.placeholder;
search.addEventListener("input", () => { state.words = search.value; draw(); search.focus(); });

(function start() {
  const main = document.getElementById("main"), sum = (key) => rows.reduce((total, row) => total + (row[key] || 0), 0);
  const graphs = new Set(rows.map((row) => row.digest).filter(Boolean)).size;
  const facts = [rows.length + " models", graphs + " different graphs", amount(sum("graph_bytes")) + "B of graphs",
    sum("seconds").toFixed(0) + " s of processes"];
  main.append(make("h1", "", "Sweep"), make("div", "dim", facts.join(" · ")));
  main.append(make("div", "dim", [...new Set(rows.map((row) => row.versions))].join("; ")), bar());
  if (rows.some((row) => row.status !== "ok")) main.append(make("h2", "", "What was not ok"), failures());
  const slowest = [...rows].sort((a, b) => b.seconds - a.seconds).slice(0, SLOWEST);
  const steps = ["extract", "cost", "optimize", "verify"].map((step) => [step + "_seconds", step, "time"]);
  main.append(make("h2", "", "The slowest"), table(slowest, [COLUMNS[0], COLUMNS[1], ["seconds", "seconds", "time"], ...steps], false));
  main.append(make("h2", "", "Every model"), filters, list);
  list.style.marginTop = "10px";
  draw();
})();
