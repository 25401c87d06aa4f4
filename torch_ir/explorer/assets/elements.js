// Elements from plain arguments. Whatever a graph says becomes text, never markup.

function html(tag, properties, ...children) {
  return built(document.createElement(tag), properties, children);
}

function svg(tag, attributes, ...children) {
  return built(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function built(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function label(text, x, y, font, most, className, anchor) {
  return svg("text", { x, y, class: `${font} ${className ?? ""}`, "text-anchor": anchor }, cut(text, font, most));
}
