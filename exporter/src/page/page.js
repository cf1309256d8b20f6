// Fetches the page again every few seconds and changes what changed, so that
// focus, scroll position and opened details stay. The page is whole without it.
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
  // What has an id, as it was before the page is changed.
  let elements = new Map();

  // The age counts on between two answers, and when there are no more.
  function tick() {
    const since = Math.round((performance.now() - fetched) / 1000);
    if (!Number.isNaN(known)) {
      set(age, `${known + since} s ago`);
    }
    if (failed) {
      set(silent, `✕ The exporter has not answered for ${since} s. This is what it said last.`);
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
    // It was moved, or it is gone: then stay near it.
    const near = focused.isConnected ? focused : document.getElementById(focused.id || "node");
    near?.focus({ preventScroll: true });
  }

  // Makes `from` like `to`, and keeps each element that is in both.
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

  // Puts the elements that are here already where they belong in a part that is new.
  function adopt(part) {
    for (const wanted of part.querySelectorAll?.("[id]") ?? []) {
      const match = sameId(wanted);
      // What lay in one that was replaced is done.
      if (!match || !part.contains(wanted)) continue;
      wanted.replaceWith(match);
      morph(match, wanted);
    }
  }

  // The element of this id, wherever it was: a GPU that changes its domain takes its card along.
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
      // Whether details are open is up to the reader.
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
