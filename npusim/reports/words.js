// English and Chinese, and what terms mean: the page is written in English, and words of other nodes that
// come later are changed as they come. `say` changes a text that is drawn.

const SKIPPED = "script, style, code, kbd, .keep", TOLD = ["title", "placeholder", "aria-label"];
const TERMED = "td, th, dt, .key span, .details dd, svg text, h3", WHOLE = new Set(["TD", "DD", "SPAN", "H3"]);
const STORE = "npusim-language";

// What may stand in places of these names; in others, anything but a sentence that is not known in Chinese.
const NUMBER = "((?:< )?[\\d.,]+)", PLACES = { n: NUMBER, m: NUMBER, share: NUMBER, letter: "([A-Z]{1,2})", bound: "(.+)",
  time: "([\\d.,]+ [um]?s)", rate: "([\\d.,]+ \\S+)", other: "([^;]+?)", chip: "([^:;]+?)", pipe: "([^:;,]+?)", buffer: "([^:;,]+?)", path: "([^:;,]+?)", layout: "(\\w+)" };
const SENTENCE = /(^| )([Aa]n|and|[Aa]re|as|at|[Bb]y|[Ee]ach|[Ff]or|[Ff]rom|has|have|[Ii]n|is|[Ii]t|its|not|of|[Oo]n|or|so|than|that|[Tt]he|to|what|which|while|with|takes?|gains?)(?= |$)/;

// Texts in English -> Chinese. A key may have {places}: what stands there is changed too, and of {places*}
// each of a list.
class Table {
  constructor(entries) {
    this.whole = new Map();
    this.parts = [];
    this.known = new Map();
    for (const [en, zh] of Object.entries(entries)) {
      const names = [...en.matchAll(/\{(\w+\*?)\}/g)].map(([, name]) => name);
      if (!names.length) { this.whole.set(en, zh); continue; }
      const plain = (text) => text.replace(/[.*+?^$()|[\]\\]/g, "\\$&");
      const source = en.split(/\{(\w+)\*?\}/).map((part, n) => n % 2 ? PLACES[part] ?? "(.+?)" : plain(part)).join("");
      this.parts.push({ fits: new RegExp(`^${source}$`), names, zh, size: en.replace(/\{\w+\*?\}/g, "").length });
    }
    this.parts.sort((one, other) => other.size - one.size);
  }
  say(text) {
    if (!/[a-z]{2}/i.test(text)) return text;
    if (!this.known.has(text)) this.known.set(text, this.found(text));
    return this.known.get(text);
  }
  found(text) {
    const [, before, lines, after] = /^(\s*)(.*?)(\s*)$/s.exec(text), words = lines.replace(/\s+/g, " ");
    return before + (this.whole.get(words) ?? this.clause(words) ?? this.filled(words) ?? this.cut(words)) + after;
  }
  // With what stands in the places of a text; undefined if there is none that fits.
  filled(words) {
    for (const { fits, names, zh } of this.parts) {
      const found = fits.exec(words);
      if (!found) continue;
      const said = names.map((name, n) => name.endsWith("*") ? this.list(found[n + 1]) : this.say(found[n + 1]));
      if (said.some((text, n) => text === found[n + 1] && SENTENCE.test(text))) continue;
      return names.reduce((text, name, n) => text.replace(`{${name.replace("*", "")}}`, () => said[n]), zh);
    }
    return undefined;
  }
  // A sentence or a heading by what stands in it, which begins small and has no mark at its end.
  clause(words) {
    const [, first, rest, end] = /^(.)(.*?)([.:;]?)$/s.exec(words) ?? ["", "", "", ""];
    const plain = (/^[a-z ]/.test(rest) ? first.toLowerCase() : first) + rest;
    const said = words.includes(" · ") || plain === words ? plain : this.say(plain);
    return said === plain ? undefined : said + ({ ".": "。", ":": "：", ";": "；" }[end] ?? "");
  }
  cut(words) {
    for (const [mark, other] of [[" · ", " · "], ["; ", "；"]]) {
      const parts = words.split(mark), said = parts.length > 1 ? parts.map((part) => this.say(part)) : parts;
      if (said.some((text, n) => text !== parts[n])) return said.join(other);
    }
    return words;
  }
  list(text) {
    // A part may hold an "and" that joins no parts: what stands at its sides says nothing then.
    const isKnown = (part) => this.say(part) !== part;
    const parts = text.split(", ").flatMap((each) => {
      const sides = each.split(" and ");
      return sides.every(isKnown) || !isKnown(each) ? sides : [each];
    });
    return parts.map((each) => this.say(each)).join("、");
  }
}

class Words {
  constructor({ labels, terms }) {
    this.table = new Table(labels);
    this.terms = terms;
    this.english = new WeakMap();
    this.byWord = new Map(terms.flatMap((term, n) => term.words.map((word) => [word.toLowerCase(), n])));
    const longest = [...this.byWord.keys()].sort((one, other) => other.length - one.length);
    this.within = new RegExp(`(?<![\\w-])(${longest.map((word) => word.replace(/[+]/g, "\\+")).join("|")})(?![\\w-])`, "i");
    this.language = "en";
    this.button = document.querySelector("button.language");
    this.tip = document.getElementById("tip");
    this.listen();
    this.describe(document.body);
    this.speak(this.asked());
    this.watcher = new MutationObserver((changes) => this.changed(changes));
    this.watch();
  }
  asked() {
    const own = told().get("lang");
    try { return own ?? localStorage.getItem(STORE) ?? "en"; } catch { return own ?? "en"; }
  }
  watch() { this.watcher.observe(document.body, { subtree: true, childList: true, characterData: true, attributeFilter: TOLD }); }
  changed(changes) {
    const added = new Set();
    for (const { type, target, addedNodes } of changes)
      if (type === "childList") addedNodes.forEach((node) => added.add(node)); else added.add(target);
    for (const node of added) {
      if (node.nodeType === Node.ELEMENT_NODE) this.describe(node);
      if (this.language !== "en") this.turn(node);
    }
    this.watcher.takeRecords();
  }

