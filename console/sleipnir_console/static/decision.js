// The inbox and a decision: what is looked at, what is selected, what a person changes, and an answer of somebody else.
(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);

  // The question with the focus is shown beside the list.
  document.addEventListener("focusin", (event) => {
    const link = event.target.closest("a[data-gate]"), at = byId("at");
    if (!link || at.value === link.dataset.gate) return;
    at.value = link.dataset.gate;
    for (const row of document.querySelectorAll(".mail .row")) row.classList.toggle("on", row.contains(link));
    htmx.trigger(byId("live"), "seen");
  });

  // Several of one node are answered together, after one of them was opened.
  const boxes = () => [...document.querySelectorAll(".mail input[name=gate]")];
  const select = () => {
    const chosen = boxes().filter((box) => box.checked), button = byId("selection-open"), text = byId("selection-text");
    if (!button) return;
    const isOne = new Set(chosen.map((box) => box.dataset.same)).size <= 1;
    button.disabled = !chosen.length || !isOne;
    button.textContent = chosen.length > 1 ? `Open one, answer ${chosen.length}` : "Open the selected";
    text.textContent = !chosen.length ? "Select questions of one node to answer them together."
      : isOne ? `${chosen.length} selected, of one node.` : `${chosen.length} selected, of different nodes: they are answered one by one.`;
  };
  document.addEventListener("change", (event) => { if (event.target.matches(".mail input[name=gate]")) select(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "x" || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = document.activeElement.closest(".mail .row"), box = row && row.querySelector("input");
    if (box && !box.disabled && document.activeElement !== box) { box.checked = !box.checked; select(); }
  });
  select();

  // What a person changes of what was proposed, as a diff.
  const form = document.querySelector("form[data-draft]");
  const text = (field) => (field.type === "checkbox" ? String(field.checked) : field.value);
  const compare = () => {
    const changes = byId("changes");
    if (!changes || !form) return;
    const lines = [];
    for (const field of form.querySelectorAll("[data-proposed]")) {
      if (!field.dataset.proposed || text(field) === field.dataset.proposed) continue;
      for (const [kind, value] of [["del", field.dataset.proposed], ["add", text(field)]]) {
        const line = document.createElement("div");
        line.className = kind;
        line.textContent = `${field.dataset.label}: ${value}`;
        lines.push(line);
      }
    }
    changes.querySelector(".diff").replaceChildren(...lines);
    changes.hidden = !lines.length;
  };
  document.addEventListener("input", compare);
  document.addEventListener("change", compare);
  compare();

  // A comment that is in the list was sent: the draft, which is restored after this, must not bring it back.
  const sent = [...document.querySelectorAll("[data-mine]")].map((each) => each.dataset.mine);
  if (form && sent.length) {
    try {
      const draft = `draft ${form.dataset.draft}`, kept = JSON.parse(sessionStorage.getItem(draft) || "[]");
      const isSent = ([name, text]) => name === "comment" && sent.includes(text.trim());
      sessionStorage.setItem(draft, JSON.stringify(kept.filter((field) => !isSent(field))));
    } catch { /* there is no draft */ }
  }

  // Somebody else has answered: what was typed stays to be read and copied, and cannot be sent.
  const banner = byId("decision-banner");
  const close = () => {
    const closed = banner && banner.querySelector("[data-closed]");
    if (!closed) return;
    try { sessionStorage.removeItem(`draft ${closed.dataset.closed}`); } catch { /* it was not kept */ }
    for (const each of document.querySelectorAll(".answer button, .head form .btn, .jump")) each.disabled = true;
    for (const each of document.querySelectorAll(".answer .in")) each.readOnly = true;
    for (const each of document.querySelectorAll(".answer select, .answer input[type=checkbox]")) each.disabled = true;
    const live = byId("live");
    if (live && form) live.remove();
  };
  if (banner) { new MutationObserver(close).observe(banner, { childList: true, subtree: true }); close(); }
})();
