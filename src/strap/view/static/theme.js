// Light or dark: as the system says, unless the user switches.

import { make } from "./elements.js";

const KEY = "strap-theme";
const THEMES = ["auto", "light", "dark"];
const LABELS = { auto: "Theme: automatic", light: "Theme: light", dark: "Theme: dark" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

/** Make the switch; canvases hear of each change by the window's event `strap-theme`. */
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

/** Return the present colour of a custom property, as a canvas takes it. */
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
  // A file that is opened from disk may have no storage.
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
    // Without storage the choice holds until the page is closed.
  }
}
