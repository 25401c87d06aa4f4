// Nodes that only assert something: hidden until the user shows them.

let checksAreShown = false;

function showChecks(isShown) {
  checksAreShown = isShown;
  forgetLevels();
  shapes.clear();
}

function isHidden(item) {
  return !checksAreShown && isCheck(item);
}

function isCheck(item) {
  item.isCheck ??= item.nodes.length > 0 && item.nodes.every((node) => node.isCheck);
  return item.isCheck;
}

function shownNodes(item) {
  return nodesOf(item).filter((node) => !isHidden(node));
}

// A row that says how many there are, with a button that shows or hides all of them.
function checksRow(count, onclick) {
  if (!count) return "";
  const [told, offer] = checksAreShown ? ["", "hide"] : [" hidden", "show"];
  const button = html("button", { class: "link", "aria-label": `${offer} assertions`, title: `${offer} assertions (a)`, onclick }, offer);
  return html("p", { class: "checks" }, `${plural(count, "assertion")}${told} · `, button);
}
