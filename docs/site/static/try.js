// npusim in this browser: a form and cells, answered by Python in a worker. What is chosen stands in
// the address, so that a link shows the same to somebody else.

const PYODIDE = "https://cdn.jsdelivr.net/pyodide/v314.0.7/full/";
const here = new URL(".", import.meta.url);
const el = (id) => document.getElementById(id);
const state = new URLSearchParams(location.hash.slice(1));

// ---- Python ----

const waiting = new Map();
let worker = null, ready = null;

function ask(message) {
  return new Promise((resolve, reject) => {
    const number = waiting.size + Math.random();
    waiting.set(number, { resolve, reject });
    worker.postMessage({ number, ...message });
  });
}

function python() {
  if (ready) return ready;
  worker = new Worker(new URL("worker.js", here), { type: "module" });
  worker.onmessage = ({ data: { number, stage, answer, error } }) => {
    if (stage) return say(`${stage} ...`);
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error));
    else resolve(answer);
  };
  const wheel = new URL(el("try").dataset.wheel, here).href;
  const pyodide = new URL(state.get("pyodide") ?? PYODIDE, location.href).href;
  ready = ask({ begins: { pyodide, wheel, glue: new URL("in_browser.py", here).href } });
  ready.catch(() => { ready = null; });
  return ready;
}

async function answer(call, argument) {
  await python();
  say("Simulating ...");
  const begin = performance.now();
  const found = await ask({ call, argument });
  say(`Done in ${((performance.now() - begin) / 1000).toFixed(1)} s, in this browser.`);
  return found;
}

const say = (text) => { el("said").textContent = text; };

async function busy(button, work) {
  button.disabled = true;
  try {
    await work();
  } catch (error) {
    say(`Python could not be loaded or has failed: ${error.message}`);
  } finally {
    button.disabled = false;
  }
}

// ---- a run ----

const lines = (id) => el(id).value.split("\n").map((line) => line.trim()).filter(Boolean);

function words() {
  const given = lines("inputs").flatMap((line) => ["-i", line]);
  const attributes = lines("attributes").flatMap((line) => ["-a", line]);
  return [el("operator").value.trim(), "-d", el("chip").value, ...given, ...attributes];
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function changed() {
  for (const [key, values] of [
    ["op", [el("operator").value.trim()]], ["d", [el("chip").value]],
    ["i", lines("inputs")], ["a", lines("attributes")],
  ]) {
    state.delete(key);
    for (const value of values) state.append(key, value);
  }
  history.replaceState(null, "", `#${state}`);
  el("command").textContent = `npusim run ${words().map(quoted).join(" ")}`;
}

async function run() {
  changed();
  const { printed, page } = await answer("command", words());
  el("printed").textContent = printed;
  el("page").hidden = !page;
  el("page").srcdoc = page;
}

function show_state() {
  if (!state.has("op")) return;
  el("operator").value = state.get("op");
  el("chip").value = state.get("d") ?? el("chip").value;
  el("inputs").value = state.getAll("i").join("\n");
  el("attributes").value = state.getAll("a").join("\n");
}

// ---- the cells of a page of the course ----

function made(tag, properties, ...inside) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside);
  return element;
}

function cell_of(source, number) {
  const code = made("textarea", { value: source, rows: source.split("\n").length, spellcheck: false });
  code.setAttribute("aria-label", `cell ${number}`);
  const button = made("button", { type: "button", textContent: "Run" });
  const output = made("div", { className: "output" });
  button.onclick = () => busy(button, async () => {
    const { printed, text, html, picture } = await answer("cell", code.value);
    const frame = html ? [made("iframe", { srcdoc: html, title: `output of cell ${number}` })] : [];
    const image = picture ? [made("img", {
      src: `data:image/png;base64,${picture}`, alt: `picture of cell ${number}`,
    })] : [];
    output.replaceChildren(made("pre", { textContent: printed + text, tabIndex: 0 }), ...frame, ...image);
  });
  return made("div", { className: "cell" }, code, button, output);
}

async function show_course(name) {
  if (!/^(zh\/)?\w+$/.test(name)) return say(`course: there is no page ${name}; choose one above`);
  const found = await fetch(new URL(`../course/${name}.ipynb`, here));
  if (!found.ok) return say(`course: there is no page ${name}; choose one above`);
  const { cells } = await found.json();
  const shown = cells.filter((each) => each.cell_type === "code").map(
    (each, place) => cell_of([each.source].flat().join(""), place + 1));
  el("cells").replaceChildren(...shown);
}

// ---- begin ----

function begin() {
  show_state();
  changed();
  window.addEventListener("hashchange", () => {
    for (const key of [...state.keys()]) state.delete(key);
    for (const [key, value] of new URLSearchParams(location.hash.slice(1))) state.append(key, value);
    show_state();
    changed();
  });
  el("try").addEventListener("input", changed);
  el("try").addEventListener("submit", (event) => {
    event.preventDefault();
    busy(el("run"), run);
  });
  el("share").onclick = async () => {
    await navigator.clipboard.writeText(location.href);
    say("The link is on the clipboard.");
  };
  el("lesson").value = state.get("course") ?? "";
  el("lesson").onchange = () => {
    state.set("course", el("lesson").value);
    changed();
    show_course(el("lesson").value);
  };
  if (state.has("course")) show_course(state.get("course"));
}

begin();
