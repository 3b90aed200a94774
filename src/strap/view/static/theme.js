// Light or dark theme: as the system is set, unless the user switches.

import { make } from "./elements.js";

const KEY = "strap-theme";
const THEMES = ["auto", "light", "dark"];
const LABELS = { auto: "Theme: automatic", light: "Theme: light", dark: "Theme: dark" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

/** Make the switch; the window's event `strap-theme` notifies canvases of a change. */
export function makeThemeSwitch() {
  const button = make("button", { type: "button", class: "icon-button" });
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = SIGNS[theme];
    button.title = LABELS[theme];
    button.setAttribute("aria-label", LABELS[theme]);
    announce();
  };
  button.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme;
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    remember(next);
    apply(next);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);
  apply(remembered());
  return button;
}

const colours = new Map();
let probe = null;

/** Return the current colour of a custom property, in a form that a canvas accepts. */
export function colour(name) {
  if (!colours.has(name)) {
    if (!probe) {
      probe = make("span", { hidden: true });
      document.body.append(probe);
    }
    // Through `color`, because a custom property is not resolved until it is used.
    probe.style.color = `var(${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

/** Return the three parts of a colour, 0 … 255. */
export function channels(name) {
  return colour(name).match(/[\d.]+/g).slice(0, 3).map(Number);
}

function announce() {
  colours.clear();
  window.dispatchEvent(new Event("strap-theme"));
}

function remembered() {
  // A page opened from a local file can be without storage.
  try {
    const theme = localStorage.getItem(KEY);
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Without storage, the theme is kept until the page is closed.
  }
}
