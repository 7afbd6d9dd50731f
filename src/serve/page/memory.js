// The side panel: bytes of conversations beside the exact cache's, rows held, the server's books.

const node = (name, more = {}, ...children) => {
  const out = Object.assign(document.createElement(name), more);
  out.append(...children);
  return out;
};

export function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (n < 1024 || unit === "TiB") return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
}

function bar(parts, whole) {
  const out = node("div", { className: "bar" });
  for (const [kind, size] of parts) {
    if (size <= 0) continue;
    const part = node("span", { className: kind });
    part.style.width = `${Math.min(100, 100 * size / whole)}%`;
    out.append(part);
  }
  return out;
}

// `talks`: [{name, detail}], detail as of /v1/pith/sessions/NAME.
export function showBars(where, talks) {
  where.replaceChildren();
  const exact = Math.max(...talks.map((t) => t.detail.exact_bytes));
  const most = Math.max(exact, ...talks.map((t) => t.detail.ledger.total));
  const held = (l) => l.payload + l.metadata + l.shared;
  const share = Math.min(...talks.map((t) => held(t.detail.ledger) / t.detail.exact_bytes));
  where.append(node("div", { className: "big" }, `${Math.round(100 * share)}%`),
    node("div", { className: "quiet" }, `of what ${talks[0].detail.tokens} tokens would take without Pith`));
  for (const { name, detail } of talks) {
    const l = detail.ledger;
    where.append(node("div", { className: "bar-name" }, node("span", { title: name }, name), node("span", {}, bytes(held(l)))),
      bar([["payload", l.payload], ["metadata", l.metadata + l.shared], ["waiting", l.slack + l.staging + l.probe]], most));
  }
  where.append(node("div", { className: "bar-name" }, node("span", { title: "Every key and value in 16 bits" },
    "without Pith"), node("span", {}, bytes(exact))), bar([["exact", exact]], most));
  const legend = node("div", { className: "legend" });
  for (const [kind, text, hint] of [["payload", "words held", "coded keys and values"],
    ["metadata", "notes", "positions, scales, weights"], ["waiting", "room", "allocated, not used yet"]]) {
    legend.append(node("span", { title: hint }, node("i", { className: kind }), text));
  }
  where.append(legend);
}

export function showRows(where, detail) {
  where.replaceChildren();
  const layers = detail.rows, heads = layers[0]?.length ?? 1;
  const grid = node("div", { className: "grid", role: "img" });
  grid.style.gridTemplateColumns = `repeat(${heads}, 1fr)`;
  layers.forEach((layer, l) => layer.forEach((rows, h) => {
    const cell = node("i", { title: `layer ${l}, head ${h}: ${rows} of ${detail.tokens} rows` });
    cell.style.opacity = String(0.12 + 0.88 * Math.min(1, rows / Math.max(1, detail.tokens)));
    grid.append(cell);
  }));
  const l = detail.ledger;
  const kept = Math.round(100 * l.rows_kept / Math.max(1, l.rows_seen));
  grid.setAttribute("aria-label", `${kept}% of all rows are held`);
  where.append(grid, node("p", { className: "quiet" },
    `${kept}% of the rows are held, at ${l.bits.toFixed(1)} bits for each number of the whole`));
}

export function showServer(where, status) {
  const share = status.budget ? Math.max(status.reserved, status.in_use) / status.budget : 0;
  where.replaceChildren(
    node("div", {}, `${status.running} answering, ${status.waiting} waiting, ${status.idle} held for later`),
    bar([["payload", share]], 1),
    node("div", {}, `${bytes(status.in_use)} in use, ${bytes(status.reserved)} promised, of ${bytes(status.budget)}`),
    node("div", {}, `Beginnings that were not read again: ${status.tokens_reused} tokens`));
}