  // ---- languages ----

  say(text) { return this.language === "en" ? text : this.table.say(text); }
  speak(language) {
    this.language = language === "zh" ? "zh" : "en";
    document.documentElement.lang = this.language === "zh" ? "zh-CN" : "en";
    this.button.textContent = this.language === "zh" ? "English" : "中文";
    this.button.lang = this.language === "zh" ? "en" : "zh-CN";
    this.turn(document.body);
    this.terms.forEach(({ meaning, meaning_zh }, n) => {
      document.getElementById(`term${n}`).textContent = this.language === "zh" ? meaning_zh : meaning;
    });
    this.titled ??= document.title;
    document.title = this.say(this.titled);
    this.watcher?.takeRecords();
    dispatchEvent(new Event("language"));
  }
  choose(language) {
    try { localStorage.setItem(STORE, language); } catch { /* a page of a file may have no store */ }
    this.speak(language);
    const others = location.hash.slice(1).split("&").filter((part) => part && !part.startsWith("lang="));
    if (others.some((part) => !part.includes("="))) return;
    const parts = language === "zh" ? [...others, "lang=zh"] : others;
    history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname + location.search);
  }
  turn(root) {
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let text = root.nodeType === Node.TEXT_NODE ? root : texts.nextNode(); text; text = texts.nextNode()) {
      if (!text.data.trim() || text.parentElement?.closest(SKIPPED) || text.parentElement === this.button) continue;
      this.put(text, "data", text.data, (said) => { text.data = said; });
    }
    if (root.nodeType !== Node.ELEMENT_NODE) return;
    for (const element of [root, ...root.querySelectorAll("[title], [placeholder], [aria-label]")])
      for (const name of TOLD)
        if (element.hasAttribute(name)) this.put(element, name, element.getAttribute(name), (said) => element.setAttribute(name, said));
  }
  put(node, name, now, set) {
    // What was not said here by this is new English.
    const all = this.english.get(node) ?? {};
    if (all[name]?.said !== now) all[name] = { en: now };
    const said = this.say(all[name].en);
    all[name].said = said;
    this.english.set(node, all);
    if (said !== now) set(said);
  }

  // ---- terms ----

  describe(root) {
    const inside = root.matches(TERMED) ? [root] : [];
    for (const element of [...inside, ...root.querySelectorAll(TERMED)]) {
      const text = element.textContent.trim(), n = text.length > 60 ? undefined : this.termOf(text, WHOLE.has(element.tagName) && !this.isName(element));
      if (n === undefined || element.closest(".keys")) continue;
      element.dataset.term = n;
      element.setAttribute("aria-describedby", `term${n}`);
      // Tables have a cell for a term in every row: keys stop at headings alone.
      if (["TH", "DT", "H3"].includes(element.tagName)) element.tabIndex = 0;
    }
  }
  isName(element) { return !element.closest(".sums") && element.tagName === "TD" && element === element.parentElement.firstElementChild; }
  termOf(text, isWhole) {
    const start = text.toLowerCase().split(/ of | \(/)[0], whole = this.byWord.get(text.toLowerCase()) ?? this.byWord.get(start);
    return whole ?? (isWhole ? undefined : this.byWord.get(this.within.exec(text)?.[1].toLowerCase()));
  }
  find(word) { return this.byWord.get(word.toLowerCase()); }
  listen() {
    this.button.addEventListener("click", () => this.choose(this.language === "zh" ? "en" : "zh"));
    const show = (element) => {
      if (!element) { this.hide(); return; }
      const box = element.getBoundingClientRect();
      this.explain(+element.dataset.term, box.left, box.bottom);
    };
    const over = (e) => show(e.target.closest?.("[data-term]"));
    document.addEventListener("mouseover", over);
    document.addEventListener("focusin", over);
    document.addEventListener("focusout", () => this.hide());
    // What has the focus may have been scrolled into sight for it.
    addEventListener("scroll", () => show(document.activeElement?.closest("[data-term]")), true);
    addEventListener("keydown", (e) => { if (e.key === "Escape") this.hide(); });
  }
  explain(n, x, y) {
    const { name, meaning } = this.terms[n];
    const [head, text] = this.language === "zh" ? [this.terms[n].name_zh, this.terms[n].meaning_zh] : [name, meaning];
    const title = document.createElement("b");
    title.textContent = head;
    this.tip.replaceChildren(title, ` ${text}`);
    this.tip.hidden = false;
    const box = this.tip.getBoundingClientRect(), high = y + 6 + box.height > innerHeight;
    this.tip.style.left = `${Math.max(8, Math.min(x, innerWidth - box.width - 8))}px`;
    this.tip.style.top = `${high ? Math.max(8, y - 30 - box.height) : y + 6}px`;
  }
  hide() { this.tip.hidden = true; }
}

// Until the words of the page are there, texts stay as they are.
let words = null;
const say = (text) => words ? words.say(text) : text;
const spoken = unpacked(document.getElementById("words").textContent).then((data) => (words = new Words(data)));
