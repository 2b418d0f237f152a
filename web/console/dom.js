// Elements. Texts become text nodes, never markup.

/** h("a", { href, class, onclick, disabled: true }, "text", element, null, [more]) */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false);
}

/** Replaces the content, and keeps the focus on the element that has the same `data-focus` or `href`. */
export function replace(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const mark = focused && markOf(focused);
  parent.replaceChildren(...flat(children));
  if (!mark) return;
  for (const element of parent.querySelectorAll("[data-focus], a[href]")) {
    if (markOf(element) === mark) {
      element.focus({ preventScroll: true });
      return;
    }
  }
}

function markOf(element) {
  return element.dataset?.focus ?? element.getAttribute("href");
}
