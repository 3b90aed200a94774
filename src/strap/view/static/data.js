// Where the page's data comes from: the server, or, in a report, the page itself.
//
// A report holds <script type="application/json" id="strap-data"> with one object: the
// address of each request, as `addressOf` writes it, and its answer. A film's answer there
// is {"jpeg": "data:image/jpeg;base64,…", "frames": n, "columns": c, "rows": r}.

const embedded = document.getElementById("strap-data");
const answers = embedded ? JSON.parse(embedded.textContent) : null;

export const isReport = answers !== null;

const NO_FILM = "The report has no video of this match: open the run with `strap view`.";

/** Write a request's address: its name, and its parameters in alphabetical order. */
export function addressOf(name, parameters = {}) {
  const given = Object.entries(parameters)
    .filter(([, value]) => value !== null && value !== undefined)
    .sort(([one], [other]) => (one < other ? -1 : 1));
  const search = new URLSearchParams(given).toString();
  return search ? `${name}?${search}` : name;
}

/** Load the JSON answer of a request. */
export async function load(name, parameters) {
  const address = addressOf(name, parameters);
  if (isReport) return answerOf(address);
  return (await checked(fetch(`api/${address}`))).json();
}

/** Load a sheet of frames: its image and the layout of the frames. */
export async function loadSheet(parameters, signal) {
  const { url, ...sheet } = await askForSheet(parameters, signal);
  const image = await decode(url);
  URL.revokeObjectURL(url);
  return { bitmap: await createImageBitmap(image), ...sheet };
}

/** Load a sheet of frames as an image with an address, for a page's backgrounds. The caller
 *  revokes the address when it is no longer used. */
export async function loadImage(parameters) {
  const sheet = await askForSheet(parameters);
  return { image: await decode(sheet.url), ...sheet };
}

async function askForSheet(parameters, signal) {
  const address = addressOf("film", parameters);
  if (isReport) {
    if (!(address in answers)) throw new Error(NO_FILM);
    const { jpeg, frames, columns, rows } = answerOf(address);
    return { url: jpeg, frames, columns, rows };
  }
  const response = await checked(fetch(`api/${address}`, { signal }));
  const [frames, columns, rows] = ["X-Frames", "X-Columns", "X-Rows"].map((name) =>
    Number(response.headers.get(name)),
  );
  return { url: URL.createObjectURL(await response.blob()), frames, columns, rows };
}

async function decode(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

/** Return the address of a rollout's video, or null if there is no video. */
export function videoAddress(parameters) {
  const address = addressOf("video", parameters);
  return isReport ? (answers[address] ?? null) : `api/${address}`;
}

/** Ask the server for a change; return the new state. */
export async function change(name, body) {
  const response = await checked(
    fetch(`api/${name}`, {
      method: "POST",
      // The server requires this header, because a page of another site cannot send it.
      headers: { "Content-Type": "application/json", "X-Strap": "1" },
      body: JSON.stringify(body),
    }),
  );
  return response.json();
}

function answerOf(address) {
  if (!(address in answers)) throw new Error("The report does not contain this: open the run with `strap view`.");
  return answers[address];
}

async function checked(request) {
  let response;
  try {
    response = await request;
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Error("The server does not answer: is `strap view` still running?");
  }
  if (!response.ok) {
    const text = (await response.text()).slice(0, 300);
    throw new Error(text || `The server answered ${response.status}.`);
  }
  return response;
}
