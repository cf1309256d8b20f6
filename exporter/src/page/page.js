// Fetches the page again every few seconds and updates what changed, so that
// focus, scroll position and opened details stay. The page is complete without it.
(() => {
  "use strict";
  const PERIOD = 3000;
  const PATIENCE = 5000;

  const byId = (id) => document.getElementById(id);
  const age = byId("age");
  const silent = byId("silent");
  const main = byId("main");
  // When the last good answer came, and when the shown data were read.
  let answered = performance.now();
  let read = answered - 1000 * Number(age.dataset.age);
  // Returns what is wrong, if something is.
  let failure;
  let timer;
  // The elements with an id, before the page is updated.
  let elements = new Map();

  // The age keeps counting between two answers, and when no more answers come.
  function tick() {
    if (!Number.isNaN(read)) set(age, `${seconds(read)} s ago`);
    if (failure) set(silent, failure());
  }

  function set(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function seconds(since) {
    return Math.round((performance.now() - since) / 1000);
  }

  function span(since) {
    const start = new Date(Date.now() - performance.now() + since);
    return `${seconds(since)} s, since ${start.toISOString().slice(11, 19)} UTC`;
  }

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden) return;
    let did = "not answered";
    let silently = false;
    try {
      const signal = AbortSignal.timeout(PATIENCE);
      const answer = await fetch(location.pathname, { cache: "no-store", signal });
      if (!answer.ok) {
        did = `answered with status ${answer.status}`;
        throw new Error(did);
      }
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      const kept = keep(next);
      show(next);
      answered = performance.now();
      if (!kept) read = answered - 1000 * Number(next.getElementById("age").dataset.age);
      failure = kept && (() => `✕ The exporter has had no data for ${span(read)}. The page shows the last graph.`);
    } catch {
      silently = true;
      failure = () => `✕ The exporter has ${did} for ${span(answered)}. The page shows its last good answer.`;
    }
    silent.hidden = !failure;
    document.body.classList.toggle("silent", silently);
    tick();
    clearTimeout(timer);
    timer = setTimeout(refresh, PERIOD);
  }

  // An exporter that started again and cannot read its node knows no graph: the last one stays below
  // the error, with the name of its node.
  function keep(next) {
    const graph = byId("graph");
    if (!graph || next.getElementById("graph")) return false;
    const last = graph.cloneNode(true);
    last.classList.add("past");
    // The graph has an element with this id, too.
    next.getElementById("node")?.removeAttribute("id");
    next.getElementById("main").append(last);
    next.querySelector("h1").textContent = document.querySelector("h1").textContent;
    next.title = document.title.replace(/^([✕▲] )?/, "✕ ");
    return true;
  }

  function show(next) {
    const focused = document.activeElement;
    document.title = next.title;
    elements = new Map([...main.querySelectorAll("[id]")].map((one) => [one.id, one]));
    morph(document.querySelector("h1"), next.querySelector("h1"));
    morph(main, next.getElementById("main"));
    if (focused === document.body || focused === document.activeElement) return;
    // The focused element was moved or removed: keep the focus near it.
    const near = focused.isConnected ? focused : document.getElementById(focused.id || "node");
    near?.focus({ preventScroll: true });
  }

  // Makes `from` equal to `to`, and keeps each element that is in both.
  function morph(from, to) {
    attributes(from, to);
    let last = null;
    const next = () => (last ? last.nextSibling : from.firstChild);
    for (const wanted of [...to.childNodes]) {
      const at = next();
      const match = wanted.id ? sameId(wanted) : alike(at, wanted) ? at : null;
      last = match ?? wanted;
      if (last !== at) from.insertBefore(last, at);
      if (!match) adopt(wanted);
      else if (match.nodeType === Node.ELEMENT_NODE) morph(match, wanted);
      else if (match.data !== wanted.data) match.data = wanted.data;
    }
    while (next()) next().remove();
  }

  // Moves existing elements to their places in a new part.
  function adopt(part) {
    for (const wanted of part.querySelectorAll?.("[id]") ?? []) {
      const match = sameId(wanted);
      // Elements inside a replaced one are already done.
      if (!match || !part.contains(wanted)) continue;
      wanted.replaceWith(match);
      morph(match, wanted);
    }
  }

  // Returns the element with this id, wherever it was: a GPU that changes its domain keeps its card.
  function sameId(wanted) {
    const match = elements.get(wanted.id);
    return match?.nodeName === wanted.nodeName ? match : null;
  }

  function alike(one, other) {
    return one && !one.id && one.nodeType === other.nodeType && one.nodeName === other.nodeName;
  }

  function attributes(from, to) {
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    for (const { name } of [...from.attributes]) {
      // The reader decides which details are open.
      if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
    }
  }

  // A link to something inside closed details opens them and goes there.
  function reveal() {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
    }
    (target.querySelector(":scope > summary") ?? target).focus();
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest('a[href^="#"]')) setTimeout(reveal);
  });
  addEventListener("hashchange", reveal);
  document.addEventListener("visibilitychange", refresh);
  setInterval(tick, 1000);
  timer = setTimeout(refresh, PERIOD);
  reveal();
})();
