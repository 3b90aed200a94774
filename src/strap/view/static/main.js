// The start of the page: it chooses the kind of page and shows its title, theme and help.
//
// For tests and for the browser's console, `window.strapView` has
//   state    the state in the hash of the address
//   page     the page of this kind; a run's has `rows` and `choices`
//   player   the player: `player.shown` is the pair on the canvases, {step, query, match}, and
//            `player.pairs` the list of pairs

import { ComparisonPage } from "./comparison.js";
import { load } from "./data.js";
import { DatasetPage } from "./dataset.js";
import { make } from "./elements.js";
import { EvaluationPage } from "./evaluation.js";
import { listenToKeys, makeDialog, makeHelp } from "./keyboard.js";
import { RunPage } from "./runpage.js";
import { readHash, state } from "./state.js";
import { makeThemeSwitch } from "./theme.js";

const PAGES = {
  run: RunPage,
  comparison: ComparisonPage,
  dataset: DatasetPage,
  evaluation: EvaluationPage,
};

async function start() {
  const tools = document.getElementById("tools");
  tools.append(makeThemeSwitch());
  let contents;
  try {
    contents = await load("contents");
  } catch (problem) {
    document.getElementById("title").textContent = "Nothing to show";
    document.getElementById("page").append(make("p", { class: "empty" }, problem.message));
    return;
  }
  readHash();
  showTitle(contents);
  const page = new PAGES[contents.kind](contents);
  document.getElementById("page").append(page.element);
  const keys = [...page.keys(), ["?", "this list", () => openHelp()]];
  const openHelp = makeHelp(keys);
  listenToKeys(keys);
  tools.prepend(makeFacts(contents));
  tools.append(toolButton("?", "Keyboard (?)", openHelp));
  window.strapView = { state, page, player: page.player };
  page.onShown?.();
}

function showTitle({ title, name }) {
  document.title = `${title} – STRAP`;
  document.getElementById("name").textContent = name;
  const heading = document.getElementById("title");
  heading.textContent = title;
  heading.title = title;
}

const ABOUT = {
  run: "About this run",
  comparison: "About these runs",
  dataset: "About this dataset",
  evaluation: "About this evaluation",
};

/** Make the button that opens the facts about the run, or about each compared run. */
function makeFacts({ kind, facts, runs = [] }) {
  const lists = facts?.length ? [listFacts(facts)] : [];
  for (const run of runs) lists.push(make("h3", {}, run.name), listFacts(run.facts));
  if (!lists.length) return "";
  const open = makeDialog(ABOUT[kind], ...lists);
  return make("button", { type: "button", class: "button", onclick: open }, "About");
}

function listFacts(facts) {
  const lines = facts.map(([name, text]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, text)),
  );
  return make("dl", { class: "facts" }, ...lines);
}

function toolButton(sign, label, listener) {
  const attributes = { type: "button", class: "icon-button", title: label, "aria-label": label };
  return make("button", { ...attributes, onclick: listener }, sign);
}

start();
