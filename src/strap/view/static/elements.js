// Functions that make elements. Text from data only becomes text nodes, so an instruction that
// looks like HTML is shown as text.

const SVG = "http://www.w3.org/2000/svg";

/** Make an HTML element: names such as `onclick` are listeners, all others attributes. */
export function make(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

/** Make an SVG element, in the same way. */
export function draw(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make the controls that play a film: {button, slider, where}.
 *  @param label the meaning of the slider's position
 *  @param listeners {toggle(), seek(place)} */
export function makeTransport(label, { toggle, seek }) {
  const button = make("button", { type: "button", class: "play", onclick: toggle });
  const slider = make("input", {
    type: "range",
    min: 0,
    max: 0,
    value: 0,
    class: "scrub",
    "aria-label": label,
    oninput: () => seek(Number(slider.value)),
  });
  return { button, slider, where: make("p", { class: "where" }) };
}

/** Make a <select> of [value, label] pairs. */
export function makeSelect(label, options, attributes = {}) {
  const select = make("select", { "aria-label": label, ...attributes });
  setOptions(select, options);
  return select;
}

/** Replace a select's options and keep its value where it still exists. */
export function setOptions(select, options) {
  const before = select.value;
  select.replaceChildren(
    ...options.map(([value, text]) => make("option", { value }, String(text))),
  );
  if (options.some(([value]) => String(value) === before)) select.value = before;
}

/** Call `listener` at most once per displayed frame, however often it is requested. */
export function oncePerFrame(listener) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      listener();
    });
  };
}

/** Return the CSS pixels of one unit of a drawing: drawings scale with the page's font size. */
export function unitOf() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) / 15;
}

/** Give a canvas the resolution of the screen; return its context and its size in units. */
export function sharpContext(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const unit = unitOf();
  const { clientWidth, clientHeight } = canvas;
  const [across, down] = [Math.round(clientWidth * ratio), Math.round(clientHeight * ratio)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio * unit, 0, 0, ratio * unit, 0, 0);
  return { context, width: clientWidth / unit, height: clientHeight / unit };
}

/** Make a text that is shortened at its start, because ids differ at their ends. `text` is the
 *  node whose text can be changed. */
export function makeTail(tag, className) {
  const text = make("bdi", { dir: "ltr" });
  return { element: make(tag, { class: `${className} tail` }, text), text };
}

let noticeTimer = 0;

/** Show a one-line message for a few seconds. */
export function notify(text) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.classList.add("is-shown");
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => notice.classList.remove("is-shown"), 5000);
}
