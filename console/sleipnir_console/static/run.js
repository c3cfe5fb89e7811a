// A run as it goes on: one connection for its events, which resumes where it was; what its models write; the step.
// A hidden page is not connected: a browser has six connections to a server, and pages of runs stay open.
(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const MOST_TEXTS = 40, MOST_CHARS = 65536;
  const live = byId("live");
  document.documentElement.classList.add("js");

  // Events: each says that the page is not as it was; it is asked for again, not more often than the server can.
  let source = null, last = "", timer = 0, asked = 0, took = 0;
  const changed = (event) => {
    last = event.lastEventId || last;
    timer ||= setTimeout(() => { timer = 0; htmx.trigger(live, "seen"); }, Math.max(300, 3 * took));
  };
  document.addEventListener("htmx:beforeRequest", (event) => { if (event.detail.elt === live) asked = performance.now(); });
  document.addEventListener("htmx:afterRequest", (event) => { if (event.detail.elt === live) took = performance.now() - asked; });
  const KINDS = ["run_started", "run_paused", "run_stopped", "run_resumed", "run_retried", "run_ended", "visit_opened", "visit_started",
    "visit_closed", "gate_opened", "gate_answered", "gap"];
  const connect = () => {
    if (!live || !live.dataset.events || source || document.hidden) return;
    const path = last ? live.dataset.events.replace(/&after=[^&]*/, "") + `&after=${encodeURIComponent(last)}` : live.dataset.events;
    source = new EventSource(path);
    for (const kind of KINDS) source.addEventListener(kind, changed);
    source.addEventListener("text", (event) => { last = event.lastEventId || last; written(JSON.parse(event.data).data); });
  };
  const leave = () => { if (source) source.close(); source = null; };
  document.addEventListener("visibilitychange", () => { if (document.hidden) leave(); else connect(); });
  window.addEventListener("pagehide", leave);

  // Text of models, by visit: the newest of each, as many as a page needs. Another attempt, turn or draft begins anew.
  const texts = new Map();
  const written = ({ seq, attempt, turn, draft, piece, text, lost }) => {
    const place = `${attempt} ${turn} ${draft}`, kept = texts.get(seq);
    const before = kept && kept.place === place && piece !== 0 ? kept.text : "";
    texts.delete(seq);
    texts.set(seq, { place, text: (before + (lost ? "\u2026" : "") + text).slice(-MOST_CHARS) });
    if (texts.size > MOST_TEXTS) texts.delete(texts.keys().next().value);
    show();
  };
  let drawn = 0;
  const show = () => { drawn ||= requestAnimationFrame(() => { drawn = 0; draw(); }); };
  const draw = () => {
    for (const part of document.querySelectorAll("[data-written]")) {
      const own = byId(part.dataset.written), seqs = own && own.dataset.state ? own.dataset.state.split(" ").map(Number) : [];
      const text = seqs.filter((seq) => texts.has(seq)).map((seq) => texts.get(seq).text).join("\n\n");
      part.hidden = !text;
      const pre = part.querySelector("pre");
      if (pre.textContent === text) continue;
      const follows = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
      pre.textContent = text;
      if (follows) pre.scrollTop = pre.scrollHeight;
    }
  };
  document.addEventListener("htmx:afterSwap", show);
  document.addEventListener("htmx:afterRequest", show);
  connect();

  // A chat: what was sent is no draft any more; the newest is in sight; Control and Enter send.
  const say = document.querySelector("form.say"), message = byId("message");
  if (say) {
    const mine = [...document.querySelectorAll(".bubble.user p")].pop(), key = `draft ${say.dataset.draft}`;
    try {
      const [, draft] = JSON.parse(sessionStorage.getItem(key) || "[]").find(([name]) => name === "message") || [];
      if (draft && mine && draft.trim().startsWith(mine.textContent.trim())) sessionStorage.removeItem(key);
    } catch { /* it was not kept */ }
    message.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) say.requestSubmit(byId("send")); });
    say.scrollIntoView({ block: "end" });
  }

  // The step that is shown: by the slider, and by the arrow keys.
  const slider = byId("step");
  if (slider) {
    slider.addEventListener("input", () => { byId("step-shown").textContent = `${Number(slider.value).toLocaleString("en")} of ${Number(slider.max).toLocaleString("en")}`; });
    slider.addEventListener("change", () => slider.form.requestSubmit());
  }
  const KEYS = { ArrowLeft: "#steps [rel=prev]", ArrowRight: "#steps [rel=next]", ".": "details.act > summary" };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, pre, .graph, .diff, .tw")) return;
    const found = KEYS[event.key] && document.querySelector(KEYS[event.key]);
    if (!found) return;
    event.preventDefault();
    if (event.key === ".") found.focus(); else found.click();
  });
})();
