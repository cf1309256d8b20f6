// Fetches what changed every few seconds and updates the rows that did, so that focus,
// scroll position and search stay. Searches while the reader types. The page is complete
// without it.
(() => {
  "use strict";
  const PERIOD = 3000;
  const PATIENCE = 10000;
  // After the last key of a search, before the server searches, too.
  const SEARCH = 400;
  const DECISIONS = 500;

  const byId = (id) => document.getElementById(id);
  const main = byId("main");
  const silent = byId("silent");
  const input = byId("q");
  // What this page shows; empty on a page that is fetched as a whole.
  let cursor = main.dataset.cursor;
  let known = Number(byId("age").dataset.age);
  let fetched = performance.now();
  let failure = "";
  let timer;
  let summary;
  let waiting;
  // The row that the tab key reaches.
  let current;

  // The age keeps counting between two answers, and when no more answers come.
  function tick() {
    const since = Math.round((performance.now() - fetched) / 1000);
    if (!Number.isNaN(known)) set(byId("age"), `${known + since} s ago`);
    const start = new Date(Date.now() - since * 1000).toISOString().slice(11, 19);
    if (failure) set(silent, failure.replace("{}", `${since} s, since ${start} UTC`));
  }

  function set(element, text) {
    if (element && element.textContent !== text) element.textContent = text;
  }

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      await (cursor ? update() : load());
      fetched = performance.now();
      failure = "";
    } catch (error) {
      failure = error.failure ?? "✕ The webhook has not answered for {}. The page shows its last answer.";
    }
    silent.hidden = !failure;
    document.body.classList.toggle("silent", Boolean(failure));
    tick();
    clearTimeout(timer);
    timer = setTimeout(refresh, PERIOD);
  }

  async function get(address) {
    const answer = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (answer.status === 404) throw { failure: "✕ There has been no such node for {}. The page shows its last state." };
    if (!answer.ok) throw { failure: `✕ The webhook has answered with status ${answer.status} for {}. The page shows its last good answer.` };
    return answer;
  }

  // Updates what changed.
  async function update() {
    const query = encodeURIComponent(input.value.trim());
    const changes = await (await get(`/changes?since=${encodeURIComponent(cursor)}&q=${query}`)).json();
    if (changes.reload) return load();
    const rows = Object.values(changes.rows);
    for (const row of parse(rows.join(""))) replace(byId(row.id), row);
    for (const [id, text] of Object.entries(changes.sums)) set(byId(id), text);
    if (changes.summary !== summary) {
      byId("summary").replaceChildren(...parse(changes.summary));
      summary = changes.summary;
    }
    // The server has searched all waiting jobs; the page has only the first of them.
    const queued = changes.queue !== waiting;
    if (queued) {
      byId("waiting").replaceChildren(...parse(changes.queue));
      waiting = changes.queue;
    }
    const list = byId("list");
    list.prepend(...parse(`<ol>${changes.decisions}</ol>`)[0].children);
    while (list.children.length > DECISIONS) list.lastElementChild.remove();
    document.title = document.title.replace(/^([✕▲] )?/, changes.mark);
    known = changes.age ?? NaN;
    cursor = changes.cursor;
    if (rows.length || changes.decisions || queued) find();
  }

  // Loads the whole page again: nodes came or went, or another replica answers.
  async function load() {
    const address = cursor ? "/" : location.pathname + location.search;
    const next = new DOMParser().parseFromString(await (await get(address)).text(), "text/html");
    const there = (id) => next.getElementById(id);
    known = Number(there("age").dataset.age);
    document.title = next.title;
    set(byId("replica"), there("replica").textContent);
    if (!cursor) {
      if (main.innerHTML !== there("main").innerHTML) main.replaceChildren(...there("main").childNodes);
      return;
    }
    const anchor = [...visible()].find((row) => row.getBoundingClientRect().bottom > 0);
    const before = anchor?.getBoundingClientRect().top;
    const focused = document.activeElement.closest(".row")?.id;
    for (const group of [...byId("nodes").querySelectorAll(":scope > .group")]) group.remove();
    byId("nodes").append(...there("nodes").querySelectorAll(":scope > .group"));
    byId("summary").replaceChildren(...there("summary").childNodes);
    byId("waiting").replaceChildren(...there("waiting").childNodes);
    byId("list").replaceChildren(...there("list").childNodes);
    cursor = there("main").dataset.cursor;
    summary = waiting = undefined;
    find();
    rove();
    if (focused) link(byId(focused))?.focus({ preventScroll: true });
    const after = anchor && byId(anchor.id)?.getBoundingClientRect().top;
    if (after !== undefined && anchor) scrollBy(0, after - before);
  }

  function parse(html) {
    return [...new DOMParser().parseFromString(html, "text/html").body.children];
  }

  function replace(old, row) {
    if (!old) return;
    const focused = old.contains(document.activeElement);
    link(row).tabIndex = old === current ? 0 : -1;
    if (old === current) current = row;
    old.replaceWith(row);
    if (focused) link(row).focus({ preventScroll: true });
  }

  // Shows the nodes, waiting jobs and decisions that have every word of the search.
  function find() {
    if (!input) return;
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const show = (element) => {
      const found = words.every((word) => element.dataset.find.includes(word));
      if (element.hidden === found) element.hidden = !found;
      return found;
    };
    let all = 0;
    let found = 0;
    for (const group of document.querySelectorAll(".group")) {
      const rows = [...group.querySelectorAll("[data-find]")];
      const shown = rows.filter(show).length;
      group.hidden = shown === 0;
      all += rows.length;
      found += shown;
    }
    const jobs = [...document.querySelectorAll("#waiting [data-find]")].filter(show).length;
    const decisions = [...byId("list").children].filter(show).length;
    const text = `${found} of ${count(all, "node")}, ${count(jobs, "waiting job")}, ${count(decisions, "decision")}`;
    set(byId("found"), words.length ? text : "");
    if (!current || current.hidden) rove();
  }

  function count(number, word) {
    return `${number} ${word}${number === 1 ? "" : "s"}`;
  }

  function typed() {
    const query = input.value.trim();
    history.replaceState(null, "", query ? `/?q=${encodeURIComponent(query)}` : "/");
    find();
    if (cursor) {
      clearTimeout(timer);
      timer = setTimeout(refresh, SEARCH);
    }
  }

  const visible = () => document.querySelectorAll(".group:not([hidden]) .row[id]:not([hidden])");
  const link = (row) => row?.querySelector("a");

  // One row is reached with the tab key, the others from it with the arrow keys.
  function rove(row = visible()[0]) {
    for (const one of document.querySelectorAll(".row[id] a")) {
      if (one.tabIndex !== -1) one.tabIndex = -1;
    }
    current = row;
    if (row) link(row).tabIndex = 0;
  }

  function move(event) {
    const row = event.target.closest(".row[id]");
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    const rows = [...visible()];
    const at = rows.indexOf(row);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -rows.length, End: rows.length };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
    link(current).tabIndex = -1;
    link(next).tabIndex = 0;
    current = next;
    link(next).focus();
  }

  // Somebody may type a lone `%`.
  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  }

  // `#q=TEXT` searches; `#node-NAME` shows a node, even one that the search hides.
  function reveal() {
    const hash = decoded(location.hash.slice(1));
    if (hash.startsWith("q=")) {
      input.value = hash.slice(2);
      return typed();
    }
    const row = byId(hash);
    if (!row?.matches(".row")) return;
    if (row.hidden) {
      input.value = "";
      find();
    }
    rove(row);
    link(row).focus();
    row.scrollIntoView({ block: "nearest" });
  }

  if (input) {
    input.addEventListener("input", typed);
    input.form.addEventListener("submit", (event) => {
      event.preventDefault();
      typed();
    });
    byId("nodes").addEventListener("keydown", move);
    addEventListener("hashchange", reveal);
    document.addEventListener("click", (event) => {
      if (event.target.closest('a[href^="#node-"]')) setTimeout(reveal);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.matches("input") || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      input.focus();
    });
    find();
    rove();
    reveal();
  }
  document.addEventListener("visibilitychange", refresh);
  setInterval(tick, 1000);
  timer = setTimeout(refresh, PERIOD);
})();
