// As much of a browser as the page needs: elements by id, events, and canvases that draw nothing.
// Reads {scripts, facts, ids, steps} from stdin; runs the steps and prints what they return.
const { readFileSync } = require("fs");
const vm = require("vm");
const given = JSON.parse(readFileSync(0, "utf8"));

function element(id) {
  const pen = new Proxy({}, { get: (kept, key) => kept[key] ?? (() => {}), set: Reflect.set });
  const hearers = {};
  return {
    id, textContent: "", value: "", style: {}, children: [],
    parentElement: { clientWidth: 600 },
    getContext: () => pen,
    getBoundingClientRect: () => ({ left: 0, top: 0 }),
    addEventListener: (name, hear) => (hearers[name] = [...(hearers[name] || []), hear]),
    hear: (name, event) => (hearers[name] || []).forEach((hear) => hear({ preventDefault() {}, ...event })),
    append(child) { this.children.push(child); },
    replaceChildren(...children) {
      this.children = children;
      const first = children.find((child) => child.selected);
      if (first) this.value = first.value;
    },
  };
}

const elements = Object.fromEntries(given.ids.map((id) => [id, element(id)]));
elements.facts.textContent = JSON.stringify(given.facts);
const document = {
  getElementById: (id) => elements[id] ?? null,
  createElement: () => element(""),
};
const context = vm.createContext({
  document, setInterval, clearInterval, URLSearchParams,
  location: { hash: given.hash ?? "" }, history: { replaceState() {} },
  window: {
    addEventListener() {}, devicePixelRatio: 1,
    matchMedia: () => ({ matches: false, addEventListener() {} }),
  },
  getComputedStyle: () => ({ getPropertyValue: (name) => name }),
});
for (const script of given.scripts) vm.runInContext(script, context);
const answers = given.steps.map((step) => vm.runInContext(step, context));
process.stdout.write(JSON.stringify(answers));
