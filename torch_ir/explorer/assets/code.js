// A node as text: as the graph's text form prints it, as generated Python computes it, as the model's source wrote it.

function textForm(node) {
  const given = node.inputs.map((tensor, at) => [node.args[at], tensor.name]);
  const named = [...new Map([...given, ...node.attrs])].map(([name, text]) => `${name}=${text}`);
  const made = node.outputs.map((tensor) => `${tensor.name}: ${typeText(tensor)}`).join(", ");
  const plain = node.outputs.length < 2 ? node.outputs[0]?.name : node.outputs[0].name.replace(/_0$/, "");
  const call = `${node.op}(${named.join(", ")})${node.name === plain ? "" : ` as ${node.name}`}`;
  return made ? `${made} = ${call}` : call;
}

function typeText({ dtype, shape, strides, placement }) {
  const dims = shape === "scalar" ? [] : shape.split("×").map((dim) => dim.replace(/^\((.*)\)$/, "$1"));
  const laid = strides === null ? "" : ` strides [${strides}]`;
  return `${dtype}[${dims.join(", ")}]${laid}${placement ? ` on ${placement}` : ""}`;
}

function codeSections(node) {
  const block = (title, text) => section(title, text ? html("pre", { class: "code", tabindex: 0 }, text) : "");
  return [block("Source", node.line), block("Text form", textForm(node)), block("Python", node.python)];
}
