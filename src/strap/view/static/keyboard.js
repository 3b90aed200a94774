// Keyboard control, and the dialog that lists the keys.

import { make } from "./elements.js";

/** Listen to keys. `keys` are [key, what it does, action]; an entry without action is
 *  only listed in the help. */
export function listenToKeys(keys) {
  const actions = new Map(keys.map(([key, , action]) => [key, action]));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]") || isTyping(event)) return;
    const action = actions.get(event.key === " " ? "Space" : event.key);
    if (!action || belongsToElement(event)) return;
    event.preventDefault();
    action();
  });
  // Releasing the space bar presses a button: not if the space bar plays and pauses there.
  document.addEventListener("keyup", (event) => {
    if (event.key === " " && event.target.dataset?.plays !== undefined) event.preventDefault();
  });
}

function isTyping(event) {
  const { target } = event;
  if (event.key === "Escape" && target.matches("input")) {
    event.preventDefault(); // leave the field, but keep its text
    target.blur();
  }
  return target.matches("textarea, input:not([type=range], [type=checkbox])");
}

/** Return whether the element uses the key itself: arrows in sliders, space on buttons. */
function belongsToElement({ key, target }) {
  if (key.startsWith("Arrow")) return target.matches("select, input[type=range], [role=slider]");
  if (key !== " ") return false;
  if (target.dataset.plays !== undefined) return false;
  return target.matches("button, select, input[type=checkbox], summary, a, [role=slider]");
}

const NAMES = {
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  Space: "space",
  R: "Shift+R",
  U: "Shift+U",
};

/** Make the dialog that lists the keys; return a function that opens it. */
export function makeHelp(keys) {
  const list = make("dl", { class: "keys" });
  const byText = new Map();
  for (const [key, text] of keys) byText.set(text, [...(byText.get(text) ?? []), key]);
  for (const [text, own] of byText) {
    const signs = own.map((key) => make("kbd", {}, NAMES[key] ?? key));
    list.append(make("div", {}, make("dt", {}, ...signs), make("dd", {}, text)));
  }
  return makeDialog("Keyboard", list);
}

/** Make a dialog with a heading and a close button; return a function that opens it. */
export function makeDialog(title, ...content) {
  const close = make("button", { type: "button", class: "button" }, "Close");
  const dialog = make(
    "dialog",
    { "aria-label": title },
    make("h2", {}, title),
    ...content,
    make("p", { class: "dialog-foot" }, close),
  );
  close.addEventListener("click", () => dialog.close());
  // A click outside the dialog is a click on its backdrop.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  return () => dialog.showModal();
}
