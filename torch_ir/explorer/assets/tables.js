// The pieces that the panel is made of: sections, tables, bars.

const SHOWN_ROWS = 12; // of a table, before one has to ask for the rest

function section(title, ...content) {
  const shown = content.flat().filter((part) => part);
  return shown.length ? html("section", null, html("h3", null, title), shown) : "";
}

function table(lines, className) {
  if (!lines.length) return "";
  const row = ([name, ...cells]) =>
    html(
      "tr",
      null,
      html("th", { scope: "row" }, name),
      cells.map((cell) => html("td", null, cell)),
    );
  const [shown, more] = [lines.slice(0, SHOWN_ROWS), lines.slice(SHOWN_ROWS)];
  const whole = html("table", { class: className }, shown.map(row));
  if (!more.length) return whole;
  return html(
    "div",
    null,
    whole,
    html("details", null, html("summary", null, `${more.length} more`), html("table", null, more.map(row))),
  );
}

function argumentsOf(node) {
  return node.inputs.map((tensor, at) => [node.args[at], tensor]);
}

function weightsOf(node) {
  const weights = argumentsOf(node).filter(([, tensor]) => tensor.isWeight);
  return table(weights.map(([name, tensor]) => [name, [code(tensor.keys), html("br"), typed(tensor)]]));
}

function code(text) {
  return html("span", { class: "code" }, text);
}

function typed(tensor) {
  const laid = tensor.placement ? [html("br"), `on ${tensor.placement}`] : [];
  return html("span", { class: "code" }, `${tensor.dtype} ${tensor.shape}`, laid);
}

function bars(rows, all) {
  return html(
    "table",
    { class: "bars" },
    rows.map(([name, count]) => bar(name, grouped(count), count / all)),
  );
}

function bar(name, amount, share) {
  const fill = html("i");
  fill.style.width = `${Math.max(1, 100 * share)}%`;
  return html(
    "tr",
    null,
    html("th", { scope: "row", title: typeof name === "string" ? name : null }, name),
    html("td", { class: "bar" }, fill),
    html("td", null, amount),
  );
}

// What is inside, by kind; a click lists the nodes of that kind.
function signsRow(item, list) {
  const signs = signsOf(item);
  if (!signs.length) return "";
  const many = (sign, count) => (sign in ALERTS ? plural(count, sign) : `${count} ${sign}`);
  const pill = ([sign, count]) =>
    item.isNode
      ? html("span", { class: `pill s-${sign}` }, LEGEND[sign])
      : html("button", { class: `pill s-${sign}`, title: "list them", onclick: () => list(sign) }, many(sign, count));
  return html("p", { class: "signs" }, signs.map(pill));
}

function parametersRow(group) {
  const weights = new Set(group.nodes.flatMap((node) => node.inputs).filter((tensor) => tensor.isWeight));
  if (!weights.size) return "";
  const elements = [...weights].reduce((sum, tensor) => sum + elementsOf(tensor), 0);
  const told = Number.isFinite(elements) ? `${scaled(elements, "")} elements in ` : "";
  return html("p", null, `${told}${plural(weights.size, "tensor")}${quantizedText(group)}`);
}

// What a run reads of quantised weights, each element of which is a byte: ", quantised to 2.35 kB of int8".
function quantizedText(group) {
  const read = group.nodes.filter((node) => !node.isOnce).flatMap((node) => node.inputs);
  const kept = [...new Set(read)].filter((tensor) => isQuantized(tensor) && (tensor.isWeight || tensor.maker?.isOnce));
  const bytes = kept.reduce((sum, tensor) => sum + elementsOf(tensor), 0);
  const dtypes = [...new Set(kept.map((tensor) => tensor.dtype))].join(" and ");
  return kept.length ? `, quantised to ${scaled(bytes, "B")} of ${dtypes}` : "";
}

// How many elements a tensor has; NaN where a size is open.
function elementsOf(tensor) {
  return tensor.shape === "scalar" ? 1 : tensor.shape.split("×").reduce((product, dim) => product * Number(dim), 1);
}
