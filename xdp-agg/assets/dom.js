// The document: what differs is written, and nothing else. Whatever comes from the network is set
// as text, never as markup: names of jobs are chosen by strangers.

/** An element of the page. */
export const $ = (id) => document.getElementById(id);

/** A new element. */
export function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** Sets a text. What it was is kept beside the node: to read it of the document takes long. */
export function say(node, text) {
  if (node.said === text) return;
  node.said = text;
  node.textContent = text;
}

/** Shows or hides an element. */
export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/** Sets an attribute. */
export function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Sets the classes of an element. */
export function classes(node, names) {
  if (node.className !== names) node.className = names;
}

/** Children of `parent` for these items, kept by key: made once, updated, removed. */
export function keyed(parent, items, keyOf, make, update) {
  const old = parent.kept ?? new Map();
  const kept = new Map(items.map((item) => [keyOf(item), old.get(keyOf(item)) ?? make(item)]));
  // What goes is removed first, so that nothing that stays has to move: it may have the focus.
  for (const [key, node] of old) if (!kept.has(key)) node.remove();
  parent.kept = kept;
  let place = parent.firstElementChild;
  for (const item of items) {
    const node = kept.get(keyOf(item));
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
    update(node, item);
  }
}

/** Digits and their unit. */
export function quantity(node, [digits, unit]) {
  if (node.digits === digits && node.unit === unit) return;
  Object.assign(node, { digits, unit });
  node.replaceChildren(digits, element("span", "unit", unit));
}

/** A list of sentences. */
export function lines(parent, sentences) {
  keyed(
    parent,
    sentences.map((text, index) => ({ text, index })),
    ({ index }) => index,
    () => element("li"),
    (node, { text }) => say(node, text),
  );
}
