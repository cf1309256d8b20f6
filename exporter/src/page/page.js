// Fetches the page again every few seconds and updates what changed, so that
// focus, scroll position and opened details stay. The page is complete without it.
(() => {
  "use strict";
  const PERIOD = 3000;
  const PATIENCE = 5000;

  const age = document.getElementById("age");
  const silent = document.getElementById("silent");
  const main = document.getElementById("main");
  let known = Number(age.dataset.age);
  let fetched = performance.now();
  let failed = false;
  let timer;
  // The elements with an id, before the page is updated.
  let elements = new Map();

  // The age keeps counting between two answers, and when no more answers come.
  function tick() {
    const since = Math.round((performance.now() - fetched) / 1000);
    if (!Number.isNaN(known)) {
      set(age, `${known + since} s ago`);
    }
    if (failed) {
      set(silent, `✕ The exporter has not answered for ${since} s. The page shows its last answer.`);
    }
  }

  function set(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const signal = AbortSignal.timeout(PATIENCE);
      const answer = await fetch(location.pathname, { cache: "no-store", signal });
      if (!answer.ok) throw new Error(answer.statusText);
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      show(next);
      fetched = performance.now();
      known = Number(next.getElementById("age").dataset.age);
      failed = false;
    } catch {
      failed = true;
    }
    silent.hidden = !failed;
    document.body.classList.toggle("silent", failed);
    tick();
    clearTimeout(timer);
    timer = setTimeout(refresh, PERIOD);
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
