// What pages do besides links and forms: parts change in place, keys, drafts, and what is said when the server or Redis is away.
(() => {
  "use strict";
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);

  // The theme: at once, and in the cookie for the next page.
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".themes button");
    if (!button) return;
    event.preventDefault();
    if (button.value === "auto") delete root.dataset.theme; else root.dataset.theme = button.value;
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = `sleipnir_theme=${button.value}; Path=/; Max-Age=31536000; SameSite=Lax${secure}`;
    for (const each of document.querySelectorAll(".themes button")) each.setAttribute("aria-pressed", String(each === button));
  });

  // Parts that change in place. Nothing else does: order, scroll, focus, selection and what is typed stay.
  const same = (from, to) => {
    if (from.innerHTML !== to.innerHTML) { from.replaceChildren(...to.childNodes); htmx.process(from); }
    for (const name of ["class", "title", "open", "data-state"]) {
      const value = to.getAttribute(name);
      if (value === null || name === "open") { if (name !== "open" && value === null) from.removeAttribute(name); } else if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
  };
  // A list that grows at its end gets what is new: to replace all of a long one at each event takes a browser's memory.
  const sameRows = (list, fresh) => {
    for (const row of [...fresh.children]) {
      const known = byId(row.id);
      if (known) same(known, row); else { list.append(row); htmx.process(row); }
    }
    while (list.children.length > list.dataset.most) list.firstElementChild.remove();
  };
  const inPlace = (page) => {
    for (const part of document.querySelectorAll("[data-live]")) {
      if (part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")) continue;
      const fresh = page.querySelector(`#${CSS.escape(part.id)}`);
      if (fresh) (part.dataset.live === "rows" ? sameRows : same)(part, fresh);
    }
    for (const row of document.querySelectorAll("[data-live-row]")) {
      row.classList.toggle("gone", !page.querySelector(`#${CSS.escape(row.id)}`));
    }
    const pill = byId("new-runs"), fresh = page.querySelector("#new-runs");
    const more = pill && fresh ? fresh.dataset.total - pill.dataset.total : 0;
    if (more > 0) { pill.textContent = `${more} new run${more > 1 ? "s" : ""}`; pill.hidden = false; }
    const title = page.querySelector("[data-title]");
    if (title) document.title = title.dataset.title;
    say("");
  };
  htmx.defineExtension("in-place", {
    isInlineSwap: (style) => style === "in-place",
    handleSwap: (style, _target, fragment) => { if (style !== "in-place") return false; inPlace(fragment); return true; },
  });

  // What is wrong, one thing at a time, until it is over.
  let away = 0;
  const say = (text, isAway = true) => {
    const trouble = byId("trouble");
    if (!trouble || trouble.textContent === text) return;
    trouble.textContent = text;
    root.classList.toggle("away", Boolean(text) && isAway);
    if (!text) away = 0;
  };
  const since = () => { away ||= Date.now(); const s = Math.round((Date.now() - away) / 1000); return s < 2 ? "" : ` since ${s} s`; };
  const known = () => new Date(away).toISOString().slice(11, 19);
  document.addEventListener("htmx:sendError", () => say(`This server does not answer${since()}. You see what was known at ${known()} UTC.`));
  document.addEventListener("htmx:responseError", (event) => {
    const { status, response } = event.detail.xhr;
    if (status === 503) say(`Redis does not answer${since()}. You see what was known at ${known()} UTC.`);
    else if (status === 401) say("You are not logged in any more. Load this page again to log in; copy first what you have typed.");
    else {
      const problem = new DOMParser().parseFromString(response, "text/html").querySelector("#problem");
      say(problem ? problem.firstElementChild.textContent.trim() : `The server answered ${status}.`, false);
    }
  });

  // A hidden page asks for nothing; it catches up when it is seen.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.detail.elt.id === "live") event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    const live = byId("live");
    if (!document.hidden && live) htmx.trigger(live, "seen");
  });

  // Drafts: what is typed on a decision is kept in this tab until it is sent.
  const drafts = () => document.querySelector("form[data-draft]");
  const key = (form) => `draft ${form.dataset.draft}`;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-draft]");
    if (!form) return;
    const fields = [...new FormData(form)].filter(([name]) => name !== "csrf");
    try { sessionStorage.setItem(key(form), JSON.stringify(fields)); } catch { /* no room: then it is not kept */ }
    mark(form);
  });
  const mark = (form) => {
    for (const field of form.querySelectorAll("[data-proposed]")) {
      const value = field.type === "checkbox" ? String(field.checked) : field.value;
      const changed = value !== field.dataset.proposed;
      field.classList.toggle("changed", changed);
      const note = byId(`${field.id}-proposed`);
      if (note) note.hidden = !changed;
    }
  };
  const restore = () => {
    const form = drafts();
    if (!form) return;
    let fields = [];
    try { fields = JSON.parse(sessionStorage.getItem(key(form)) || "[]"); } catch { return; }
    for (const [name, value] of fields) {
      const field = form.elements.namedItem(name);
      if (field && "value" in field && field.type !== "hidden" && field.type !== "submit") {
        if (field.type === "checkbox") field.checked = true; else field.value = value;
      }
    }
    mark(form);
  };
  document.addEventListener("click", (event) => {
    const undo = event.target.closest("[data-undo]");
    if (!undo) return;
    event.preventDefault();
    const field = byId(undo.dataset.undo);
    if (field.type === "checkbox") field.checked = field.dataset.proposed === "true"; else field.value = field.dataset.proposed;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.focus();
  });
  restore();

  // Selected runs are counted; the box in the head selects those of the page.
  const picks = () => [...document.querySelectorAll("[data-pick]")];
  const countPicks = () => {
    const shown = byId("picked");
    if (!shown) return;
    const number = picks().filter((each) => each.checked).length;
    shown.textContent = `${number} run${number === 1 ? "" : "s"} selected.`;
    shown.hidden = number === 0;
    byId("pick-page").hidden = false;
    byId("pick-page").checked = number > 0 && number === picks().length;
    byId("pick-page").indeterminate = number > 0 && number < picks().length;
  };
  document.addEventListener("change", (event) => {
    if (event.target.id === "pick-page") for (const each of picks()) each.checked = event.target.checked;
    countPicks();
  });
  countPicks();

  // The grid of a batch: a line is a link to its first row, a cell to its own.
  document.addEventListener("click", (event) => {
    const line = event.target.closest(".rowsgrid a");
    if (!line || !event.clientX) return;
    const box = line.ownerSVGElement.getBoundingClientRect();
    const cell = Math.floor((event.clientX - box.left) / box.width * line.dataset.cells);
    line.setAttribute("href", line.getAttribute("href").replace(/row=\d+/, `row=${Number(line.dataset.first) + cell * line.dataset.rows}`));
  });
  document.addEventListener("input", (event) => {
    const number = byId(event.target.dataset.slides), slider = document.querySelector(`[data-slides="${event.target.id}"]`);
    if (number) number.value = event.target.value;
    if (slider) slider.value = event.target.value;
  });

  // Keys. None acts while a field has the focus.
  const GO = { o: "/", i: "/inbox", r: "/runs", b: "/batches", f: "/failures", a: "/agents", l: "/fleet" };
  let going = 0;
  const go = (path) => { const link = document.querySelector(`.rail a.item[href="${path}"]`); if (link) link.click(); };
  const step = (by) => {
    const links = [...document.querySelectorAll("[data-list] a[data-row]")];
    const at = links.indexOf(document.activeElement);
    const next = links[Math.min(links.length - 1, Math.max(0, at + by))];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  };
  const press = (selector) => { const found = document.querySelector(selector); if (found && !found.disabled) found.click(); return Boolean(found); };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) {
      if (event.key === "Escape" && event.target.matches("input, textarea, select")) event.target.blur();
      return;
    }
    if (going && Date.now() - going < 1500 && GO[event.key]) { going = 0; go(GO[event.key]); return; }
    going = 0;
    if (event.key === "g") going = Date.now();
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "/") { const find = byId("q"); if (find) { event.preventDefault(); find.focus(); } }
    else if (/^[1-9]$/.test(event.key)) press(`[data-way="${event.key}"]`);
    else if (/^[acermsnp]$/.test(event.key)) { if (press(`[data-key="${event.key}"]`)) event.preventDefault(); }
  });

  // The graph opens at the node that is selected or live.
  const graph = document.querySelector(".graph");
  const here = graph && graph.querySelector(".sel, .running, .waiting, .failed");
  if (here) {
    const outer = graph.getBoundingClientRect(), inner = here.getBoundingClientRect();
    graph.scrollTop += inner.top - outer.top - outer.height / 2;
    graph.scrollLeft += inner.left - outer.left - outer.width / 2;
  }
})();
