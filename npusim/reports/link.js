"use strict";
// What is seen of a page stands in its address, and an address shows it again.

const CALM_MS = 250;

// What is packed into a page, deflated, in base64: bytes, and JSON.
async function inflated(text) {
  // Bytes are written at once: the stream of a Blob that nothing refers to may be collected unread.
  const { readable, writable } = new DecompressionStream("deflate"), writer = writable.getWriter();
  writer.write(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
  writer.close();
  return new Response(readable).arrayBuffer();
}
const unpacked = async (text) => JSON.parse(new TextDecoder().decode(await inflated(text)));

// The part of an address after its `#`, as `t=1.2-3.4us&core=3`; links to sections are none.
const told = () => new Map(location.hash.slice(1).split("&").filter((part) => part.includes("=")).map((part) => {
  const at = part.indexOf("=");
  try { return [part.slice(0, at), decodeURIComponent(part.slice(at + 1))]; } catch { return ["", ""]; }
}));
const span = (from, to) => `${+from.toFixed(6)}-${+to.toFixed(6)}us`;
function spanned(text) {
  const found = /^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)us$/.exec(text ?? "");
  return found && +found[1] < +found[2] ? [+found[1], +found[2]] : null;
}

// Promises of what else has something in the address, each with the names of that, and with state() and
// restore(told), as timelines have them.
const beside = [];

// *all* timelines of the page; what belongs to one has its number in its name, but for the first.
async function linked(all) {
  const more = await Promise.all(beside);
  const [first] = all;
  if (!first) return;
  const named = (name, n) => n ? name + (n + 1) : name;
  let waiting = null, written = null;
  const write = () => {
    const parts = [];
    if (first.from > 0 || first.to < first.data.full) parts.push(["t", span(first.from, first.to)]);
    if (first.chosen && first.chosen[0] < first.chosen[1]) parts.push(["span", span(...first.chosen)]);
    all.forEach((one, n) => {
      for (const [name, value] of Object.entries(one.state())) if (value) parts.push([named(name, n), value]);
    });
    for (const one of more) parts.push(...Object.entries(one.state()).filter(([, value]) => value));
    // The language, which is another script's.
    const language = told().get("lang");
    if (language) parts.push(["lang", language]);
    written = parts.map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll("%2C", ",")}`).join("&");
    const others = location.hash.includes("=") ? "" : location.hash;
    history.replaceState(null, "", (written ? "#" + written : others) || location.pathname + location.search);
  };
  const read = () => {
    const known = told();
    known.delete("lang");
    if (!known.size || location.hash.slice(1) === written) return;
    all.forEach((one, n) => one.restore((name) => known.get(named(name, n)) ?? ""));
    const seen = spanned(known.get("t")), chosen = spanned(known.get("span"));
    if (chosen) first.choose(...chosen, true);
    first.frame(...(seen ?? [0, first.data.full]));
    for (const one of more) one.restore((name) => known.get(name) ?? "");
    const owner = more.find((one) => [...known.keys()].every((name) => one.names.includes(name)));
    (owner ?? first).host.scrollIntoView();
  };
  read();
  addEventListener("hashchange", read);
  const changed = () => {
    // Browsers refuse an address that changes with every frame.
    clearTimeout(waiting);
    waiting = setTimeout(write, CALM_MS);
  };
  for (const one of [...all, ...more]) one.changed = changed;
}
